"""Making a worktree: its store, the files of its base, and those that `.worktreeinclude` names."""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from subagent_server.run.confined_path import PathInside, inside, printable
from subagent_server.run.errors import BadArgument
from subagent_server.run.files import held_open
from subagent_server.run.records import Worktree, WorktreeState
from subagent_server.run.stderr import failpoint
from subagent_server.worktrees.git import Git, GitFailed, harmless_git
from subagent_server.worktrees.store_of_run import (
    borrowed_objects,
    is_of_run,
    pin_base,
    repository_of,
    store_of,
    write_known_references,
    write_pointer,
    write_store,
)

INCLUDE_FILE = ".worktreeinclude"
MAX_INCLUDED_FILES = 2_000
MAX_INCLUDED_BYTES = 256 << 20
MAX_PATTERN_BYTES = 64 << 10
_CHUNK = 1 << 20
_LOOK_SECONDS = 60.0


def make_worktree(
    worktree: Worktree, environment: Mapping[str, str], *, boxed: bool = False
) -> WorktreeState:
    """Make the files and the store of a worktree; the repository gets a reference that keeps the base.

    `boxed`: the run works in a box.

    Raises:
        GitFailed: git refused. What it has made by then is for `drop_worktree`.
        OSError: the disk refused.
    """
    path, store = Path(worktree.path), store_of(worktree)
    for directory in (path.parent.parent, path.parent):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    git = repository_of(worktree, environment)
    pin_base(git, worktree)
    path.mkdir(mode=0o700)
    origin, changed, untracked = Path(worktree.origin), 0, 0
    unseen: list[str] = []
    if is_of_run(origin, worktree):  # its own store is data: git looks there for names alone, by the new one
        looking = None
    else:
        looking = harmless_git(environment, origin)
        try:
            changed, untracked = _left_behind(replace(looking, seconds=_LOOK_SECONDS))
        except GitFailed as error:  # as by a FIFO instead of a HEAD below, which an earlier run left
            unseen.append(f"What is not committed there was not seen, nor copied ({error.why}).")
    borrowed = borrowed_objects(Path(worktree.repository))
    write_store(store, git, worktree, worktree.base, borrowed, signs=not boxed)
    write_known_references(store, git)
    write_pointer(worktree)
    failpoint("worktree.added")
    inside_it = git.at(path, GIT_DIR=str(store), GIT_WORK_TREE=str(path))
    inside_it.run("fill the worktree", "-c", "checkout.workers=0", "reset", "--hard", "--quiet")
    looking = looking or inside_it.at(origin, GIT_WORK_TREE=str(origin))
    included, notes = ([], []) if unseen else _include(replace(looking, seconds=_LOOK_SECONDS), origin, path)
    return WorktreeState(
        phase="working",
        boxed=boxed,
        left_changed=changed,
        left_untracked=untracked,
        included=included,
        notes=[*unseen, *notes, *_notes(path)],
    )


def _left_behind(git: Git) -> tuple[int, int]:
    """Return how many tracked files of the working copy differ from `HEAD`, and how many are untracked."""
    if git.settings.get("core.bare") == "true" and not (git.directory / ".git").exists():
        return 0, 0
    words = ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all")
    entries = git.names("look at the working copy", *words)
    untracked = sum(entry.startswith("??") for entry in entries)
    return len(entries) - untracked, untracked


def _notes(path: Path) -> list[str]:
    """Return what the run lacks besides uncommitted files."""
    notes = []
    if (path / ".gitmodules").is_file():
        notes.append("Its submodules are empty.")
    if "filter=" in _head_of(path, ".gitattributes"):
        notes.append(
            "Files that a filter of git makes (such as Git LFS) are as the repository stores them: filters "
            "are programs, and are not run."
        )
    return notes


def _head_of(top: Path, name: str) -> str:
    """Return the beginning of a plain file at the top of a directory, or nothing."""
    try:
        with inside(top, name) as target, _opened(target) as descriptor:
            return os.read(descriptor, MAX_PATTERN_BYTES).decode("utf-8", "replace")
    except (OSError, BadArgument):
        return ""


def _include(git: Git, origin: Path, path: Path) -> tuple[list[str], list[str]]:
    """Copy the untracked files that the patterns name; return their paths, and what was left out."""
    patterns = _head_of(origin, INCLUDE_FILE)
    if not patterns.strip():
        return [], []
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="subagent-include-") as file:
        file.write(patterns)
        file.flush()
        words = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={file.name}")
        try:
            named = git.names(f"read {INCLUDE_FILE}", *words)
        except GitFailed as error:  # a run can have left a FIFO
            return [], [f"What {INCLUDE_FILE} names was not copied ({error.why})."]
    included: list[str] = []
    refused: list[str] = []
    room = MAX_INCLUDED_BYTES
    for name in named[:MAX_INCLUDED_FILES]:
        try:
            room -= _copy(origin, path, name, room)
            included.append(name)
        except (OSError, BadArgument):
            refused.append(name)
    refused += named[MAX_INCLUDED_FILES:]
    notes = []
    if refused:
        shown = printable(refused[0])[:200]
        notes.append(f"{len(refused):,} files that {INCLUDE_FILE} names were not copied, such as {shown}.")
    return included, notes


def _copy(origin: Path, path: Path, name: str, room: int) -> int:
    """Copy a plain file of at most `room` bytes and return its size; no link leads out of either directory.

    Raises:
        OSError, BadArgument: it is no such file, or the name is taken.
    """
    with inside(origin, name) as source, _opened(source) as descriptor:
        status, size = os.fstat(descriptor), 0
        if status.st_size > room:
            raise BadArgument("The file is too large.")
        with inside(path, name, make_parents=True) as target:
            mode = status.st_mode & 0o700 or 0o600
            written = target.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                with os.fdopen(written, "wb") as file:
                    while chunk := os.read(descriptor, _CHUNK):
                        if (size := size + len(chunk)) > room:  # a run at work there lets it grow
                            raise BadArgument("The file is too large.")
                        file.write(chunk)
            except (OSError, BadArgument):  # half of it would be work of the run, in the room of its commits
                os.unlink(target.name, dir_fd=target.directory)
                raise
    return size


@contextmanager
def _opened(target: PathInside) -> Iterator[int]:
    """Open a plain file for reading. Raises OSError, BadArgument."""
    with held_open(target.open(os.O_RDONLY)) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadArgument(f"{target.shown} is not a file.")
        yield descriptor
