"""A server over the whole of a run: connected, listed, called, restarted once if it dies, closed."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

import httpx2
from mcp import Client, ClientSession, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    JSONRPCResponse,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    Tool,
)
from mcp_types.methods import validate_server_result
from pydantic import TypeAdapter, ValidationError

from subagent_server import __version__
from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.errors import shorten
from subagent_server.run.files import Directory
from subagent_server.run.records import first_problem
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.file_watch import CommandWatch
from subagent_server.sandbox.readable import BoxRefused, PathRefused
from subagent_server.sandbox.server_locations import NotOutside, ServerStart
from subagent_server.toolbox.mcp.input_schemas import unpacked
from subagent_server.toolbox.mcp.server_log import ServerLog
from subagent_server.toolbox.mcp.transport import NetworkTransport, StdioTransport, shown_url

# -- Errors of MCP servers, worded as the end of a sentence that begins with the name of the server.


_LOST = ("Connection closed", "Session terminated", "SSE stream")
"""The SDK's text for a lost connection; servers use its error code for other things as well."""
_BY_STATUS = "Server returned an error"
"""Its text for every HTTP status without a text of its own."""
_NO_MESSAGE = "Failed to parse JSON response"
"""How it begins what names its own types."""
_SENT_NONE = "sent what is no message of the protocol"


class ServerTrouble(Exception):
    """A failure of a server. Its text ends a sentence that begins with the name of the server."""


class CallTimedOut(ServerTrouble):
    """It did not answer a call in the time for one."""


class NoBox(ServerTrouble):
    """The box that it works in could not be made, twice, for a reason that passes."""


class ServerLost(ServerTrouble):
    """The server is not there any more."""


def means_loss(error: MCPError, status: str | None) -> bool:
    """Whether no later call can succeed either; a server that was started anew knows no old session.

    It reports that in the body of an HTTP error, in words of its own or as an error of the protocol.
    """
    if status and "session" in status.lower() and error.code != INVALID_PARAMS:
        return True
    return _says_lost(error) and error.code in (CONNECTION_CLOSED, INVALID_REQUEST)


def with_status(error: MCPError, status: str | None) -> str:
    """Return the message of an error: the SDK leaves out the HTTP status, and names its types."""
    if error.message.startswith(_NO_MESSAGE):
        return f"it {status or _SENT_NONE}"
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
    kind = NoBox if isinstance(error, BoxRefused) and error.passes else ServerTrouble
    return kind(_reason(error, definition))


def _says_lost(error: MCPError) -> bool:
    return error.message.startswith(_LOST)


def _reason(error: BaseException, definition: ServerDefinition) -> str:
    match error:
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            return f"could not be started: {_why_not_started(error, definition.command)}"
        case NotOutside():
            return f"could not be started outside of every box (sandbox: false): {error.why}"
        case BoxRefused():
            return f"could not be started: its box cannot be made ({error.reason})"
        case PathRefused():
            return f"cannot work in its box: {error.reason}"
        case ServerTrouble():
            return str(error)
        case MCPError() if error.message.startswith(_NO_MESSAGE):
            return _SENT_NONE
        case MCPError():
            return f"refused to connect: {error.message}"
        case ValidationError():
            return f"answered what the protocol does not know ({first_problem(error)[:300]})"
    if definition.type == "stdio":
        return f"could not be started: {error}"
    url = shown_url(definition.url or "")
    return f"could not be reached at {url}: {str(error) or type(error).__name__}"


def _why_not_started(error: OSError, command: str | None) -> str:
    if command is None:  # the errors of a connection are of another class
        return f"the certificates that SSL_CERT_FILE names cannot be read ({error.strerror})"
    if isinstance(error, FileNotFoundError) and error.filename in (None, command):
        return f"there is no program {command!r} here or in PATH"
    return f"{error.filename or command}: {error.strerror}"


# -- the tools that a server lists: all pages, without those whose schema the protocol does not know
#
# The SDK refuses a page whole if one tool of it is at fault. So its answer is looked at on the way in: a
# loose input schema is made an object, and a tool that is at fault all the same is left out, with a warning.

