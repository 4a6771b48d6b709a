"""The MCP server over stdio: both protocol eras, and a quick leave that touches no run."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from subagent_server import __version__
from subagent_server.server.tools import ToolDesk
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.waiting import Changes
from subagent_server.settings import Role

LEAVE_SECONDS = 0.2
"""How long calls that are being worked on may still be answered when the server leaves."""
_SETTLE_SECONDS = 0.01
_THREADS = 32

INSTRUCTIONS = (
    "Hand focused work to subagents: run_<agent> starts one and returns a runId at once, or its result with "
    "waitSeconds. Runs go on whatever happens to this server. When a view shows an open question, answer it "
    "with reply_subagent. Wait with waitSeconds or wait_for_runs instead of polling."
)

Incoming = SessionMessage | Exception


def build_server(desk: ToolDesk) -> Server:
    """Return the protocol server around the tools."""
    return Server(
        "subagent-server",
        version=__version__,
        title="Subagents",
        instructions=INSTRUCTIONS,
        on_list_tools=desk.list_tools,
        on_call_tool=desk.call_tool,
    )


def serve_stdio(service: Service, role: Role, caller: Caller) -> None:
    """Serve one client on stdin and stdout, then leave the process with code 0.

    It leaves at end of input, SIGINT or SIGTERM, within 300 ms. Nothing of a run lives here, so nothing needs
    to be put away: a thread that still waits for a line of input would only hold the leave up.
    """
    asyncio.run(_serve(service, role, caller))


async def _serve(service: Service, role: Role, caller: Caller) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="verb"))
    desk = ToolDesk(service, Changes(service.store), role, caller)
    loop.add_signal_handler(signal.SIGCHLD, service.launcher.reap)
    leaving = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leaving.set)
    serving = asyncio.create_task(_serve_client(desk))
    told = asyncio.create_task(leaving.wait())
    await asyncio.wait([serving, told], return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        await _let_finish(desk)
    elif (error := serving.exception()) is not None and not isinstance(error, BrokenPipeError):
        print(f"The server ends: {error}", file=sys.stderr, flush=True)
        os._exit(6)
    os._exit(0)


async def _serve_client(desk: ToolDesk) -> None:
    server = build_server(desk)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (incoming, outgoing), _unhurried(incoming, desk) as read:
        await server.run(read, outgoing, options)


@asynccontextmanager
async def _unhurried(
    incoming: MemoryObjectReceiveStream[Incoming], desk: ToolDesk
) -> AsyncIterator[MemoryObjectReceiveStream[Incoming]]:
    """Pass the input on; at its end, let the calls that are being worked on be answered first."""
    send: MemoryObjectSendStream[Incoming]
    send, receive = anyio.create_memory_object_stream[Incoming](0)

    async def pump() -> None:
        async with send:
            async for message in incoming:
                await send.send(message)
            await _let_finish(desk)

    async with anyio.create_task_group() as group:
        group.start_soon(pump)
        yield receive
        group.cancel_scope.cancel()


async def _let_finish(desk: ToolDesk) -> None:
    """Wait until no call is being worked on, with a bound; waits for runs do not count."""
    with anyio.move_on_after(LEAVE_SECONDS):
        await anyio.sleep(_SETTLE_SECONDS)  # what has just been read has not begun yet
        while desk.busy:
            await anyio.sleep(_SETTLE_SECONDS)
        await anyio.sleep(_SETTLE_SECONDS)  # and what has just been answered is not written yet
