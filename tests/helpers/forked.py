"""`subagent` as a fork of the process of the tests, which has imported everything: 20 ms in place of 400.

All but the imports is as in a process of its own: arguments, directory, environment, descriptors, signals and
exit code. Only `/proc` shows the command line of the tests. A command whose environment asks for another
interpreter than the one of the tests is executed.
"""

import gc
import logging
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, NoReturn

import subagent_server
from subagent_server.__main__ import main
from subagent_server.verbs import run_worktree

PROGRAM = (sys.executable, "-m", "subagent_server")
Environment = Mapping[str, str]
_OF_AN_INTERPRETER = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG")
_STARTED_WITH = dict(os.environ)
_AS_HERE = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "", "LANG": "C.UTF-8"}

_MOST_DESCRIPTORS = 1 << 16
_IMPORTED_LATE_BY_OTHERS = (
    *("uvicorn.lifespan.on", "uvicorn.lifespan.off", "uvicorn.loops.auto", "uvicorn.protocols.http.auto"),
    *("anyio._backends._asyncio", "encodings.ascii", "encodings.idna", "filelock"),
)


def import_everything() -> None:
    """Import what commands import late: else each fork does, and one in the middle of it would be waited for.

    A fork has no other thread than its own, and waits for ever for a module that another one was importing.
    """
    ours = (module.name for module in walk_packages(subagent_server.__path__, "subagent_server."))
    for name in (*ours, *_IMPORTED_LATE_BY_OTHERS):
        if not name.endswith("__main__"):
            import_module(name)


def popen(
    command: Sequence[str],
    env: Environment,
    *,
    enter: Callable[[], None] | None = None,
    call: Callable[[], int] | None = None,
    is_found: bool = False,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Start a command: `subagent` as a fork wherever that is the same, all else as it is.

    `enter` is what its process does first, such as to become one of another user, and `call` what a fork does
    in place of the command. One that is found by its command line is executed: that is what `/proc` shows.
    """
    words, asked = list(command), dict(env)
    odd = [
        name
        for name, value in asked.items()
        if name.startswith(_OF_AN_INTERPRETER) and value not in (_AS_HERE.get(name), _STARTED_WITH.get(name))
    ]
    if not call and (tuple(words[:3]) != PROGRAM or odd or is_found):
        return subprocess.Popen(words, env=asked, preexec_fn=enter, **options)

    def instead_of_executing() -> NoReturn:
        if enter is not None:
            enter()
        _become(call or main, words[3:], asked, options.get("pass_fds", ()))

    with warnings.catch_warnings():
        # Python 3.12 and later say that the other threads are not in the fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(words, preexec_fn=instead_of_executing, **options)


def run(
    command: Sequence[str], env: Environment, *, stdin: bytes = b"", seconds: float, **options: Any
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command to its end and return what it wrote.

    Raises:
        subprocess.TimeoutExpired: it did not end within `seconds`, and was killed.
    """
    pipe = subprocess.PIPE
    with popen(command, env, stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(stdin, timeout=seconds)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def _become(
    call: Callable[[], int], words: list[str], environment: dict[str, str], kept: Sequence[int]
) -> NoReturn:
    """Make this fork what the interpreter makes of a process, make the call, and leave."""
    code = 1
    try:
        gc.freeze()  # an object of the tests that is collected here may close a descriptor of another
        gc.enable()
        start = 3
        for number in (*sorted(kept), _MOST_DESCRIPTORS):
            os.closerange(start, number)
            start = number + 1
        for handled in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(handled, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        random.seed()
        run_worktree._held_up.clear()  # a repository in which the tests themselves had to wait
        for name in ("", "mcp"):  # one of pytest's has a descriptor that may be a socket by now
            logging.getLogger(name or None).handlers.clear()
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        sys.argv = ["subagent", *map(os.fsdecode, words)]
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        code = _exit_code(call)
        sys.stdout.flush()
    finally:
        os._exit(code)


def _exit_code(call: Callable[[], int]) -> int:
    try:
        return call()
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - the outermost frame, as the interpreter's own
        traceback.print_exc()
        return 1
