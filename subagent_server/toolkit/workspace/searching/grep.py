"""Lines by a regular expression."""

import io
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from subagent_server.toolkit.workspace.searching.answer import Answer
from subagent_server.toolkit.workspace.searching.tree import FLAGS, Stop, Tree

_PEEK = 8192
_SHOWN = 500
_BEFORE_MATCH = 100

Search = Callable[[str], re.Match[str] | None]


class NotText(Exception):
    """A file that is not searched; the text says what it is."""


@dataclass
class Grep:
    """A search of files one by one: `mode` is `files`, `count` or `content` with `context` lines around."""

    search: Search
    mode: str
    context: int
    answer: Answer
    shown: Callable[[str], str]
    too_large: list[str] = field(default_factory=list)

    def tree(self, tree: Tree, wanted: Callable[[str], bool]) -> list[str]:
        """Search every file of `tree` whose path is `wanted`, and return notes."""
        notes = []
        try:
            for found in tree.walk(lambda _: True):
                if found.entry.is_file(follow_symlinks=False) and wanted(found.path):
                    tree.check_time()
                    with suppress(NotText, OSError):  # the others may match
                        self.file(found.directory, found.entry.name, found.path)
        except Stop as stop:
            notes.append(str(stop))
        if self.too_large:
            notes.append(f"lines too long to be searched: {', '.join(self.too_large[:5])}")
        if tree.unreadable:
            notes.append(f"{tree.unreadable} directories could not be read")
        return notes

    def file(self, directory: int, name: str, path: str) -> None:
        """Search one file.

        Raises:
            NotText: it is binary or no regular file.
            OSError: it cannot be opened.
            Stop: the result is long enough.
        """
        try:
            with _opened(directory, name) as lines:
                _REPORTS[self.mode](self, self.shown(path), lines)
        except MemoryError:
            self.too_large.append(self.shown(path))

    def _files(self, path: str, lines: Iterable[str]) -> None:
        if any(map(self.search, lines)):
            self.answer.match()
            self.answer.line(path)

    def _count(self, path: str, lines: Iterable[str]) -> None:
        count = sum(1 for line in lines if self.search(line))
        if count:
            self.answer.match()
            self.answer.line(f"{path}:{count}")

    def _content(self, path: str, lines: Iterable[str]) -> None:
        before: deque[tuple[int, str]] = deque(maxlen=self.context)
        last = after = 0
        for number, line in enumerate(lines, 1):
            match = self.search(line)
            if match is None and not after:
                before.append((number, line))
                continue
            if match is None:
                after -= 1
                self.answer.line(f"{path}-{number}-{_cut(line, 0)}")
            else:
                self.answer.match()
                after = self.context
                if self.context and self.answer.lines and number - len(before) > last + (last > 0):
                    self.answer.line("--")
                for earlier, text in before:
                    self.answer.line(f"{path}-{earlier}-{_cut(text, 0)}")
                before.clear()
                self.answer.line(f"{path}:{number}:{_cut(line, match.start())}")
            last = number


_REPORTS: dict[str, Callable[[Grep, str, Iterable[str]], None]] = {
    "files": Grep._files,
    "count": Grep._count,
    "content": Grep._content,
}


@contextmanager
def _opened(directory: int, name: str) -> Iterator[Iterator[str]]:
    descriptor = os.open(name, FLAGS, dir_fd=directory)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotText("not a regular file")
        if b"\0" in file.peek(_PEEK)[:_PEEK]:
            raise NotText("a binary file")
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n")
        yield (line.rstrip("\r\n").removeprefix("\ufeff") for line in text)


def _cut(line: str, around: int) -> str:
    """Return `line`, of a long one the part around the match."""
    if len(line) <= _SHOWN:
        return line
    start = max(0, min(around - _BEFORE_MATCH, len(line) - _SHOWN))
    end = start + _SHOWN
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
