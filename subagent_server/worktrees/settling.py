"""The end of a worktree: changes are committed on its branch and counted, and one without any is removed.

What the run has left is read as data (`reading.py`). Every step may be repeated after a kill.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from subagent_server.run.confined_path import printable
from subagent_server.run.files import Directory, is_directory, remove_tree
from subagent_server.run.records import Worktree, WorktreeState
from subagent_server.run.stderr import failpoint
from subagent_server.worktrees.git import GIT_SECONDS, NO_PROGRAMS, Git, GitFailed, identity_of
from subagent_server.worktrees.reading import MOST_NAMED, LeftWork, Reader, drop_scratch
from subagent_server.worktrees.store_of_run import (
    drop_references,
    has_base,
    pin_of,
    repository_of,
    set_reference,
    store_of,
)

HOLDS_MORE = "It holds"
"""How the notes begin of a worktree with work that no commit has."""
_OF_LEFT = (HOLDS_MORE, "A merge has not ended")
"""How notes on what a run has left begin: a run that continues it may have changed that."""


def settle_worktree(
    worktree: Worktree,
    state: WorktreeState,
    message: str,
    environment: Mapping[str, str],
    begin_removal: Callable[[WorktreeState], None],
    *,
    seconds: float = GIT_SECONDS,
) -> WorktreeState:
    """Keep the changes of a run as commits on its branch, or remove the worktree and the branch.

    `begin_removal` records the state before anything is deleted, and `seconds` bounds each command of git.
    The run has no program at work any more.

    Raises:
        GitFailed, OSError, NotOurs: nothing is lost; it can be tried again.
    """
    git = repository_of(worktree, environment, seconds=seconds)
    if state.phase == "removing":
        return _removed(worktree, state, git)
    _check_repository(git, worktree)
    branch = f"refs/heads/{worktree.branch}"
    start = git.commit(branch)
    left, notes = _left(Reader(git, worktree, state, environment), start or worktree.base, message)
    failpoint("worktree.committed")
    commits = int(git.line("count the commits", "rev-list", "--count", left.tip, f"^{worktree.base}"))
    if not (commits or notes):
        going = state.model_copy(update={"phase": "removing", "tip": worktree.base, "commits": 0})
        begin_removal(going)  # first: whoever finds a removal that was cut completes it
        return _removed(worktree, going, git)
    if left.tip != start:
        set_reference(git, branch, left.tip)
    failpoint("worktree.moved")
    files, insertions, deletions = changes_between(git, worktree.base, left.tip)
    return state.model_copy(
        update={
            "phase": "kept",
            "tip": left.tip,
            "commits": commits,
            "files": files,
            "insertions": insertions,
            "deletions": deletions,
            "notes": [*(note for note in state.notes if not note.startswith(_OF_LEFT)), *notes],
            "trouble": None,
        }
    )


def _left(reader: Reader, start: str, message: str) -> tuple[LeftWork, list[str]]:
    """Return what the run has left, and remarks on it.

    Commits that could not be read the time before either are left out: they must not keep the files from
    being brought home.
    """
    worktree = reader.worktree
    if not is_directory(Path(worktree.path)) and not is_directory(store_of(worktree)):
        return LeftWork(start), []
    notes = []
    try:
        left = reader.everything(start, message, history=True)
    except GitFailed as error:
        if reader.state.trouble is None:
            raise
        left = reader.everything(start, message, history=False)
        notes.append(
            f"{HOLDS_MORE} commits of its own in {store_of(worktree)}, which could not be read: {error.why}."
        )
    if left.repositories:
        strange = _named(left.repositories)
        notes.append(f"{HOLDS_MORE} repositories or files in submodules, which no commit has: {strange}.")
    if left.unreadable:
        notes.append(
            f"{HOLDS_MORE} files that git cannot read or add, which no commit has: {_named(left.unreadable)}."
        )
    if left.branches:
        notes.append(
            f"{HOLDS_MORE} commits on other branches, which are not merged: {_named(left.branches)}. They "
            f"are in {store_of(worktree)}."
        )
    if left.conflicts:
        notes.append(f"A merge has not ended in {_named(left.conflicts)}: look at this before you merge.")
    return left, notes


def take_over(worktree: Worktree, state: WorktreeState, environment: Mapping[str, str]) -> None:
    """Let the files and the store of an ended run be as its branch is, for a run that continues it.

    Raises:
        GitFailed, OSError, NotOurs.
    """
    git = repository_of(worktree, environment)
    _check_repository(git, worktree)
    tip = git.commit(f"refs/heads/{worktree.branch}") or worktree.base
    if state.phase == "kept":
        Reader(git, worktree, state, environment).renew(tip)


def _check_repository(git: Git, worktree: Worktree) -> None:
    if not has_base(git, worktree):
        why = f"{worktree.repository} is not the repository in which it was made, or lacks {pin_of(worktree)}"
        raise GitFailed("find the base of the worktree", f"{why}: put that back, then try again")


def drop_worktree(worktree: Worktree, environment: Mapping[str, str]) -> None:
    """Delete a worktree and its branch, whatever is in them. Raises GitFailed, OSError, NotOurs."""
    _delete(worktree, repository_of(worktree, environment))


def drop_files(worktree: Worktree) -> None:
    """Delete the files and the store of a worktree. Raises OSError."""
    with suppress(FileNotFoundError):
        for path in (Path(worktree.path), store_of(worktree)):
            remove_tree(Directory(path.parent).entry(path.name))
        drop_scratch(worktree)


def _removed(worktree: Worktree, state: WorktreeState, git: Git) -> WorktreeState:
    _delete(worktree, git)
    return state.model_copy(update={"phase": "removed", "trouble": None})


def _delete(worktree: Worktree, git: Git) -> None:
    drop_files(worktree)
    failpoint("worktree.dropped")
    if has_base(git, worktree):
        drop_references(git, worktree)


def changes_between(git: Git, base: str, tip: str) -> tuple[int, int, int]:
    """Return the numbers of files, insertions and deletions between two commits. Raises GitFailed."""
    entries = git.names("count changes", "diff", "--numstat", "-z", "--no-renames", *NO_PROGRAMS, base, tip)
    counts = [entry.split("\t", 2) for entry in entries]
    added, removed = ([int(one[at]) for one in counts if one[at].isdecimal()] for at in (0, 1))
    return len(counts), sum(added), sum(removed)


def commit_tree(
    git: Git,
    tree: str,
    parents: list[str],
    message: str,
    author: Mapping[str, str] | None = None,
    signer: Git | None = None,
) -> str:
    """Make a commit with the identity of the user, or a fixed one, signed if there is a signer; no hook runs.

    Raises:
        GitFailed.
    """
    words = [*(["-S"] if signer else []), *(word for parent in parents for word in ("-p", parent))]
    git = signer or git
    made = git.at(git.directory, **{**identity_of(git), **(author or {})})
    done = made.run("make a commit", "commit-tree", tree, *words, stdin=message.encode("utf-8", "replace"))
    return done.decode("ascii").strip()


def _named(repositories: list[str]) -> str:
    """Return the names of repositories in a few words; nothing if there are none."""
    found = [printable(name)[:100] for name in repositories]
    more = "many" if len(found) >= MOST_NAMED else len(found) - 3
    return ", ".join(found[:3]) + (f" and {more} more" if len(found) > 3 else "")
