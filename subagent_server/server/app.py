"""The MCP server over stdio: both protocol eras, and a quick leave that touches no run."""

import asyncio
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import anyio

from subagent_server.server.connection import Desks, build_server, initialization_options
from subagent_server.server.stdio import Incoming, Outgoing, claim
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.settings import Role

LEAVE_SECONDS = 0.2
"""How long calls that are being worked on may still be answered when the server leaves."""
_SETTLE_SECONDS = 0.01
_THREADS = 32


def serve_stdio(service: Service, role: Role, caller: Caller, leave: Callable[[int], NoReturn]) -> None:
    """Serve one client on stdin and stdout, then exit by `leave` with code 0.

    It leaves at end of input, SIGINT or SIGTERM, within 300 ms. Nothing of a run lives here, so nothing needs
    to be put away: a thread that still waits for a line of input would only hold the leave up.
    """
    asyncio.run(_serve(service, role, caller, leave))


async def _serve(service: Service, role: Role, caller: Caller, leave: Callable[[int], NoReturn]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="verb"))
    desks = Desks(service, role, caller)
    loop.add_signal_handler(signal.SIGCHLD, service.launcher.reap)
    leaving = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leaving.set)
    serving = asyncio.create_task(_serve_client(desks, leaving))
    told = asyncio.create_task(leaving.wait())
    await asyncio.wait([serving, told], return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and (error := serving.exception()) is not None:
        print(f"The server ends: {error}", file=sys.stderr, flush=True)
        leave(6)
    await _let_finish(desks)
    leave(0)


async def _serve_client(desks: Desks, leaving: asyncio.Event) -> None:
    async def leave() -> None:
        leaving.set()
        await anyio.sleep_forever()  # an end that is told would cut the calls off that are being worked on

    server = build_server(desks)
    stdin, stdout = claim()
    outgoing = Outgoing(stdout, gone=leaving.set)
    incoming = Incoming(stdin, at_end=leave, answer=outgoing.send)
    await server.run(incoming, outgoing, initialization_options(server, desks))


async def _let_finish(desks: Desks) -> None:
    """Wait until no call is being worked on, with a bound; waits for runs do not count."""
    with anyio.move_on_after(LEAVE_SECONDS):
        await anyio.sleep(_SETTLE_SECONDS)  # what has just been read has not begun yet
        while desks.busy:
            await anyio.sleep(_SETTLE_SECONDS)
        await anyio.sleep(_SETTLE_SECONDS)  # and what has just been answered is not written yet
