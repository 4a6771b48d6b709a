"""System calls of a program that fail on purpose: `strace` counts them in a first run and spoils one in each
further run."""

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.processes import REPOSITORY

STRACE = shutil.which("strace")
_CALLS = ("openat", "write", "fsync", "rename")
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += ")
_BOUND = 60.0


@dataclass(frozen=True)
class Call:
    """The `number`-th call of this name, counted from 1, that the program makes; `about` are its arguments."""

    name: str
    number: int
    about: str


@dataclass(frozen=True)
class Fault:
    """What strace does to a call: `error=EIO`, `retval=7`."""

    name: str
    call: Call

    def option(self) -> str:
        """Return the value of `--inject`."""
        return f"{self.call.name}:{self.name}:when={self.call.number}"


class Program:
    """A program that does the same each time. `code` gets `arguments` in `sys.argv[1:]`."""

    def __init__(self, code: str) -> None:
        self._command = [sys.executable, "-c", textwrap.dedent(code)]

    def calls(self, directory: Path, *arguments: object) -> Iterator[Call]:
        """Run the program and yield its calls that write to files below `directory`, or to it."""
        trace = directory.parent / "trace"
        done = self._run(["-y", "-o", str(trace), f"--trace={','.join(_CALLS)}"], arguments)
        assert done.returncode == 0, done.stderr
        counts = dict.fromkeys(_CALLS, 0)
        for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
            found = _CALL.match(line)
            if found is None:
                continue
            name, about = found.groups()
            counts[name] += 1
            if str(directory) in about and (name != "openat" or "O_CREAT" in about):
                yield Call(name, counts[name], about)

    def run_with(self, fault: Fault, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run the program with one of its calls spoilt."""
        return self._run(["-o", "/dev/null", "--inject", fault.option()], arguments)

    def _run(self, options: list[str], arguments: tuple[object, ...]) -> "subprocess.CompletedProcess[str]":
        assert STRACE is not None
        return subprocess.run(
            [STRACE, "-qq", *options, "--", *self._command, *map(str, arguments)],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "0"},
            capture_output=True,
            encoding="utf-8",
            timeout=_BOUND,
            check=False,
        )
