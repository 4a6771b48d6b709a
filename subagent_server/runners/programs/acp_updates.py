"""The updates of a session of the Agent Client Protocol as events of the run."""

import time
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.json_rpc import Message, members, text_of

_DONE = frozenset({"completed", "failed"})
_SILENT = frozenset(
    {"user_message_chunk", "available_commands_update", "current_mode_update", "session_info_update"}
)
_LONGEST_TEXT = 4 << 20
"""Characters of one text that is put together from its parts."""


class AcpUpdates:
    """Tells `ProgramEvents` what an agent does. Nothing counts before `begin`, because
    agents repeat old conversations.

    `bound` is called once, when the calls of turn `most_turns` have ended and another turn would follow. The
    protocol does not tell of turns, so calls that are open at the same time are taken for one.
    """

    def __init__(
        self,
        events: ProgramEvents,
        most_turns: int,
        bound: Callable[[], None],
        name: Callable[[Message], str],
    ) -> None:
        """`name` returns the tool of a call."""
        self.cost_usd: Decimal | None = None
        self._events = events
        self._name = name
        self._most_turns = most_turns
        self._bound = bound
        self._has_begun = False
        self._last = time.monotonic()
        self._parts: list[str] = []
        self._size = 0
        self._is_thought = False
        self._open: dict[str, str] = {}
        self._closed: set[str] = set()
        self._rounds = 0

    @property
    def quiet_seconds(self) -> float:
        """How long ago the last update came."""
        return time.monotonic() - self._last

    def begin(self) -> None:
        """From here on updates are of this run."""
        self._has_begun = True

    def take(self, update: Message) -> None:
        """Take an update."""
        self._last = time.monotonic()
        self._events.progress()
        kind = text_of(update.get("sessionUpdate"))
        if not self._has_begun or kind in _SILENT:
            return
        match kind:
            case "agent_message_chunk" | "agent_thought_chunk":
                self._add(text_of(members(update.get("content")).get("text")), kind == "agent_thought_chunk")
            case "tool_call" | "tool_call_update":
                self._call(update)
            case "usage_update":
                cost = members(update.get("cost"))
                if cost.get("currency") == "USD":
                    self.cost_usd = money(cost.get("amount"))
            case _:
                self.flush()
                self._events.other(kind, update)

    def flush(self) -> None:
        """Tell the text that has been put together."""
        text, self._parts, self._size = "".join(self._parts), [], 0
        if self._is_thought:
            self._events.think(text)
        else:
            self._events.say(text)

    def asked(self, call: Message) -> tuple[str, Any]:
        """Take a tool call for which permission is asked; return its tool and what to show of it."""
        self.flush()
        self._begun(call)
        return self._name(call), shown(call)

    def denied(self, call: Message, reason: str) -> None:
        """Close a call that was not allowed: not every agent tells of its end."""
        self._end(text_of(call.get("toolCallId")), reason, is_error=True)

    def _add(self, text: str, is_thought: bool) -> None:
        if is_thought != self._is_thought:
            self.flush()
            self._is_thought = is_thought
        if self._size < _LONGEST_TEXT:
            self._parts.append(text)
            self._size += len(text)

    def _call(self, update: Message) -> None:
        self.flush()
        call_id = text_of(update.get("toolCallId"))
        if call_id in self._closed:
            return
        self._begun(update)
        if update.get("status") in _DONE:
            self._end(call_id, texts(update), is_error=update.get("status") == "failed")

    def _end(self, call_id: str, text: str, *, is_error: bool) -> None:
        if call_id not in self._open:
            return
        self._closed.add(call_id)
        self._events.result(call_id, self._open.pop(call_id), text, is_error=is_error)
        if not self._open and self._rounds == self._most_turns:
            self._bound()

    def _begun(self, call: Message) -> None:
        call_id = text_of(call.get("toolCallId"))
        if call_id in self._open or call_id in self._closed:
            return
        if not self._open:
            self._rounds += 1
        self._open[call_id] = self._name(call)
        self._events.call(call_id, self._open[call_id], shown(call))


def tool_name(call: Message) -> str:
    """Return the tool of a call: the protocol has its kind, and some agents its name as the title."""
    title = text_of(call.get("title"))
    if title.startswith("mcp__") and " " not in title:
        return title
    return text_of(call.get("kind")) or title or "tool"


def shown(call: Message) -> Message:
    """Return what people are shown of a call: the arguments if the agent gives them, else its words."""
    raw = call.get("rawInput")
    if isinstance(raw, dict):
        return raw
    facts = {"title": call.get("title"), "locations": call.get("locations"), "text": texts(call)}
    return {name: value for name, value in facts.items() if value}


def texts(call: Message) -> str:
    """Return the text of a call: what it printed, or the change that it makes."""
    content = call.get("content")
    parts = []
    for part in content if isinstance(content, list) else []:
        block = members(part)
        if block.get("type") == "diff":
            parts.append(f"{text_of(block.get('path'))}:\n{text_of(block.get('newText'))}")
        else:
            parts.append(text_of(members(block.get("content")).get("text")))
    return "\n".join(part for part in parts if part)


def money(value: Any) -> Decimal | None:
    """Return an amount of money, if it is one."""
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount >= 0 else None
