"""Lines by a regular expression."""

import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader

from subagent_server.toolkit.workspace.searching.answer import Answer
from subagent_server.toolkit.workspace.searching.tree import FLAGS, Stop, Tree

_PEEK = 8192
_SHOWN = 500
_BEFORE_MATCH = 100
_LONGEST = 1 << 20
_BOM = b"\xef\xbb\xbf"

Search = Callable[[str], re.Match[str] | None]
Line = tuple[int, str]


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
        with _opened(directory, name) as file:
            _REPORTS[self.mode](self, self.shown(path), _lines(file))

    def _files(self, path: str, lines: Iterable[Line]) -> None:
        if any(self.search(line) for _, line in lines):
            self.answer.match()
            self.answer.line(path)

    def _count(self, path: str, lines: Iterable[Line]) -> None:
        count = last = 0
        for number, line in lines:
            if number != last and self.search(line):
                count, last = count + 1, number
        if count:
            self.answer.match()
            self.answer.line(f"{path}:{count}")

    def _content(self, path: str, lines: Iterable[Line]) -> None:
        before: deque[Line] = deque(maxlen=self.context)
        last = after = 0
        for number, line in lines:
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


_REPORTS: dict[str, Callable[[Grep, str, Iterable[Line]], None]] = {
    "files": Grep._files,
    "count": Grep._count,
    "content": Grep._content,
}


@contextmanager
def _opened(directory: int, name: str) -> Iterator[BufferedReader]:
    descriptor = os.open(name, FLAGS, dir_fd=directory)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotText("not a regular file")
        if b"\0" in file.peek(_PEEK)[:_PEEK]:
            raise NotText("a binary file")
        yield file


def _lines(file: BufferedReader) -> Iterator[Line]:
    """Yield the lines with their numbers, a very long one in pieces; a binary rest is left out."""
    number = 1
    if file.peek(len(_BOM)).startswith(_BOM):
        file.read(len(_BOM))
    while (raw := file.readline(_LONGEST)) and b"\0" not in raw:
        yield number, raw.decode("utf-8", "replace").rstrip("\r\n")
        number += raw.endswith(b"\n")


def _cut(line: str, around: int) -> str:
    """Return `line`, of a long one the part around the match."""
    if len(line) <= _SHOWN:
        return line
    start = max(0, min(around - _BEFORE_MATCH, len(line) - _SHOWN))
    end = start + _SHOWN
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
