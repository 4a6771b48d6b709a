"""The process that forks commands: it has imported all that they import, and becomes each in a fork.

Its other side, and what a fork can stand for, is in `forking.py`.
"""

import atexit
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, NoReturn

from tests.helpers.forking import ORDER_BYTES, Limits

_LOADED = ("run", "agents", "process", "sandbox", "worktrees", "verbs", "tools", "server", "cli")
"""The rooms whose modules are imported before the first fork."""
_LOADED_TOO = ("mcp.client", "jsonschema", "watchdog.observers", "rich.console", "asyncio", "uvicorn")


def serve(listening: socket.socket) -> None:
    """Fork a process for each order, and answer with its number, and with how it ended; until stdin ends."""
    ready, _, _ = select.select([0, listening.fileno()], [], [])
    if listening.fileno() not in ready:
        return  # the session is over, and nobody has asked for a fork
    _load()
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([0, listening.fileno(), *running], [], [])
        for pidfd in [each for each in ready if each in running]:
            pid, status = running.pop(pidfd)
            os.close(pidfd)
            _, ended = os.waitpid(pid, 0)
            with status, suppress(BrokenPipeError):
                status.send(str(os.waitstatus_to_exitcode(ended)).encode())
        if 0 in ready:
            return
        if listening.fileno() in ready:
            status, _ = listening.accept()
            order, streams, _, _ = socket.recv_fds(status, ORDER_BYTES, 3)
            pid = os.fork()
            if pid == 0:
                _carry_out(json.loads(order), streams)
            status.send(str(pid).encode())
            running[os.pidfd_open(pid)] = pid, status
            for descriptor in streams:
                os.close(descriptor)


def _load() -> None:
    import subagent_server

    for module in walk_packages(subagent_server.__path__, "subagent_server."):
        room, name = module.name.split(".")[1], module.name.rpartition(".")[2]
        if room in _LOADED and not name.startswith("_"):
            import_module(module.name)
    for name in _LOADED_TOO:
        import_module(name)
    gc.freeze()


def _carry_out(order: Any, streams: Sequence[int]) -> NoReturn:
    """Be the command, from its first line to its exit."""
    code = 70
    try:
        _become(order, streams)
        from subagent_server.__main__ import main

        code = main()
    except SystemExit as leave:
        code = _code_of(leave)
    except BaseException:  # noqa: BLE001 - the outermost frame, as the interpreter's own
        traceback.print_exc()
        code = 1
    finally:
        os._exit(_finish(code))


def _become(order: Any, streams: Sequence[int]) -> None:
    """Take on what a process is given when it is started."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.umask(order["umask"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    limits = Limits(**order["limits"])
    signal.alarm(limits.seconds)
    for kind, most in ((resource.RLIMIT_AS, limits.memory), (resource.RLIMIT_FSIZE, limits.file_size)):
        if most:
            resource.setrlimit(kind, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["subagent", *order["words"]]
    sys.orig_argv = [sys.executable, "-m", "subagent_server", *order["words"]]
    sys.path[0] = order["cwd"]
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - a descriptor
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115


def _code_of(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    print(leave.code, file=sys.stderr)
    return 1


def _finish(code: int) -> int:
    """Do what an interpreter does at its end, and return the exit code."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
