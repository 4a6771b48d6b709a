"""Files by the pattern of their path, newest first."""

import heapq
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from subagent_server.toolkit.workspace.searching.answer import Answer
from subagent_server.toolkit.workspace.searching.globs import Globs
from subagent_server.toolkit.workspace.searching.tree import Found, Stop, Tree


def find(
    globs: Globs, tree: Tree, answer: Answer, *, limit: int, root: Path, shown: Callable[[str], str]
) -> list[str]:
    """Send the `limit` newest files below `tree` that match, and return notes on them.

    A symbolic link counts where it leads to a file inside `root`.
    """
    states = {"": globs.start()}
    found: list[tuple[int, str]] = []
    notes = []

    def enter(path: str) -> bool:
        above, _, name = path.rpartition("/")
        states[path] = globs.step(states[above], name)
        return bool(states[path])

    try:
        for file in tree.walk(enter):
            above = file.path.rpartition("/")[0]
            if globs.accepts(globs.step(states[above], file.entry.name)):
                changed = _changed(file, root)
                found += [] if changed is None else [(-changed, file.path)]
    except Stop as stop:
        notes.append(f"{stop}: files may be missing; narrow the pattern or give a path")
    for _, path in heapq.nsmallest(limit, found):
        answer.line(shown(path))
    more = len(found) - limit
    if more > 0:
        notes.insert(0, f"the {limit} newest are shown, and {more:,} more match: narrow the pattern")
    return notes


def _changed(file: Found, root: Path) -> int | None:
    """Return when a file was changed last (ns since 1970), None of what is none."""
    with suppress(OSError):
        status = file.entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return status.st_mtime_ns
        if stat.S_ISLNK(status.st_mode):
            link = f"/proc/self/fd/{file.directory}/{file.entry.name}"
            target = Path(os.path.realpath(link, strict=True))
            if target.is_relative_to(root) and target.is_file():
                return status.st_mtime_ns
    return None
