"""The items of a Codex thread as events of the run.

An item is a message, a thought or a tool call. A command that Codex's own sandbox refuses to start does not
become an item. Only the raw response has it, so the raw calls are compared with the items.
"""

import json
from typing import Any

from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.json_rpc import Message, members, text_of

SHELL, PATCH = "shell", "apply_patch"
_BAD = frozenset({"failed", "declined"})
_UNSEEN = frozenset({"userMessage", "contextCompaction", "enteredReviewMode", "exitedReviewMode"})
_MOST_RAW = 1_000


def mcp_tool(server: str, tool: str) -> str:
    """Return the name of a tool of an MCP server, as agent files have it."""
    return f"mcp__{server}__{tool}"


class CodexItems:
    """Tells `ProgramEvents` of items. `changes` are the files of each open patch."""

    def __init__(self, events: ProgramEvents) -> None:
        self.changes: dict[str, list[str]] = {}
        self._events = events
        self._begun: dict[str, str] = {}
        self._raw: dict[str, Message] = {}

    def started(self, item: Message) -> None:
        """Take the start of an item: a tool call begins."""
        kind, item_id = text_of(item.get("type")), text_of(item.get("id"))
        if kind in _UNSEEN or kind in ("agentMessage", "reasoning", "plan"):
            return
        tool, arguments = _call(kind, item)
        if tool == PATCH:
            self.changes[item_id] = arguments["paths"]
        self._raw.pop(item_id, None)
        self._begun[item_id] = tool
        self._events.call(item_id, tool, arguments)

    def completed(self, item: Message) -> bool:
        """Take the end of an item. Return whether it was a tool call."""
        kind, item_id = text_of(item.get("type")), text_of(item.get("id"))
        if kind == "agentMessage":
            self._events.say(text_of(item.get("text")))
        elif kind == "reasoning":
            parts = [*_texts(item.get("summary")), *_texts(item.get("content"))]
            self._events.think("\n".join(parts))
        elif kind not in _UNSEEN and kind != "plan":
            if item_id not in self._begun:
                self.started(item)
            tool = self._begun.pop(item_id)
            self.changes.pop(item_id, None)
            code = item.get("exitCode")
            self._events.result(
                item_id,
                tool,
                _result(kind, item),
                is_error=item.get("status") in _BAD or bool(item.get("error")),
                exit_code=code if isinstance(code, int) else None,
            )
            return True
        return False

    def raw(self, item: Message) -> None:
        """Take an item of the raw response: a call that never became an item is recorded with its answer."""
        call_id = text_of(item.get("call_id"))
        if item.get("type") == "function_call" and len(self._raw) < _MOST_RAW:
            self._raw[call_id] = item
        elif item.get("type") == "function_call_output":
            call = self._raw.pop(call_id, None)
            if call is None:
                return
            name = text_of(call.get("name"))
            self._events.call(call_id, name, _parsed(call.get("arguments")))
            self._events.result(call_id, name, "\n".join(_texts(item.get("output"))), is_error=False)


def _call(kind: str, item: Message) -> tuple[str, Any]:
    """Return the tool of an item, and its arguments."""
    match kind:
        case "commandExecution":
            return SHELL, {"command": item.get("command"), "cwd": item.get("cwd")}
        case "fileChange":
            changes = item.get("changes")
            paths = [text_of(members(c).get("path")) for c in changes] if isinstance(changes, list) else []
            return PATCH, {"paths": paths, "changes": changes}
        case "mcpToolCall":
            tool = mcp_tool(text_of(item.get("server")), text_of(item.get("tool")))
            return tool, item.get("arguments")
        case "webSearch":
            return "web_search", {"query": item.get("query")}
        case _:
            return kind, {key: value for key, value in item.items() if key not in ("type", "id", "status")}


def _result(kind: str, item: Message) -> str:
    match kind:
        case "commandExecution":
            return text_of(item.get("aggregatedOutput")) or text_of(item.get("status"))
        case "mcpToolCall":
            error = members(item.get("error"))
            if error:
                return text_of(error.get("message"))
            return "\n".join(_texts(members(item.get("result")).get("content")))
        case _:
            return text_of(item.get("status"))


def _texts(value: Any) -> list[str]:
    """Return the texts of a text, or of a list of texts and blocks."""
    parts = value if isinstance(value, list) else [value]
    texts = [text_of(part) or text_of(members(part).get("text")) for part in parts]
    return [text for text in texts if text]


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
