"""Making and removing the worktree of a run, compared with plain git, in a repository of many files.

`python -m benchmarks.worktrees [RUNS]`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.run.records import Worktree
from subagent_server.worktrees.making import make_worktree
from subagent_server.worktrees.settling import settle_worktree
from subagent_server.worktrees.store_of_run import find_repository

TITLE = "Worktrees"
TIMES = 10
FILES = 20_000
_IN_A_DIRECTORY = 100


def measure(scale: Scale) -> list[Line]:
    """Return all lines. Ours and plain git take turns, so that both have the same machine."""
    made: list[float] = []
    removed: list[float] = []
    added: list[float] = []
    dropped: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        top = _repository(Path(place) / "repository")
        for number in range(scale.times(TIMES)):
            for ours in (True, False) if number % 2 else (False, True):
                path = Path(place) / "subagent" / "worktrees" / f"run-{number}-{ours:d}"
                if ours:
                    _ours(top, path, made, removed)
                else:
                    words = ("worktree", "add", "--quiet", "-b", f"plain-{number}", str(path))
                    added.append(_timed(partial(_git, top, *words)))
                    dropped.append(_timed(partial(_git, top, "worktree", "remove", str(path))))
    bar = (Bar("ratio", 1.3),)
    return [
        Line(f"make one, {FILES:,} files", made, "git worktree add", added, bar),
        Line(
            f"look for changes and remove it, {FILES:,} files", removed, "git worktree remove", dropped, bar
        ),
    ]


def _ours(top: Path, path: Path, made: list[float], removed: list[float]) -> None:
    began = time.perf_counter()
    found = find_repository(os.environ, top)
    worktree = Worktree(
        path=str(path),
        branch=f"subagent/{path.name}",
        base=found.head,
        origin=str(found.top),
        repository=str(found.common),
    )
    state = make_worktree(worktree, os.environ)
    made.append((time.perf_counter() - began) * 1000)
    removed.append(_timed(lambda: settle_worktree(worktree, state, "none", os.environ, lambda _: None)))


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def _repository(top: Path) -> Path:
    top.mkdir()
    _git(top, "init", "--quiet")
    for number in range(FILES):
        file = top / f"part{number // _IN_A_DIRECTORY}" / f"file{number}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"line {number}\n" * 20, encoding="utf-8")
    _git(top, "add", "--all")
    _git(top, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "first")
    return top


def _git(top: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(top), *words], check=True, capture_output=True)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else Scale().runs))))
