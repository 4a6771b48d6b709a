"""Errors of MCP servers, worded as the end of a sentence that begins with the name of the server."""

import httpx2
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
from pydantic import ValidationError

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.sandbox.refusal import BoxRefused, PlaceRefused
from subagent_server.sandbox.server_places import NotOutside
from subagent_server.toolkit.mcp_servers.network import shown_url

_LOST = ("Connection closed", "Session terminated", "SSE stream")
"""How the SDK words a lost connection; servers use its error codes for other things as well."""
_BY_STATUS = "Server returned an error"
"""How it words every HTTP status that it has no other words for."""


class ServerTrouble(Exception):
    """A failure of a server. `what` ends a sentence that begins with its name."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class CallTimedOut(ServerTrouble):
    """It did not answer a call in the time for one."""


class NoPlace(ServerTrouble):
    """The box that it works in could not be made, twice, for a reason that passes."""


class ServerLost(ServerTrouble):
    """The server is not there any more."""


def means_loss(error: MCPError, status: str | None) -> bool:
    """Whether no later call can succeed either; a server that was started anew knows no old session."""
    if error.message.startswith(_BY_STATUS):
        return "session" in (status or "").lower()
    return _says_lost(error) and error.code in (CONNECTION_CLOSED, INVALID_REQUEST)


def with_status(error: MCPError, status: str | None) -> str:
    """Return the message of an error; the SDK leaves out the HTTP status and the body."""
    return f"it {status}" if status and error.message.startswith(_BY_STATUS) else error.message


def why_not_connected(
    error: BaseException | None, definition: ServerDefinition, trouble: str | None
) -> ServerTrouble:
    """Return why a connection failed; `trouble` is the report of its transport."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None or (isinstance(error, MCPError) and _says_lost(error)):
        return ServerTrouble(trouble or "ended the conversation")
    by_status = isinstance(error, httpx2.HTTPStatusError | MCPError)
    if definition.type != "stdio" and by_status and trouble:
        return ServerTrouble(trouble)
    if isinstance(error, BoxRefused) and error.passes:
        return NoPlace(f"could not be started: its box cannot be made ({error.reason})")
    return ServerTrouble(_reason(error, definition))


def first_fault(error: ValidationError) -> str:
    """Return the first fault, with its location."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"[:300]


def _says_lost(error: MCPError) -> bool:
    return error.message.startswith(_LOST)


def _reason(error: BaseException, definition: ServerDefinition) -> str:
    match error:
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            return f"could not be started: {_why_not_started(error, definition.command or '')}"
        case NotOutside():
            return f"could not be started outside of every box (sandbox: false): {error.why}"
        case BoxRefused():
            return f"could not be started: its box cannot be made ({error.reason})"
        case PlaceRefused():
            return f"cannot work in its box: {error.reason}"
        case ServerTrouble():
            return error.what
        case MCPError():
            return f"refused to connect: {error.message}"
        case ValidationError():
            return f"answered what the protocol does not know ({first_fault(error)})"
    if definition.type == "stdio":
        return f"could not be started: {error}"
    place = shown_url(definition.url or "")
    return f"could not be reached at {place}: {str(error) or type(error).__name__}"


def _why_not_started(error: OSError, command: str) -> str:
    if isinstance(error, FileNotFoundError) and error.filename in (None, command):
        return f"there is no program {command!r} here or in PATH"
    return f"{error.filename or command}: {error.strerror}"
