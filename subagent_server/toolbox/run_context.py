"""The run as its runner sees it. The worker implements it; a runner reaches no file of the run."""

import json
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from subagent_server.run.errors import CallerError, RunRefused, shorten, visible
from subagent_server.run.records import Usage


class RunOver(Exception):
    """The run was ended from outside; nothing more may be started for it."""


@dataclass(frozen=True)
class Reply:
    """The answer to a question; None means that it did not come in time."""

    message_id: str
    answer: str | None


class RunContext(Protocol):
    """Everything that a runner and its tools may ask of their run."""

    retry_reason: str | None
    """Why the model request under way has failed so far: a timeout names it."""

    @property
    def run_id(self) -> str:
        """The id of the run."""

    def record(self, kind: str, **facts: Any) -> None:
        """Append an event to the journal. A disk that refuses is a warning, not an error."""

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        """Append a message to the transcript, so that it lasts before a tool begins.

        `stop_reason` is why the model ended a message of its own.
        """

    def adopt(self, messages: list[dict[str, Any]]) -> None:
        """Begin the transcript with the conversation of the run that this one continues."""

    def checkpoint(self) -> None:
        """Called before every model and tool call.

        Raises:
            RunOver: the run has ended meanwhile.
        """

    def working(self) -> AbstractContextManager[None]:
        """Mark a stretch as working time, which `timeoutSeconds` bounds. Stretches may overlap."""

    def waiting(self) -> AbstractContextManager[None]:
        """Suspend the stretch of working time that this is inside."""

    @property
    def waits_for_others(self) -> bool:
        """Whether a question of the run is open, or a run that it has started is live."""

    def session_opened(self, session_id: str) -> None:
        """Keep the name of the conversation that a program has begun, so that it can be resumed.

        Raises:
            SubagentError: it cannot be written.
        """

    def model_call(self, spent: Usage, extra: Decimal = Decimal(0)) -> AbstractAsyncContextManager[None]:
        """Mark a model call, its `usage` event included: working time that a stop lets end within the grace.

        `spent` is what the run has used so far. `extra` is what the call may cost besides its tokens, in
        USD. Entering waits while calls of other runs may need the rest of
        a budget.

        Raises:
            RunOver: the run has ended while it waited.
            RunRefused: `budget`, if the money of the run, or of a run above it, is spent.
        """

    async def check_budget(self, spent: Usage) -> None:
        """Called in a model call before its request is sent again. `spent` is what the run has used so far.

        Raises:
            RunRefused: `budget`, if the money of the run, or of a run above it, is spent.
        """

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run ends meanwhile.

        Raises:
            RunOver.
        """

    async def spare(self, seconds: float) -> None:
        """Pause for a busy API: the clock of working time stops meanwhile.

        Raises:
            RunOver.
        """

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        """Ask the parent and wait for the answer; the wait does not count as working time.

        Raises:
            BadArgument: the question cannot be asked in this form.
            RunRefused: no answer came and the agent says that this fails the run (`ask_timeout`).
            RunOver: the run ended while it waited.
        """


# -- Slowing down together when an API is busy. The worker implements `Pace` for its runner.


LONGEST_WAIT_SECONDS = 600.0
"""No run waits longer for a busy API at one time, whatever the API asks for."""


class Pace(Protocol):
    """The common pace of all runs of a root that call the same API with the same key."""

    def hold(self) -> float:
        """Return the seconds to wait before the next call; 0 if the run may call now."""

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Report to the other runs that the API was busy, and return the seconds to wait before a retry.

        `seconds` is the wait that this run would choose by itself; `asked` is true if the API named it.
        """


# -- Permission for a tool call: a question to the parent or a person; no answer in time means no.


ONCE, FOR_THIS_RUN, NO = "once", "for this run", "no"
_YES = frozenset({ONCE, "yes", "y", "allow", "ok", "1"})
_LONGEST_ARGUMENTS = 4_000
_LONGEST_NAME = 200


_EDITOR = "str_replace_based_edit_tool"
_EDITS = frozenset({"write", "edit", "multiedit"})


