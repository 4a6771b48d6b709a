"""A parent agent for tests: a real MCP client of the real server, to be called without `await`."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from subagent_server.run import processes
from tests.helpers.wait import wait_for

Mode = Literal["auto", "legacy"]
BOUND = 120.0
"""How long one call may take, in seconds, on a machine that has much else to do."""


class Parent:
    """A client of one server. Each tool call answers with the structured content, or the refusal."""

    def __init__(self, client: Client, portal: BlockingPortal, server: processes.Identity) -> None:
        self.server = server
        """The process of the server."""
        self.progress: list[tuple[float, str | None]] = []
        self._client = client
        self._portal = portal

    @property
    def protocol_version(self) -> str:
        """The version of the protocol that the two agreed on."""
        return self._client.protocol_version

    @property
    def instructions(self) -> str:
        """What the server tells a model of itself."""
        return self._client.instructions or ""

    def tools(self) -> list[types.Tool]:
        """Return the tools as the server lists them now, on all pages."""
        return [tool for page in self.pages_of_tools() for tool in page]

    def pages_of_tools(self) -> list[list[types.Tool]]:
        """Return the pages of the tools as the server lists them now."""
        pages, cursor = [], None
        while True:
            listing = partial(self._client.list_tools, cursor=cursor, cache_mode="refresh")
            result = self._portal.call(listing)
            pages.append(result.tools)
            cursor = result.next_cursor
            if cursor is None:
                return pages

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool that must succeed, and return its structured content."""
        return self.begin(tool, **arguments).result(BOUND)

    def begin(self, tool: str, **arguments: Any) -> "Future[Any]":
        """Begin a call that must succeed; its answer is to come."""
        return self._portal.start_task_soon(self._answered, tool, arguments)

    def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must refuse, and return its sentence."""
        result = self._portal.call(self._called, tool, arguments)
        assert result.is_error, f"{tool} answered {result.structured_content}"
        assert result.structured_content is None
        sentence = _text(result)
        assert "\n" not in sentence and "Traceback" not in sentence, sentence
        assert sentence.endswith((".", "?")) and len(sentence) < 1000, sentence
        return sentence

    def gives_up(self, tool: str, *, after: float, **arguments: Any) -> None:
        """Make a call that has not been answered when its client loses patience, `after` so many seconds."""
        try:
            answer = self._portal.call(self._called, tool, arguments, after)
        except MCPError as error:
            assert error.code == types.REQUEST_TIMEOUT, error
        else:
            raise AssertionError(f"{tool} answered {answer.structured_content}")

    async def _called(
        self, tool: str, arguments: dict[str, Any], seconds: float = BOUND
    ) -> types.CallToolResult:
        return await self._client.call_tool(
            tool, arguments, read_timeout_seconds=seconds, progress_callback=self._progressed
        )

    async def _answered(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self._called(tool, arguments)
        assert not result.is_error, f"{tool} refused: {_text(result)}"
        return result.structured_content

    async def _progressed(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, message))


@contextmanager
def connected(
    command: list[str],
    environment: Mapping[str, str],
    cwd: Path,
    errors: Path,
    *,
    mode: Mode = "auto",
    client_name: str = "test",
) -> Iterator[Parent]:
    """Start a server and give its client; what it says on stderr is appended to `errors`."""
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(environment), cwd=cwd)
    before = set(_children())
    with start_blocking_portal() as portal, errors.open("a", encoding="utf-8") as log:
        client = Client(
            stdio_client(parameters, log),
            mode=mode,
            client_info=types.Implementation(name=client_name, version="1"),
        )
        failure: Exception | None = None
        with portal.wrap_async_context_manager(client):
            started = wait_for(lambda: set(_children()) - before, BOUND, "the server's process")
            try:
                yield Parent(client, portal, _server_among(started, command))
            except Exception as error:  # noqa: BLE001 - raised again below, where no task group wraps it
                failure = error
    if failure is not None:
        raise failure


def _children() -> Iterator[processes.Identity]:
    return iter(processes.descendants([os.getpid()]))


def _server_among(started: set[processes.Identity], command: list[str]) -> processes.Identity:
    """Return the one that was started with `command`."""
    wanted = "\0".join(command).encode()
    fits: Callable[[int], bool] = lambda pid: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(wanted)  # noqa: E731
    (server,) = [identity for identity in started if fits(identity.pid)]
    return server


def _text(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))
