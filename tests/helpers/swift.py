"""The real command, many times over: each call is a process, forked from one that has imported everything.

A call costs some milliseconds instead of the third of a second that Python needs to begin. Each has a bound
that the kernel keeps, and so little memory and room for files that what is endless is noticed at once.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.helpers.processes import REPOSITORY

HANG_SECONDS = 20
"""When a call is taken for one that never ends, on a machine that has much else to do."""
MEMORY_BYTES = 2 << 30
_VERBS = (
    "ls",
    "show",
    "logs",
    "wait",
    "inbox",
    "reply",
    "stop",
    "continue",
    "rm",
    "prune",
    "stats",
    "doctor",
)

_FORKING = f"""
import json, os, resource, signal, sys, time
from importlib import import_module
from subagent_server.cli import main
from subagent_server.cli.console.group import VERBS
for name in {_VERBS!r}:
    import_module(VERBS[name].where.split(":")[0])
import subagent_server.service.doctor, subagent_server.service.search, subagent_server.service.start
import subagent_server.service.continue_run, subagent_server.launch.local

def carry_out(order):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(order["seconds"])
    resource.setrlimit(resource.RLIMIT_AS, (order["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    for number, path in ((1, order["out"]), (2, order["err"])):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    streams = (open(number, mode, encoding="utf-8") for number, mode in ((0, "r"), (1, "w"), (2, "w")))
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.argv = ["subagent", *order["words"]]
    return main(order["words"])

while line := sys.stdin.buffer.readline():
    order, began = json.loads(line), time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = carry_out(order)
        except SystemExit as leave:
            code = int(leave.code or 0)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    answer = {{"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class Ended:
    """How a call ended, what it said, and how long it took."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        """Everything that it said."""
        return self.out + self.err

    def json(self) -> Any:
        """Return what it printed as JSON."""
        return json.loads(self.out)

    def __str__(self) -> str:
        return (
            f"subagent {' '.join(self.words)[:200]} ({self.code}, {self.seconds:.1f} s): {self.said[-2000:]}"
        )


class Swift:
    """Calls the command as often as wanted. Leaving the `with` block ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORKING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __call__(
        self,
        *words: str,
        home: Path,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        seconds: int = HANG_SECONDS,
    ) -> Ended:
        """Run the command to its end; what it says goes through two files in `home`.

        Raises:
            AssertionError: it did not end within `seconds`, or died.
        """
        files = {"out": str(home / "swift.out"), "err": str(home / "swift.err")}
        order = {
            **files,
            "words": words,
            "cwd": str(cwd or home),
            "environment": dict(environment),
            "seconds": seconds,
            "memory": MEMORY_BYTES,
        }
        answer = self._answered(json.dumps(order).encode())
        said = [Path(path).read_bytes().decode("utf-8", "replace") for path in files.values()]
        ended = Ended(words, answer["code"], said[0], said[1], answer["seconds"])
        assert ended.code != -signal.SIGALRM, f"not over after {seconds} s: {ended}"
        assert ended.code >= 0, f"died: {ended}"
        assert "Traceback" not in ended.said, str(ended)
        return ended

    def _answered(self, order: bytes) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(order + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