_MOST_PAGES, _MOST_TOOLS, _MOST_LISTED = 1_000, 5_000, 64 << 20
_MOST_BLOCKS = 1_000
"""Of one result: each takes a thousand times the memory of the shortest, and may become a file."""
_MOST_UNSENT, _FLOOD_SECONDS = 1_000, 0.1
"""Each answer to a request of a server waits in a task: if it reads none, 30 MiB more a second."""
_LIST = "tools/list"
_OLDEST_JUDGED = "2025-11-25"
"""The version by which the SDK judges a session that has agreed on none."""


async def all_tools(session: ClientSession) -> list[Tool]:
    """Return the tools of all pages; a server without tools has none.

    Raises:
        ServerTrouble: the pages do not end, or hold more than a worker has room for.
    """
    tools: list[Tool] = []
    characters = 0
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
        if len(tools) > _MOST_TOOLS:
            raise ServerTrouble(f"lists more than {_MOST_TOOLS:,} tools")
        characters += len(page.model_dump_json())
        if characters > _MOST_LISTED:
            raise ServerTrouble(f"lists its tools in more than {_MOST_LISTED >> 20} MiB")
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if cursor in cursors or len(cursors) >= _MOST_PAGES:
            raise ServerTrouble("lists its tools in pages that do not end")
        cursors.add(cursor)


