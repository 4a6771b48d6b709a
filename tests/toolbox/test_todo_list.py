"""The to-do list of a run: what its tools answer, and what they refuse."""

import asyncio
from typing import Any

import pytest

from subagent_server.run.agent_definition import TODO_TOOLS
from subagent_server.toolbox.todo_list import MOST_TODOS, todo_tools
from subagent_server.toolbox.tool import ToolResult
from tests.toolbox.calls import call


class Listed:
    """All tools of one list."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.tools = {tool.name: tool for tool in todo_tools(TODO_TOOLS, self.record)}

    def record(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))

    def call(self, name: str, **arguments: Any) -> ToolResult:
        return call(self.tools[name], **arguments)


def test_only_the_tools_that_a_file_names_are_there() -> None:
    assert [tool.name for tool in todo_tools(["task_list"], Listed().record)] == ["task_list"]
    assert tuple(Listed().tools) == TODO_TOOLS


def test_tasks_are_created_changed_shown_and_deleted() -> None:
    listed = Listed()
    assert "Created task 1" in listed.call("task_create", subject="Look", description="Everywhere.").text
    listed.call("task_create", subject="Write", activeForm="Writing")
    assert listed.call("task_update", taskId="1", status="in_progress").text == "1. [~] Look\n2. [ ] Write"
    assert "description: Everywhere." in listed.call("task_get", taskId="1").text
    listed.call("task_update", taskId="1", status="deleted")
    assert listed.call("task_list").text == "2. [ ] Write"
    assert "Created task 3" in listed.call("task_create", subject="More").text, "no id is used twice"
    kinds = {kind for kind, _ in listed.events}
    assert kinds == {"todos"} and len(listed.events) == 5, "each change is an event, looking is none"


def test_a_whole_list_replaces_the_old_one() -> None:
    listed = Listed()
    listed.call("todo_write", todos=[{"content": "Look", "status": "pending"}])
    again = listed.call("todo_write", todos=[{"content": "Write", "status": "completed", "activeForm": "x"}])
    assert "Look" not in again.text and "[x] Write" in again.text
    assert listed.call("todo_write", todos=[]).text == "The list is empty."


def test_the_list_of_a_journal_is_taken_as_far_as_it_is_one() -> None:
    kept = [{"id": "4", "content": "Look", "status": "pending", "description": "x"}, {"id": "5"}, "no"]
    listed = Listed()
    tools = {tool.name: tool for tool in todo_tools(TODO_TOOLS, listed.record, kept)}
    assert [kind for kind, _ in listed.events] == ["todos"], "the new journal has it too"
    assert asyncio.run(tools["task_list"].call({})).text == "4. [ ] Look"
    assert "Created task 5" in asyncio.run(tools["task_create"].call({"subject": "More"})).text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("todo_write", {}),
        ("todo_write", {"todos": "Look"}),
        ("todo_write", {"todos": [{"content": "x", "status": "lost"}]}),
        ("todo_write", {"todos": [{"content": "", "status": "pending"}]}),
        ("todo_write", {"todos": [{"content": "x" * 1_001, "status": "pending"}]}),
        ("todo_write", {"todos": [{"content": "x", "status": "pending"}] * (MOST_TODOS + 1)}),
        ("task_create", {"subject": 3}),
        ("task_update", {"taskId": "1"}),
        ("task_get", {"taskId": "nine"}),
        ("task_list", {"all": True}),
    ],
)
def test_wrong_arguments_are_told_and_change_nothing(name: str, arguments: Any) -> None:
    listed = Listed()
    result = listed.call(name, **arguments)
    assert result.is_error and result.text and "takes ." not in result.text
    assert not listed.events


def test_the_list_takes_no_more_than_it_may() -> None:
    listed = Listed()
    listed.call("todo_write", todos=[{"content": "x", "status": "pending"}] * MOST_TODOS)
    assert not listed.call("task_update", taskId="1", status="completed").is_error
    assert listed.call("task_create", subject="More").text.endswith("the most it takes: delete some.")
