"""The tools that a server lists: all pages, without those whose schema the protocol does not know.

The SDK refuses a page whole if one tool of it is at fault. So its answer is looked at on the way in: a loose
input schema is made an object, and a tool that is at fault all the same is left out, with a warning.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp import ClientSession, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, JSONRPCResponse, PaginatedRequestParams, Tool
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from subagent_server.domain.errors import shorten
from subagent_server.toolkit.mcp_servers.input_schema import unpacked
from subagent_server.toolkit.mcp_servers.reasons import ServerTrouble, first_fault

_MOST_PAGES = 1_000
_LIST = "tools/list"
_OLDEST_JUDGED = "2025-11-25"
"""The version by which the SDK judges a session that has agreed on none."""


async def all_tools(session: ClientSession) -> list[Tool]:
    """Return the tools of all pages; a server without tools has none.

    Raises:
        ServerTrouble: the pages do not end.
    """
    tools: list[Tool] = []
    cursors: set[str] = set()
    cursor: str | None = None
    while True:
        try:
            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND and not tools:
                return []
            raise
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if cursor in cursors or len(cursors) >= _MOST_PAGES:
            raise ServerTrouble("lists its tools in pages that do not end")
        cursors.add(cursor)


class RepairedListing:
    """A transport around another one, whose pages of tools hold what the protocol knows.

    `version` returns the version of the protocol once it is agreed on. `faults` are the tools that were left
    out, each with the reason, as the end of a sentence that begins with the name of the server.
    """

    def __init__(
        self, transport: AbstractAsyncContextManager[Any], version: Callable[[], str | None]
    ) -> None:
        self.faults: list[str] = []
        self._transport = transport
        self._version = version

    async def __aenter__(self) -> Any:
        """Open the transport. Raises as that does."""
        received, sent = await self._transport.__aenter__()
        return _Received(received, self._repair), sent

    async def __aexit__(self, *error: Any) -> Any:
        """Close the transport."""
        return await self._transport.__aexit__(*error)

    def _repair(self, message: Any) -> None:
        """Make a page of tools fit, in place. Every other message stays as it is."""
        response = message.message if isinstance(message, SessionMessage) else None
        page = response.result if isinstance(response, JSONRPCResponse) else {}
        listed = page.get("tools")
        if not isinstance(listed, list):
            return
        page["tools"] = [_with_object(tool) for tool in listed]
        if self._fault(page) is None or self._fault({**page, "tools": []}) is not None:
            return
        faults = [(tool, self._fault({**page, "tools": [tool]})) for tool in page["tools"]]
        page["tools"] = [tool for tool, fault in faults if fault is None]
        self.faults += [_left_out(tool, fault) for tool, fault in faults if fault is not None]

    def _fault(self, page: dict[str, Any]) -> str | None:
        try:
            validate_server_result(_LIST, self._version() or _OLDEST_JUDGED, page)
        except ValidationError as error:
            return first_fault(error)
        except (KeyError, ValueError):
            pass  # a version without rules
        return None


class _Received:
    """A stream of received messages that `see` looks at first."""

    def __init__(self, stream: Any, see: Callable[[Any], None]) -> None:
        self._stream = stream
        self._see = see

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> "_Received":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> "_Received":
        return self

    async def __anext__(self) -> Any:
        message = await self._stream.__anext__()
        self._see(message)
        return message


def _with_object(tool: Any) -> Any:
    """Return a tool whose input schema, if it is empty, missing or without a type, is one of an object."""
    schema = tool.get("inputSchema") if isinstance(tool, dict) else 0
    if schema is None:
        return {**tool, "inputSchema": {"type": "object"}}
    return (
        {**tool, "inputSchema": {"type": "object", **unpacked(schema)}} if isinstance(schema, dict) else tool
    )


def _left_out(tool: Any, fault: str) -> str:
    name = shorten(str(tool.get("name"))) if isinstance(tool, dict) else "without a name"
    return f"offers a tool that is left out, because the protocol does not know its form: {name} ({fault})"
