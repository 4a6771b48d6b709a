"""The MCP server over stdio: both protocol eras, and a quick leave that touches no run."""

import asyncio
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn

import anyio
from mcp.shared.message import SessionMessage

from subagent_server.server.connection import ClientConnection, SharedByClients, build_server
from subagent_server.server.stdio import Incoming, Outgoing, claim
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.settings import Role

LEAVE_SECONDS = 0.15
"""How long calls that are being worked on may still be answered when the server leaves."""
REFUSE_SECONDS = 0.05
"""How long the client may take to read that all others are not answered."""
WARM_UP_SECONDS = 0.5
"""When the zygote is started: its imports would slow down the first answers, for which clients wait least."""
_POLL_SECONDS = 0.01
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
    connection = ClientConnection(service, role, caller, SharedByClients(service, caller))
    connection.read_ahead()
    loop.add_signal_handler(signal.SIGCHLD, service.launcher.reap)
    loop.call_later(WARM_UP_SECONDS, service.launcher.warm_up)
    leaving = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leaving.set)
    try:
        stdin, stdout = claim()
    except OSError as error:
        _report(error)
        leave(6)
    outgoing = Outgoing(stdout, gone=leaving.set, writing=connection.unanswered.writing)
    serving = asyncio.create_task(_serve_client(connection, stdin, outgoing, leaving))
    left = asyncio.create_task(leaving.wait())
    await asyncio.wait([serving, left], return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and (failure := serving.exception()) is not None:
        _report(failure)
        leave(6)
    await _let_finish(connection)
    await _refuse_the_rest(connection, outgoing)
    leave(0)


def _report(error: BaseException) -> None:
    print(f"The server ends: {error}", file=sys.stderr, flush=True)


async def _serve_client(
    connection: ClientConnection, stdin: int, outgoing: Outgoing, leaving: asyncio.Event
) -> None:
    async def leave() -> None:
        leaving.set()
        await anyio.sleep_forever()  # a stream that ends would cut the calls off that are being worked on

    server = build_server(lambda _: connection, connection)
    noted = connection.unanswered.note_read
    incoming = Incoming(
        stdin, at_end=leave, answer=outgoing.send, noted=noted, is_full=lambda: connection.is_full
    )
    await server.run(incoming, outgoing, server.create_initialization_options())


async def _let_finish(connection: ClientConnection) -> None:
    """Wait, with a bound, until only calls that wait for runs have no answer yet."""
    with anyio.move_on_after(LEAVE_SECONDS):
        while connection.busy:
            await anyio.sleep(_POLL_SECONDS)


async def _refuse_the_rest(connection: ClientConnection, outgoing: Outgoing) -> None:
    """Answer each request that has no answer with an error. A client that does not read gets none."""

    async def send() -> None:
        with suppress(anyio.BrokenResourceError):
            for refusal in connection.unanswered.refusals():
                await outgoing.send(SessionMessage(refusal))

    await asyncio.wait([asyncio.create_task(send())], timeout=REFUSE_SECONDS)