class Named(Protocol):
    """A tool of the built-in loop. One of an MCP server has `answers_to`, as names in `tools` mean it."""

    name: str


def is_asked(names: Collection[str], tool: Named, arguments: dict[str, Any]) -> bool:
    """Whether the key `ask` of an agent, with these names, means this call of a tool of the built-in loop."""
    return any(_means(name.strip().lower(), tool, arguments) for name in names)


def name_asked(tool: str, arguments: dict[str, Any]) -> str:
    """Return the name for which a yes to a question counts: a yes to viewing files allows no writing."""
    return f"{tool} (view)" if tool == _EDITOR and arguments.get("command") == "view" else tool


def _means(name: str, tool: Named, arguments: dict[str, Any]) -> bool:
    if tool.name == _EDITOR and (name in _EDITS or name == "read"):
        return (arguments.get("command") == "view") == (name == "read")
    answers_to = getattr(tool, "answers_to", None)
    return name in ("*", tool.name) or (answers_to is not None and answers_to(name))


def check_asked(names: Collection[str], tools: Collection[Named]) -> None:
    """Refuse names in `ask` that mean none of these tools: nobody could be asked.

    Raises:
        RunRefused: `config`.
    """
    calls: list[dict[str, Any]] = [{}, {"command": "view"}]
    lacking = [
        name for name in names if not any(is_asked([name], tool, call) for tool in tools for call in calls)
    ]
    if lacking:
        raise RunRefused(
            "config",
            f"ask names {', '.join(map(shorten, lacking[:10]))}, for which nobody can be asked: the run has "
            "no such tool, the API calls it, or programs of code mode do.",
            "Name tools of `tools`; in code mode, put tools of MCP servers into `excludedTools`.",
        )


@dataclass(frozen=True)
class Permission:
    """Whether a call is allowed; if not, `reason` is for the asker."""

    allowed: bool
    reason: str = ""


class Permissions:
    """Asks for each call of a tool, unless the tool was allowed for the run. Used outside of working time."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._allowed: set[str] = set()

    async def ask(self, tool: str, arguments: Any, why: str = "", *, lasts: bool = True) -> Permission:
        """Ask whether `tool` may be called. Any answer except a clear yes denies, and is the reason.

        Only a yes that `lasts` can be one for the run: what widens what the tools may do is asked each time.

        Raises:
            RunRefused: no answer came and the agent says that this fails the run (`ask_timeout`).
            RunOver: the run ended meanwhile.
        """
        if lasts and tool in self._allowed:
            return Permission(allowed=True)
        try:
            with self._run.working():  # what its wait suspends
                choices = [ONCE, FOR_THIS_RUN, NO] if lasts else [ONCE, NO]
                reply = await self._run.ask(_question(tool, arguments, why), choices)
        except CallerError as error:
            return self._denied(tool, f"Nobody could be asked: {error.sentence}")
        if reply.answer is None:
            return self._denied(tool, "Nobody answered in time, so it was not allowed.")
        answer = reply.answer.strip().casefold().rstrip(".!")
        if lasts and answer == FOR_THIS_RUN:
            self._allowed.add(tool)
        if answer == FOR_THIS_RUN or answer in _YES:
            return Permission(allowed=True)
        reason = "" if answer == NO else f" They said: {reply.answer.strip()}"
        return self._denied(tool, f"The parent did not allow it.{reason}")

    def _denied(self, tool: str, reason: str) -> Permission:
        self._run.record("warning", message=f"{visible(tool[:_LONGEST_NAME])} was denied. {reason}")
        return Permission(allowed=False, reason=reason)


def _question(tool: str, arguments: Any, why: str) -> str:
    """Return the question. What it quotes comes from a model, so its control characters are made visible."""
    name = visible(tool[:_LONGEST_NAME])
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    shown = visible(text[:_LONGEST_ARGUMENTS])
    hidden = len(text) - _LONGEST_ARGUMENTS
    more = f" … ({hidden:,} characters more)" if hidden > 0 else ""
    reason = f"\n{visible(why[:1_000])}" if why.strip() else ""
    return f"May it use {name}?{reason}\n{shown}{more}"
