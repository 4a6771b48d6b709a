"""A parent agent for tests: a real MCP client of the real server, to be called without `await`."""

import subprocess
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.server.stdio import stdio_server

from subagent_server.run.processes import Identity
from tests.helpers.forked import popen
from tests.helpers.processes import identity_of

Mode = Literal["auto", "legacy"]
BOUND = 120.0
"""How long one call may take, in seconds, on a machine that has much else to do."""
LEAVE_SECONDS = 60.0


class Parent:
    """A client of one server. Each tool call answers with the structured content, or the refusal."""

    def __init__(self, client: Client, portal: BlockingPortal, server: Identity) -> None:
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
    pipe = subprocess.PIPE
    with start_blocking_portal() as portal, errors.open("ab") as log:
        process = popen(
            command, environment, cwd=cwd, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True
        )
        client = Client(
            _pipes_of(process), mode=mode, client_info=types.Implementation(name=client_name, version="1")
        )
        failure: Exception | None = None
        with portal.wrap_async_context_manager(client):
            try:
                yield Parent(client, portal, identity_of(process.pid))
            except Exception as error:  # noqa: BLE001 - raised again below, where no task group wraps it
                failure = error
    if failure is not None:
        raise failure


@asynccontextmanager
async def _pipes_of(process: "subprocess.Popen[bytes]") -> AsyncGenerator[TransportStreams, None]:
    """Give the streams of a server that runs; at the end its input ends, and so has it to."""
    assert process.stdin is not None and process.stdout is not None
    from_server, to_server = TextIOWrapper(process.stdout, "utf-8"), TextIOWrapper(process.stdin, "utf-8")
    async with stdio_server(anyio.wrap_file(from_server), anyio.wrap_file(to_server)) as streams:
        try:
            yield streams
        finally:
            with suppress(BrokenPipeError):  # a test has killed it
                to_server.close()
            try:
                process.wait(LEAVE_SECONDS)
            finally:
                process.kill()
    process.wait()
    from_server.close()


def _text(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))
