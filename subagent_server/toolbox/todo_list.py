"""The to-do list of a run, which its journal keeps.

`todo_write` replaces the list, the `task_` tools change one entry of it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic.alias_generators import to_camel

from subagent_server.run.errors import BadArgument, shorten
from subagent_server.toolbox.tool import Tool, ToolResult
from subagent_server.toolbox.workspace import Arguments, definition_of, parse_arguments

MOST_TODOS = 200
MOST_CHARACTERS = 1_000
Status = Literal["pending", "in_progress", "completed"]
_TaskStatus = Literal["pending", "in_progress", "completed", "deleted"]
_MARKS = {"pending": " ", "in_progress": "~", "completed": "x"}


class TodoItem(Arguments, alias_generator=to_camel):
    """One entry, as `todo_write` gets it."""

    content: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    status: Status = "pending"
    active_form: str | None = Field(default=None, max_length=MOST_CHARACTERS)


class _KeptItem(TodoItem, alias_generator=to_camel):
    """An entry, as the journal has it."""

    id: str = Field(pattern=r"^[0-9]{1,9}$")
    description: str | None = None


class _TodoArguments(Arguments):
    todos: list[TodoItem] = Field(max_length=MOST_TODOS)


class _CreateArguments(Arguments, alias_generator=to_camel):
    subject: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    description: str | None = Field(default=None, max_length=MOST_CHARACTERS)
    active_form: str | None = Field(default=None, max_length=MOST_CHARACTERS)


class _UpdateArguments(_CreateArguments, alias_generator=to_camel):
    task_id: str = Field(description="The id of a task.")
    subject: str | None = Field(default=None, min_length=1, max_length=MOST_CHARACTERS)  # type: ignore[assignment]
    status: _TaskStatus | None = None


class _IdArguments(Arguments, alias_generator=to_camel):
    task_id: str = Field(description="The id of a task.")


@dataclass
class TodoList:
    """The entries by their ids, in the order in which they came. Each change is an event `todos`.

    `record` appends an event to the journal.
    """

    record: Callable[..., None]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _number: int = 0

    def restore(self, kept: Sequence[Any]) -> None:
        """Begin with the list of the run that this one continues; anything else in it is skipped."""
        for each in kept[:MOST_TODOS]:
            with suppress(ValidationError):
                item = _KeptItem.model_validate(each)
                self.entries[item.id] = item.model_dump(by_alias=True, exclude_none=True, exclude={"id"})
        self._number = max(map(int, self.entries), default=0)
        if self.entries:
            self._note()

    def replace(self, todos: list[TodoItem]) -> str:
        """Replace this list by a whole one."""
        self.entries = {}
        for todo in todos:
            self._add(todo.model_dump(by_alias=True, exclude_none=True))
        self._note()
        return self.text()

    def create(self, asked: _CreateArguments) -> str:
        """Add an entry. Raises BadArgument if there are too many."""
        if len(self.entries) >= MOST_TODOS:
            raise BadArgument(f"The list has {MOST_TODOS} entries, the most it takes: delete some.")
        entry = {"content": asked.subject, "status": "pending"}
        number = self._add(entry | _known(description=asked.description, activeForm=asked.active_form))
        self._note()
        return f"Created task {number}.\n{self.text()}"

    def update(self, asked: _UpdateArguments) -> str:
        """Change an entry, or delete it. Raises BadArgument if there is none of this id."""
        entry = self._entry(asked.task_id)
        if asked.status == "deleted":
            del self.entries[asked.task_id]
        else:
            entry |= _known(
                content=asked.subject,
                status=asked.status,
                description=asked.description,
                activeForm=asked.active_form,
            )
        self._note()
        return self.text()

    def show(self, asked: _IdArguments) -> str:
        """Return one entry with all that is known of it. Raises BadArgument."""
        entry = self._entry(asked.task_id)
        return "\n".join(f"{key}: {value}" for key, value in {"taskId": asked.task_id, **entry}.items())

    def text(self) -> str:
        """Return the list as the model reads it."""
        lines = [f"{number}. [{_MARKS[e['status']]}] {e['content']}" for number, e in self.entries.items()]
        return "\n".join(lines) or "The list is empty."

    def _add(self, entry: dict[str, Any]) -> str:
        self._number += 1
        self.entries[str(self._number)] = entry
        return str(self._number)

    def _entry(self, number: str) -> dict[str, Any]:
        if number not in self.entries:
            known = ", ".join(self.entries) or "none"
            raise BadArgument(f"There is no task {shorten(number)}: the ids are {shorten(known)}.")
        return self.entries[number]

    def _note(self) -> None:
        # The whole list each time: a reader needs only the newest event.
        self.record("todos", todos=[{"id": number, **entry} for number, entry in self.entries.items()])


@dataclass
class TodoTool(Tool):
    """One tool of the list."""

    name: str
    description: str
    arguments: type[Arguments]
    work: Callable[[Any], str]
    sequential: bool = True

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return definition_of(self.name, self.description, self.arguments)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Read or change the list, and return it."""
        return ToolResult.of_text(self.work(parse_arguments(self.arguments, arguments)))


def todo_tools(names: Collection[str], record: Callable[..., None], kept: Sequence[Any] = ()) -> list[Tool]:
    """Return the tools of these names, which share one list. `kept` is that of the run before this one."""
    todos = TodoList(record)
    if names:
        todos.restore(kept)
    every = [
        TodoTool(
            "todo_write",
            "Keep the list of what is to do in this task: give the whole list, which replaces the old one.",
            _TodoArguments,
            lambda arguments: todos.replace(arguments.todos),
        ),
        TodoTool(
            "task_create",
            "Add a task to your list of what is to do; it gets an id.",
            _CreateArguments,
            todos.create,
        ),
        TodoTool(
            "task_update",
            "Change a task of your list: its status or its words. The status deleted removes it.",
            _UpdateArguments,
            todos.update,
        ),
        TodoTool("task_list", "Show your list of what is to do.", Arguments, lambda _: todos.text()),
        TodoTool("task_get", "Show one task of your list with its description.", _IdArguments, todos.show),
    ]
    return [tool for tool in every if tool.name in names]


def _known(**facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
