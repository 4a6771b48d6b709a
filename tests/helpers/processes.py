"""Python processes of a test: they say lines, are told lines, and are gone when the test is."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from subagent_server.run.processes import Identity, identify

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0
"""How long a process may take for its next word, on a machine that has much else to do."""


def open_files(pid: int) -> Iterator[str]:
    """Yield what the descriptors of a process are; one that it closes meanwhile is left out."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(entry.readlink())


def identity_of(pid: int) -> Identity:
    """Return who a process is that is there, if only as a zombie."""
    identity = identify(pid)
    assert identity is not None, f"there is no process {pid}"
    return identity


class Child:
    """A process that runs `code` with `arguments` in `sys.argv[1:]`. Leaving the `with` block kills it.

    Its stdin and stdout are lines of UTF-8; stderr is that of the tests.
    """

    def __init__(
        self,
        code: str,
        *arguments: object,
        pass_fds: Iterable[int] = (),
        environment: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        self._heard = b""
        self._process = subprocess.Popen(
            _command(code, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=new_session,
        )
        self.pid = self._process.pid

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def identity(self) -> Identity:
        """Who the process is."""
        return identity_of(self.pid)

    def hear(self, seconds: float = PATIENCE_SECONDS) -> str:
        """Return the next line the process says; what it said last, without a newline, at its end."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._heard:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"process {self.pid} said nothing for {seconds:g} s"
            more = os.read(descriptor, 65536)
            if not more:
                line, self._heard = self._heard, b""
                return line.decode("utf-8")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode("utf-8")

    def tell(self, line: str = "go") -> None:
        """Send the process a line."""
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), line.encode("utf-8") + b"\n")

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Return the exit code, or minus the signal that ended the process; collects it."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End the process as nothing else can, and collect it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)


def run_python(
    code: str,
    *arguments: object,
    flags: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    seconds: float = PATIENCE_SECONDS,
) -> "subprocess.CompletedProcess[str]":
    """Run `code` in a fresh interpreter to its end and return what it said and how it ended."""
    return subprocess.run(
        _command(code, arguments, flags),
        env=_environment(environment),
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
    )


def _command(code: str, arguments: Iterable[object], flags: Iterable[str] = ()) -> list[str]:
    return [sys.executable, *flags, "-c", textwrap.dedent(code), *map(str, arguments)]


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **(extra or {})}
