"""The calls of one program: answered by the run's own sessions, remembered with their outcomes.

A call is in the journal before it begins, so a continuation knows which calls a program has made.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from subagent_server.toolkit.ask_parent import AskParent
from subagent_server.toolkit.code_mode.catalogue import Catalogue, ToolFunction
from subagent_server.toolkit.code_mode.channel import Reply
from subagent_server.toolkit.code_mode.clock import ProgramClock
from subagent_server.toolkit.code_mode.literals import misfits
from subagent_server.toolkit.code_mode.values import preview, value_of
from subagent_server.toolkit.mcp_servers.reasons import ServerTrouble
from subagent_server.toolkit.mcp_servers.results import Attachments
from subagent_server.toolkit.mcp_servers.tool import McpTool
from subagent_server.toolkit.run_context import RunContext
from subagent_server.toolkit.tool import ContentBlock

MOST_MEDIA = 20
"""How many images and documents of its tools the model sees after a program."""
_MOST_LISTED = 50
_SHOWN = 300
_UNKNOWN = "it is not known what it did: the program ended before its answer"
_KEPT = 2_000
_CHECK = "check"
"""By this name the part of a program that is ours asks whether literal arguments are wrong."""
_LITERAL_CALLS = TypeAdapter(list[tuple[str, dict[str, Any]]])
_LOOK_UPS = {"help": Catalogue.help, "search_tools": Catalogue.search}
"""What a program asks about its tools, which is no call of one."""


@dataclass(frozen=True)
class Functions:
    """The functions of all programs of a run, with their handlers. `ask` is None if it may not ask."""

    catalogue: Catalogue
    tools: Mapping[tuple[str, str], McpTool]
    attachments: Attachments
    ask: AskParent | None = None

    def by_name(self) -> dict[str, ToolFunction]:
        """Return the functions of tools by their names with the namespace."""
        return {each.qualified: each for each in self.catalogue.functions}

    def types(self) -> list[str]:
        """Return the names of the types of objects that the stubs define."""
        return sorted({name for each in self.catalogue.functions for name in each.stub.objects})

    def table(self) -> list[Any]:
        """Return what a program needs to make its functions."""
        return [
            [
                each.namespace,
                each.name,
                self.catalogue.flat.get(each.name) is each,
                [[parameter.name, parameter.key, parameter.required] for parameter in each.parameters],
                each.stub.takes_more,
            ]
            for each in self.catalogue.functions
        ]


@dataclass
class _Call:
    """One call, as a failed program lists it."""

    number: int
    function: str
    arguments: str
    outcome: str = _UNKNOWN

    def __str__(self) -> str:
        return f"{self.number}. {self.function}({self.arguments}): {self.outcome}"


@dataclass
class ProgramCalls:
    """Answers the calls of program `number`; `keep` writes a line about each into its record."""

    number: int
    functions: Functions
    run: RunContext
    clock: ProgramClock
    keep: Callable[[dict[str, Any]], None]
    media: list[ContentBlock] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _made: list[_Call] = field(default_factory=list)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _checked: bool = False

    def __post_init__(self) -> None:
        self._by_name = self.functions.by_name()

    def listed(self) -> str:
        """Return the calls that have been made, a line each, for the model."""
        lines = [str(call) for call in self._made[:_MOST_LISTED]]
        if len(self._made) > _MOST_LISTED:
            lines.append(f"... and {len(self._made) - _MOST_LISTED} more calls")
        return "\n".join(lines)

    async def answer(self, function: str, arguments: dict[str, Any]) -> Reply:
        """Answer one call.

        Raises:
            RunOver: the run has ended.
            RunRefused: no answer of the parent came, and this ends the run.
        """
        if function in _LOOK_UPS:
            look_up = _LOOK_UPS[function]
            about = str(arguments.get("about", ""))
            return {"value": await asyncio.to_thread(look_up, self.functions.catalogue, about)}
        if function == _CHECK:
            return await self._misfits(arguments)
        work = self._work(function, arguments)
        if work is None:
            return {"error": f"There is no function {function[:_SHOWN]!r} here."}
        self.run.checkpoint()
        call = self._begun(function, arguments)
        began = time.monotonic()
        reply: Reply = {"error": _UNKNOWN}
        try:
            reply = await work()
            call.outcome = _outcome(reply)
        finally:
            self._ended(call, reply, time.monotonic() - began)
        return reply

    # -- the functions

    def _work(self, function: str, arguments: dict[str, Any]) -> Callable[[], Awaitable[Reply]] | None:
        """Return the handler of a call of this function, None if there is no such function."""
        if function == AskParent.name and self.functions.ask is not None:
            ask = self.functions.ask
            return lambda: self._asked(ask, arguments)
        known = self._by_name.get(function)
        return None if known is None else lambda: self._called(known, arguments)

    async def _asked(self, ask: AskParent, arguments: dict[str, Any]) -> Reply:
        """Ask the parent, one question after the other; the program's clock stands still meanwhile."""
        with self.clock.paused():
            async with self._asking:
                result = await ask.call(arguments)
        return {"error": result.text} if result.is_error else {"value": result.text}

    async def _called(self, function: ToolFunction, arguments: dict[str, Any]) -> Reply:
        tool = self.functions.tools[function.tool.server, function.tool.name]
        try:
            answer = await tool.answer(arguments)
        except ServerTrouble as trouble:
            return {"error": trouble.what}
        self.remarks += answer.remarks
        value = value_of(answer, function, self.functions.attachments)
        room = MOST_MEDIA - len(self.media)
        if len(value.media) > room:
            self.remarks.append(
                f"A program shows {MOST_MEDIA} images and documents; the others were left out."
            )
        self.media += value.media[: max(room, 0)]
        return value.reply

    async def _misfits(self, arguments: dict[str, Any]) -> Reply:
        """Judge the literal arguments of a program, once: that is enough, and not for free."""
        try:
            calls = _LITERAL_CALLS.validate_python(arguments.get("calls"))
        except ValidationError:
            return {"error": "These are no calls."}
        if self._checked:
            return {"error": "The arguments have been checked."}
        self._checked = True
        return {"value": await asyncio.to_thread(misfits, self._by_name, calls)}

    # -- the record

    def _begun(self, function: str, arguments: dict[str, Any]) -> _Call:
        shown = ", ".join(
            f"{name}={_written(value)}" for name, value in arguments.items() if value is not None
        )
        call = _Call(len(self._made) + 1, function, _cut(shown, _SHOWN))
        self._made.append(call)
        written = _written(arguments)
        facts = {
            "function": function,
            "arguments": arguments if len(written) <= _KEPT else _cut(written, _KEPT),
        }
        self.run.record("program_call", program=self.number, call=call.number, **facts)
        self.keep({"call": call.number, **facts})
        return call

    def _ended(self, call: _Call, reply: Reply, seconds: float) -> None:
        facts = {
            "isError": "error" in reply,
            "text": preview(reply, _KEPT),
            "seconds": round(seconds, 3),
        }
        self.run.record(
            "program_result", program=self.number, call=call.number, function=call.function, **facts
        )
        self.keep({"call": call.number, **facts})


def _outcome(reply: Reply) -> str:
    return f"failed: {preview(reply, _SHOWN)}" if "error" in reply else f"done: {preview(reply, _SHOWN)}"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