class RepairedListing:
    """A transport around another one, whose pages of tools hold what the protocol knows, whose results have a
    bounded number of blocks, and which takes no more from a server that does not read answers.

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
        outward = _Sent(sent)
        return _Received(received, self._repair, outward), outward

    async def __aexit__(self, *error: Any) -> Any:
        """Close the transport."""
        return await self._transport.__aexit__(*error)

    def _repair(self, message: Any) -> None:
        """Make a page of tools fit, and bound the blocks of a result, in place. All else stays as it is."""
        response = message.message if isinstance(message, SessionMessage) else None
        page = response.result if isinstance(response, JSONRPCResponse) else {}
        blocks = page.get("content")
        if isinstance(blocks, list) and len(blocks) > _MOST_BLOCKS:
            left_out = f"[{len(blocks) - _MOST_BLOCKS:,} more blocks are left out]"
            blocks[_MOST_BLOCKS:] = [{"type": "text", "text": left_out}]
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
            return first_problem(error)[:300]
        except (KeyError, ValueError):
            pass  # a version without rules
        return None


class _Stream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


class _Sent(_Stream):
    """A stream of messages to a server: `unsent` of them wait until it takes them."""

    unsent = 0

    async def send(self, message: Any) -> None:
        self.unsent += 1
        try:
            await self._stream.send(message)
        finally:
            self.unsent -= 1


class _Received(_Stream):
    """A stream of messages of a server that `see` looks at first; none comes while too many wait for it."""

    def __init__(self, stream: Any, see: Callable[[Any], None], outward: _Sent) -> None:
        super().__init__(stream)
        self._see = see
        self._outward = outward

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while self._outward.unsent > _MOST_UNSENT:
            await asyncio.sleep(_FLOOD_SECONDS)
        message = await self._stream.__anext__()
        self._see(message)
        return message


def _with_object(tool: Any) -> Any:
    """Return a tool whose input schema, if it is empty, missing or without a type, is one of an object."""
    schema = tool.get("inputSchema") if isinstance(tool, dict) else 0
    if schema is None:
        return {**tool, "inputSchema": {"type": "object"}}
    if not isinstance(schema, dict):
        return tool
    return {**tool, "inputSchema": {"type": "object", **unpacked(schema)}}


def _left_out(tool: Any, fault: str) -> str:
    name = shorten(str(tool.get("name"))) if isinstance(tool, dict) else "without a name"
    return f"offers a tool that is left out, because the protocol does not know its form: {name} ({fault})"


# -- one session
#
# The SDK wants a client to be left by the task that entered it, so that task owns it; calls come from any.

Mode = Literal["auto", "legacy"]

_ME = Implementation(name="subagent-server", title="Subagent server", version=__version__)
_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_HURRY_SECONDS = 0.2
_END_SECONDS = 10.0

for _name in ("mcp", "client", "httpx2", "httpcore2"):  # this package reports their failures itself
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class ServerSession:
    """One session with a server. `open` it once; then `call`, until `is_lost`; `aclose` in any case."""

    def __init__(
        self, definition: ServerDefinition, starting: Callable[[], ServerStart], log: ServerLog, mode: Mode
    ) -> None:
        self._client: ClientSession | None = None
        self._log = log
        self._mode = mode
        self._definition = definition
        self._transport = (
            StdioTransport(starting, log) if definition.type == "stdio" else NetworkTransport(definition)
        )
        self.listing = RepairedListing(
            self._transport, lambda: None if self._client is None else self._client.protocol_version
        )
        self._leave = asyncio.Event()
        self._is_decided = asyncio.Event()
        self._tools: list[Tool] | None = None
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    async def open(self) -> list[Tool]:
        """Connect and list all tools.

        Raises:
            ServerTrouble: the server cannot be used.
        """
        self._task = asyncio.create_task(self._live())
        await self._is_decided.wait()
        if self._tools is None:
            raise self._trouble(self._failure)
        return self._tools

    def remedy(self, words: str) -> str:
        """Return what to do if it failed with these words, as a part of a sentence; empty if unknown."""
        return self._transport.remedy(words) if isinstance(self._transport, StdioTransport) else ""

    @property
    def ended_itself(self) -> bool:
        """Whether it is a program that has run and ended."""
        return self._definition.type == "stdio" and self._transport.trouble is not None

    @property
    def is_lost(self) -> bool:
        """Whether no call can reach the server any more."""
        return self._lost or self._transport.over.is_set() or self._task is None or self._task.done()

    async def call(self, tool: str, arguments: dict[str, object], seconds: float) -> CallToolResult:
        """Call a tool and return its result, whatever it is.

        Raises:
            ServerLost: the server ended during the call, so what the call did is unknown.
            ServerTrouble: it refused the call, or did not answer in time.
        """
        assert self._client is not None, "open comes first"
        self._transport.trouble = None if self._definition.type != "stdio" else self._transport.trouble
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(seconds):
                result = await self._client.send_request(request, _RESULT)
        except TimeoutError as error:
            raise CallTimedOut(f"did not answer within {seconds:g} s, so the call was given up") from error
        except MCPError as error:
            raise await self._loss_or_refusal(error) from error
        except ValidationError as error:
            raise ServerTrouble(
                f"gave a result that the protocol does not know ({first_problem(error)[:300]})"
            ) from error
        if isinstance(result, CallToolResult):
            return result
        raise ServerTrouble("wants to ask its user something first, and a subagent has none who could answer")

    async def _loss_or_refusal(self, error: MCPError) -> ServerTrouble:
        if not self.is_lost and not means_loss(error, self._transport.trouble):
            return ServerTrouble(f"refused the call: {with_status(error, self._transport.trouble)}")
        self._lost = True
        if self._definition.type == "stdio":
            with suppress(TimeoutError):
                await asyncio.wait_for(self._transport.over.wait(), 1)
        return ServerLost(self._transport.trouble or "is not connected any more")

    async def aclose(self, *, hurry: bool = False) -> None:
        """Leave the server; with `hurry` it gets little time to end."""
        self._leave.set()
        if self._task is None:
            return
        if hurry:
            self._transport.grace = _HURRY_SECONDS
            self._task.cancel()
        try:
            await asyncio.wait([self._task], timeout=_END_SECONDS)
        except asyncio.CancelledError:
            self._transport.grace = 0.0
            self._task.cancel()
            raise

    def facts(self) -> dict[str, Any]:
        """Return the name, version and instructions that the server has sent."""
        if self._client is None:
            return {}
        known = self._client.server_info
        known_facts = {
            "name": known.name if known else None,
            "version": known.version if known else None,
            "protocolVersion": self._client.protocol_version,
            "instructions": self._client.instructions,
        }
        return {key: value for key, value in known_facts.items() if value}

    def why_lost(self) -> str:
        """Return how the server ended, as the end of a sentence."""
        return self._transport.trouble or str(self._trouble(self._failure))

    # -- the task that owns the client

    async def _live(self) -> None:
        """Be connected until `aclose`. However it ends, the reason is kept and nothing is raised."""
        try:
            async with Client(
                self.listing, mode=self._mode, client_info=_ME, cache=None, logging_callback=self._logged
            ) as client:
                self._client = client.session
                self._tools = await all_tools(client.session)
                self._is_decided.set()
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - any fault that a server causes ends its session
            self._failure = error
        finally:
            self._is_decided.set()

    async def _logged(self, params: LoggingMessageNotificationParams) -> None:
        self._log.say(f"[{params.level}] {str(params.data)[:1_000]}", always=True)

    def _trouble(self, error: BaseException | None) -> ServerTrouble:
        return why_not_connected(error, self._definition, self._transport.trouble)


# -- the server over the whole of a run

_LEAST_PROBE_SECONDS = 20.0
"""With less time than this, a server that does not answer is asked in the old way after half of it."""


@dataclass(frozen=True)
class ServerContext:
    """The surroundings of a run's servers.

    `start` decides how a stdio server starts; `record` appends to the journal, `logs` holds their log files.
    `watch` is notified of each call that the model makes of a server on this machine.
    """

    start: Callable[[ServerDefinition, str], ServerStart]
    record: Callable[..., None]
    masker: Masker = field(default_factory=Masker)
    logs: Directory | None = None
    watch: CommandWatch | None = None


@dataclass(frozen=True)
class CallAnswer:
    """The result of a call, with remarks for the model."""

    result: CallToolResult
    remarks: list[str]


class ServerConnection:
    """One server. Its calls may overlap."""

    def __init__(self, name: str, definition: ServerDefinition, around: ServerContext) -> None:
        self.name = name
        self.definition = definition
        self.tools: list[Tool] = []
        self.session: ServerSession | None = None
        self.watch = around.watch if definition.type == "stdio" else None
        self._around = around
        self._log = ServerLog(name, around.logs, around.masker, self._record_line)
        self._may_restart = True
        self._gone: str | None = None
        self._news: list[str] = []
        self._restarting: asyncio.Task[None] | None = None

    def _record_line(self, line: str) -> None:
        self._around.record("server_log", server=self.name, text=line)

    async def open(self) -> None:
        """Connect and list the tools, within the `timeout` of the server.

        Raises:
            ServerTrouble: the server cannot be used.
        """
        self._log.forget()
        seconds = self.definition.timeout
        try:
            async with asyncio.timeout(seconds):
                self.tools = await self._connected()
            self._log.handshake_over()
        except TimeoutError as error:
            what = self._with_remedy(f"did not connect and list its tools within {seconds:g} s")
            raise ServerTrouble(f"{what}; `timeout` in its entry gives it more") from error

    async def _connected(self) -> list[Tool]:
        """Connect by detecting the era of the protocol; if that fails, in the old era.

        Some servers of the old era end, or fall silent, if the first message is not the one they know.
        """
        seconds = self.definition.timeout
        try:
            async with asyncio.timeout(seconds / 2 if seconds < _LEAST_PROBE_SECONDS else None):
                return await self._begin("auto")
        except TimeoutError:
            pass
        except ServerTrouble:
            if self.session is None or not self.session.ended_itself:
                raise
        self._log.forget()
        return await self._begin("legacy")

    async def _begin(self, mode: Mode) -> list[Tool]:
        self.session = session = ServerSession(
            self.definition, partial(self._around.start, self.definition, self.name), self._log, mode
        )
        try:
            return await session.open()
        except ServerTrouble as trouble:
            await session.aclose(hurry=True)
            raise type(trouble)(self._with_remedy(str(trouble))) from trouble
        except asyncio.CancelledError:
            await session.aclose(hurry=True)
            raise

    def _with_words(self, what: str) -> str:
        words = self._log.tail
        return f"{what}; it said: {words.rstrip('.')}" if words else what

    def _with_remedy(self, what: str) -> str:
        """Return the words on a failure to connect, with the key that would help, if it is known."""
        words = self._with_words(what)
        remedy = self.session.remedy(words) if self.session is not None else ""
        return f"{words}; {remedy}" if remedy else words

    # -- calls

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Call a tool of the server.

        Raises:
            ServerTrouble: the call failed; its text is a whole sentence for the model.
        """
        session = await self._living()
        try:
            result = await session.call(tool, arguments, self.definition.call_timeout_seconds)
        except ServerLost as loss:
            words = self._with_words(str(loss))
            outcome = await self._restarted(session, words)
            raise ServerTrouble(
                f"The MCP server {self.name} {words}. It happened during this call, so what the call did is "
                f"unknown. {outcome}"
            ) from loss
        except ServerTrouble as trouble:
            raise type(trouble)(f"The MCP server {self.name} {trouble}.") from trouble
        if self.definition.type != "stdio" and session is self.session:
            self._may_restart = True  # a session or a stream ends often, and proves nothing of the server
        remarks, self._news = self._news, []
        return CallAnswer(result, remarks)

    async def _living(self) -> ServerSession:
        """Return the session, a new one if the server has died since the last call."""
        await self._restart_over()
        session = self.session
        if session is not None and session.is_lost and self._gone is None:
            words = self._with_words(session.why_lost())
            outcome = await self._restarted(session, words)
            news = f"The MCP server {self.name} {words}. {outcome}"
            self._news += [news] if self._gone is None and news not in self._news else []
        if self._gone is not None or self.session is None:
            raise ServerTrouble(
                f"The MCP server {self.name} is gone: {self._gone}. Continue without its tools."
            )
        return self.session

    async def _restarted(self, lost: ServerSession, how: str) -> str:
        """Restart the server, if it may be once more, and return a sentence on it for the model."""
        if self.session is lost and self._gone is None and self._restarting is None:
            self._restarting = asyncio.create_task(self._restart(lost, how))
        await self._restart_over()
        if self._gone is not None:
            return f"It is not {self._again()} ({self._gone}): continue without its tools."
        return f"It was {self._again()}, and what it kept in memory is lost."

    async def _restart_over(self) -> None:
        """Wait for a restart that is under way. It continues if the waiting program is ended."""
        if (restarting := self._restarting) is not None:
            await asyncio.shield(restarting)
            self._restarting = None if self._restarting is restarting else self._restarting

    def _again(self) -> str:
        return "started again" if self.definition.type == "stdio" else "connected again"

    async def _restart(self, lost: ServerSession, how: str) -> None:
        if not self._may_restart:
            self._gone = f"it {how}, for the second time"
            self._around.record("warning", message=f"The MCP server {self.name} {how}, for the second time.")
            await lost.aclose(hurry=True)
            return
        self._may_restart = False
        self._around.record("warning", message=f"The MCP server {self.name} {how}; it is {self._again()}.")
        await lost.aclose(hurry=True)
        known = self.tools
        try:
            await self.open()
        except ServerTrouble as trouble:
            self._gone = f"it {trouble}"
            self._around.record("warning", message=f"The MCP server {self.name} {trouble}.")
        self.tools = known

    @property
    def warnings(self) -> list[str]:
        """The tools that it lists and that are left out, a sentence each."""
        faults = self.session.listing.faults if self.session is not None else []
        return [f"The MCP server {self.name} {fault}." for fault in faults]

    def facts(self) -> dict[str, Any]:
        """Return the name, version and instructions that the server has sent."""
        return self.session.facts() if self.session is not None else {}

    async def aclose(self, *, hurry: bool = False) -> None:
        """Leave the server."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        if self.session is not None:
            await self.session.aclose(hurry=hurry)
