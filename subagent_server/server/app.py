"""The MCP server over stdio: both protocol eras, and a quick leave that touches no run."""

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from subagent_server.server.connection import ClientConnection, SharedByClients
from subagent_server.server.stdio import Reports, Serving, claim
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.settings import Role

WARM_UP_SECONDS = 0.5
"""When the zygote is started: its imports would slow down the first answers, for which clients wait least."""
_THREADS = 32


def serve_stdio(service: Service, role: Role, caller: Caller) -> None:
    """Serve one client on stdin and stdout, then exit at once with code 0.

    It leaves at end of input, SIGINT or SIGTERM, within 300 ms. Nothing of a run lives here, so nothing needs
    to be put away: a thread that still waits for a line of input would only hold the leave up.
    """
    asyncio.run(_serve(service, role, caller))


async def _serve(service: Service, role: Role, caller: Caller) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="verb"))
    connection = ClientConnection(service, role, caller, SharedByClients(service, caller))
    connection.read_ahead()
    loop.add_signal_handler(signal.SIGCHLD, service.launcher.reap)
    loop.call_later(WARM_UP_SECONDS, service.launcher.warm_up)
    try:
        stdin, stdout = claim()
    except OSError as error:
        _report(error)
        os._exit(6)
    serving = Serving(connection, stdin, stdout, Reports())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, serving.leave)
    failure = await serving.until_left()
    if failure is not None:
        _report(failure)
        os._exit(6)
    os._exit(0)


def _report(error: BaseException) -> None:
    print(f"The server ends: {error}", file=sys.stderr, flush=True)
