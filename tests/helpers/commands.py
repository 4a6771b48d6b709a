"""Commands of `subagent`: those that only look, write or answer in this process, all others in their own.

In this process a command has the arguments, directory, environment, umask and standard streams that it is
given, and leaves no trace in it. A verb that starts runs or serves is always a process, and so is each in an
environment that asks for another interpreter, for another locale, or has the variables of a run.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from subagent_server.__main__ import main

PROGRAM = (sys.executable, "-m", "subagent_server")
_IN_PROCESS = frozenset(
    (
        *(
            "ls",
            "show",
            "logs",
            "stop",
            "wait",
            "inbox",
            "reply",
            "compare",
            "stats",
            "export",
            "rm",
            "prune",
        ),
        *("agents", "new", "schema", "completion", "trust", "doctor", "init"),
    )
)
_ELSEWHERE = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "SUBAGENT_RUN_")
_HERE = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
_LOCALES = {"", "C.UTF-8", "C.utf8", "en_US.UTF-8"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGALRM)


def run_command(
    words: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    seconds: float,
) -> "subprocess.CompletedProcess[bytes]":
    """Run `subagent` to its end and capture its output.

    Raises:
        subprocess.TimeoutExpired: it did not end within `seconds`; here the bound of the test counts.
    """
    if is_for_this_process(words, environment):
        return run_here(words, cwd=cwd, environment=environment, stdin=stdin)
    return subprocess.run(
        [*PROGRAM, *words],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        timeout=seconds,
        check=False,
    )


def is_for_this_process(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this process can stand for a fresh one that runs these words in this environment."""
    if not _IN_PROCESS.intersection(words[:3]):
        return False
    odd = (n for n, value in environment.items() if n.startswith(_ELSEWHERE) and _HERE.get(n) != value)
    locales = {environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    return locales <= _LOCALES and set(odd) <= {"PYTHONDONTWRITEBYTECODE"}


def run_here(
    words: Sequence[str], *, cwd: Path, environment: Mapping[str, str], stdin: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    """Run `subagent` in this process, with what it writes to its standard descriptors captured."""
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        with _as_a_process(words, (given, out, err), cwd, environment):
            code = _code(words)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read())
    return subprocess.CompletedProcess(["subagent", *words], code, *said)


def _code(words: Sequence[str]) -> int:
    try:
        return main()
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 - the outermost frame, as the interpreter's own
        traceback.print_exc()
        return 1


@contextmanager
def _as_a_process(
    words: Sequence[str], files: Sequence[IO[bytes]], cwd: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """Give this process what one is given at its start, and afterwards what it had."""
    before = dict(os.environ)
    here, umask = Path.cwd(), os.umask(0o022)
    os.umask(umask)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    streams = sys.stdin, sys.stdout, sys.stderr, sys.argv, sys.excepthook
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        os.chdir(cwd)
        sys.argv = ["subagent", *words]
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        yield
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr, sys.argv, sys.excepthook = streams
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(here)
        os.umask(umask)
        os.environ.clear()
        os.environ.update(before)
        time.tzset()
        for number, handler in handlers.items():
            signal.signal(number, handler)
