"""What lies outside a planted root, and must be as it was after whatever looked at the root.

Files and directories that links and hard links lead to, a secret in each, a command that leaves a trace, and
a process that nobody may end.
"""

import gzip
import hashlib
import os
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from subagent_server.run import processes
from tests.helpers.processes import identity_of

WORDS = "nothing out of the ordinary"
"""What the files of a planted run say, where the files outside say the secret."""
SECRET = "the-secret-that-lies-outside-0815"
_LARGEST = 64 << 20
_DAMAGED = (OSError, EOFError, zlib.error)
"""What a damaged file of gzip raises."""
Facts = tuple[object, ...]


class Outside:
    """A directory of canaries, and a process that stands by. Leaving the `with` block ends the process."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        self._made = 0
        self.trace = place / "EXECUTED"
        """Comes into being if a planted command is executed."""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    # -- what is planted leads here

    def file(self, content: bytes = b"") -> Path:
        """Make a canary with `content`, in which the secret is said."""
        path = self._name()
        path.write_bytes(with_secret(content))
        path.chmod(0o640)
        _make_old(path)
        return path

    def directory(self, *names: str) -> Path:
        """Make a directory with a canary, and canaries of these names."""
        path = self._name()
        (path / "below").mkdir(parents=True)
        for name in ("kept.txt", "below/kept.txt", *names):
            (path / name).write_bytes(with_secret(b""))
            _make_old(path / name)
        for each in (path / "below", path):
            _make_old(each)
        return path

    def absent(self) -> Path:
        """Return a path at which nothing is, and at which nothing may come to be."""
        return self._name()

    @property
    def command(self) -> dict[str, Any]:
        """A command that leaves a trace, as the definition of an MCP server has it."""
        return {"command": "/bin/sh", "args": ["-c", f"touch {self.trace}"]}

    @property
    def bystander(self) -> processes.Identity:
        """A process that has nothing to do with any run, started when it is first named."""
        if self._process is None:
            wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            self._process = subprocess.Popen(wait, stdin=subprocess.PIPE)
        return identity_of(self._process.pid)

    def _name(self) -> Path:
        self._made += 1
        return self.place / f"canary-{self._made}"

    # -- what became of it

    def snapshot(self) -> dict[str, Facts]:
        """Return everything that must not change: kinds, contents, modes, owners, times, and who lives."""
        named = self._process is not None
        lives = named and processes.is_alive(self.bystander) and not processes.is_stopped(self.bystander)
        return {
            **tree(self.place),
            "the bystander": ("unnamed" if not named else "lives" if lives else "ended",),
        }

    def inodes(self) -> set[tuple[int, int]]:
        """Return the files of the canaries, to tell their hard links from copies."""
        found = [path.lstat() for path in self.place.rglob("*")]
        return {(status.st_dev, status.st_ino) for status in found}


def tree(place: Path) -> dict[str, Facts]:
    """Return what can be told of everything below a directory without following a link or blocking."""
    return {str(path.relative_to(place)): _facts(path) for path in [place, *_below(place)]}


def changed(before: dict[str, Facts], after: dict[str, Facts]) -> dict[str, tuple[object, object]]:
    """Return what differs, by name."""
    names = sorted({*before, *after})
    return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def holders_of_secret(place: Path, but: set[tuple[int, int]]) -> list[str]:
    """Return the files below a directory in which the secret stands, other than `but`."""
    found = []
    for path in _below(place):
        with suppress(FileNotFoundError):
            status = path.lstat()
            ours = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
            if ours and (status.st_dev, status.st_ino) not in but and _says_secret(path):
                found.append(str(path.relative_to(place)))
    return found


def with_secret(content: bytes) -> bytes:
    """Return content that says the secret instead of the usual words, packed as it was."""
    if content[:2] == b"\x1f\x8b":
        with suppress(*_DAMAGED):
            return gzip.compress(with_secret(gzip.decompress(content)))
    return content.replace(WORDS.encode(), SECRET.encode()) if WORDS.encode() in content else SECRET.encode()


def _says_secret(path: Path) -> bool:
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b" and len(content) < 1 << 16:
        with suppress(*_DAMAGED):
            content += gzip.decompress(content)
    return SECRET.encode() in content


def _below(place: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(place):
        yield from (Path(directory, name) for name in sorted([*directories, *files]))


def _facts(path: Path) -> Facts:
    status = path.lstat()
    facts = (oct(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns)
    if stat.S_ISLNK(status.st_mode):
        return (*facts, str(path.readlink()))
    if stat.S_ISREG(status.st_mode):
        small = status.st_size <= _LARGEST
        return (*facts, status.st_size, hashlib.sha256(path.read_bytes()).hexdigest() if small else "")
    return facts


def _make_old(path: Path) -> None:
    """Give a file a time at which nothing of a test has touched it."""
    os.utime(path, (1_700_000_000, 1_700_000_000))
