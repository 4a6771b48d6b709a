"""One session with an MCP server, from its beginning to its end, in a task of its own.

The SDK wants a client to be left by the task that entered it, so that task owns it; calls may come from any.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from mcp import Client, ClientSession, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    LoggingMessageNotificationParams,
    Tool,
)
from pydantic import TypeAdapter, ValidationError

from subagent_server import __version__
from subagent_server.domain.definitions import ServerDefinition
from subagent_server.sandbox.server_places import ServerStart
from subagent_server.toolkit.mcp_servers.listing import RepairedListing, all_tools
from subagent_server.toolkit.mcp_servers.network import NetworkTransport
from subagent_server.toolkit.mcp_servers.reasons import (
    CallTimedOut,
    ServerLost,
    ServerTrouble,
    first_fault,
    means_loss,
    why_not_connected,
    with_status,
)
from subagent_server.toolkit.mcp_servers.server_log import ServerLog
from subagent_server.toolkit.mcp_servers.stdio import StdioTransport

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
        self._transport = _transport(definition, starting, log)
        self._listing = RepairedListing(
            self._transport, lambda: None if self._client is None else self._client.protocol_version
        )
        self._leave = asyncio.Event()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    async def open(self) -> list[Tool]:
        """Connect and list all tools.

        Raises:
            ServerTrouble: the server cannot be used.
        """
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready))
        either: list[asyncio.Future[Any]] = [ready, self._task]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            ready.cancel()
            raise
        if ready.done():
            return ready.result()
        ready.cancel()
        raise self._trouble(self._failure)

    @property
    def faults(self) -> list[str]:
        """The tools that it lists and that cannot be used, each as the end of a sentence with its name."""
        return self._listing.faults

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

    async def call(
        self, tool: str, arguments: dict[str, object], seconds: float, progress: ProgressFnT
    ) -> CallToolResult:
        """Call a tool and return its result, whatever it is.

        Raises:
            ServerLost: the server ended during the call, so what the call did is unknown.
            ServerTrouble: it refused the call, or did not answer in time.
        """
        assert self._client is not None, "open comes first"
        self._transport.trouble = None if self._definition.type != "stdio" else self._transport.trouble
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(seconds) as limit:
                result = await self._client.send_request(request, _RESULT, progress_callback=progress)
        except TimeoutError as error:
            if limit.expired():
                raise CallTimedOut(
                    f"did not answer within {seconds:g} s, so the call was given up"
                ) from error
            raise CallTimedOut("did not answer in time") from error
        except MCPError as error:
            raise await self._loss_or_refusal(error) from error
        except ValidationError as error:
            raise ServerTrouble(
                f"gave a result that the protocol does not know ({first_fault(error)})"
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
        """Return the name, version and instructions that the server has given."""
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
        return self._transport.trouble or self._trouble(self._failure).what

    # -- the task that owns the client

    async def _live(self, ready: "asyncio.Future[list[Tool]]") -> None:
        """Be connected until `aclose`. However it ends, the reason is kept and nothing is raised."""
        try:
            async with Client(
                self._listing,
                mode=self._mode,
                client_info=_ME,
                cache=None,
                logging_callback=self._logged,
            ) as client:
                self._client = client.session
                tools = await all_tools(client.session)
                if not ready.done():
                    ready.set_result(tools)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - any fault that a server causes ends its session
            self._failure = error

    async def _logged(self, params: LoggingMessageNotificationParams) -> None:
        self._log.say(f"[{params.level}] {str(params.data)[:1_000]}", always=True)

    def _trouble(self, error: BaseException | None) -> ServerTrouble:
        return why_not_connected(error, self._definition, self._transport.trouble)


def _transport(
    definition: ServerDefinition, starting: Callable[[], ServerStart], log: ServerLog
) -> StdioTransport | NetworkTransport:
    if definition.type != "stdio":
        return NetworkTransport(definition)
    return StdioTransport(starting, log)
