"""The end of a worktree: changes are committed on its branch and counted, and one without any is removed.

What the run has left is data. So only plumbing is used, with the directories of git given in words: neither
the `.git` file of the worktree nor its `HEAD` decides where something is written, and nothing in it is
executed. Every step may be repeated after a kill.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.domain.errors import HostError, shorten
from subagent_server.domain.records import Worktree
from subagent_server.domain.worktrees import WorktreeState
from subagent_server.host.directory import Directory
from subagent_server.host.failpoints import failpoint
from subagent_server.host.inside import printable
from subagent_server.host.removing import remove_tree
from subagent_server.worktrees.git import GIT_SECONDS, NO_PROGRAMS, Git, GitFailed, harmless_git, joined
from subagent_server.worktrees.making import inside_git, own_directory
from subagent_server.worktrees.repository import BRANCHES

_SUBMODULE = "160000 "
"""The mode of a submodule in an index."""
_NAME, _ADDRESS = "subagent", "subagent@localhost"
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")


class NotOurs(HostError):
    """A record that names a place or a branch that no run is ever given."""

    code = "not_our_worktree"

    def __init__(self, worktree: Worktree) -> None:
        super().__init__(
            f"{shorten(worktree.path, 200)} with the branch {shorten(worktree.branch)} is not a worktree "
            "that was made for a run, so nothing is changed there."
        )


def repository_of(worktree: Worktree, environment: Mapping[str, str], *, seconds: float = GIT_SECONDS) -> Git:
    """Return git for the repository of a worktree, each of whose commands may take so many seconds.

    Raises:
        GitFailed: it is gone, or git is.
        NotOurs: the record names something else than a worktree of a run.
    """
    path, common = Path(worktree.path), Path(worktree.repository)
    is_plausible = (
        path.is_absolute()
        and path.parts[-3:-1] == ("subagent", "worktrees")
        and worktree.branch.startswith(f"{BRANCHES}/")
        and ".." not in worktree.branch
    )
    if not is_plausible:
        raise NotOurs(worktree)
    return harmless_git(environment, common, seconds=seconds).at(common, GIT_DIR=str(common))


def settle_worktree(
    worktree: Worktree,
    state: WorktreeState,
    message: str,
    environment: Mapping[str, str],
    begin_removal: Callable[[WorktreeState], None],
) -> WorktreeState:
    """Keep the changes of a run as commits on its branch, or remove the worktree and the branch.

    `begin_removal` records the state before anything is deleted. The run has no program at work any more.

    Raises:
        GitFailed, OSError, NotOurs: nothing is lost; it can be tried again.
    """
    git = repository_of(worktree, environment)
    if state.phase == "removing":
        return _removed(worktree, state, git)
    found = _found(worktree, state, git)
    tip = _committed(worktree, found, message, git)
    commits = int(git.line("count the commits", "rev-list", "--count", tip, f"^{worktree.base}"))
    strange = _named(found.repositories)
    if not commits and not strange:
        going = state.model_copy(update={"phase": "removing", "tip": worktree.base, "commits": 0})
        begin_removal(going)
        return _removed(worktree, going, git)
    notes = (
        [f"It holds repositories or files in submodules, which no commit has: {strange}."] if strange else []
    )
    files, insertions, deletions = changes_between(git, worktree.base, tip)
    return state.model_copy(
        update={
            "phase": "kept",
            "tip": tip,
            "commits": commits,
            "files": files,
            "insertions": insertions,
            "deletions": deletions,
            "notes": [*state.notes, *(note for note in notes if note not in state.notes)],
        }
    )


def changes_between(git: Git, base: str, tip: str) -> tuple[int, int, int]:
    """Return the numbers of files, insertions and deletions between two commits. Raises GitFailed."""
    entries = git.names("count changes", "diff", "--numstat", "-z", "--no-renames", *NO_PROGRAMS, base, tip)
    figures = [entry.split("\t", 2) for entry in entries]
    added, removed = ([int(one[at]) for one in figures if one[at].isdecimal()] for at in (0, 1))
    return len(figures), sum(added), sum(removed)


def drop_worktree(worktree: Worktree, environment: Mapping[str, str]) -> None:
    """Delete a worktree and its branch, whatever is in them. Raises GitFailed, OSError, NotOurs."""
    _delete(worktree, repository_of(worktree, environment))


def drop_files(worktree: Worktree) -> None:
    """Delete the files of a worktree whose repository is gone. Raises OSError."""
    path = Path(worktree.path)
    with suppress(FileNotFoundError):
        remove_tree(Directory(path.parent).entry(path.name))


# -- committing


@dataclass(frozen=True)
class _Found:
    """The files that differ from the index, and the directories that no commit can hold.

    These are untracked repositories, and the directories of submodules with files: git looks into neither.
    """

    is_there: bool = False
    gone: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)


def _found(worktree: Worktree, state: WorktreeState, git: Git) -> _Found:
    """Look through the worktree, once: in a large one this is most of the time that its end takes."""
    if not (Path(worktree.path).is_dir() and (own_directory(worktree) / "index").is_file()):
        return _Found()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="surrogateescape") as left_out:
        left_out.writelines(f"/{_literal(name)}\n" for name in state.included if "\n" not in name)
        left_out.flush()
        words = ("ls-files", "-z", "-t", "--deleted", "--modified", "--others", "--exclude-standard")
        here = inside_git(git, worktree)
        listed = here.names("look for changes", *words, f"--exclude-from={left_out.name}")
        staged = here.names("look for submodules", "ls-files", "-z", "--stage")
    gone = dict.fromkeys(entry[2:] for entry in listed if entry.startswith("R "))
    others = dict.fromkeys(entry[2:] for entry in listed if not entry.startswith("R "))
    there = [name for name in others if name not in gone and not name.endswith("/")]
    modules = [entry.partition("\t")[2] for entry in staged if entry.startswith(_SUBMODULE)]
    filled = [name for name in modules if _has_files(Path(worktree.path, name))]
    return _Found(True, list(gone), there, [*filled, *(name for name in others if name.endswith("/"))])


def _has_files(directory: Path) -> bool:
    with suppress(OSError):
        return any(os.scandir(directory))
    return False


def _committed(worktree: Worktree, found: _Found, message: str, git: Git) -> str:
    """Return the last commit of the branch after everything that the run left is committed on it."""
    branch = f"refs/heads/{worktree.branch}"
    tip = git.commit(branch) or worktree.base
    own = own_directory(worktree)
    if not found.is_there:
        return tip
    here = inside_git(git, worktree)
    head = here.commit("HEAD") or tip
    if not git.is_ancestor(worktree.base, head):
        head = tip
    parents = [head, *([] if git.is_ancestor(tip, head) else [tip])]
    with _own_index(own) as index:
        tree = _tree(found, here.at(here.directory, GIT_INDEX_FILE=str(index)))
        if tree != git.line("read a commit", "rev-parse", f"{head}^{{tree}}") or len(parents) > 1:
            head = commit_tree(git, tree, parents, message)
        failpoint("worktree.committed")
        git.run("move the branch", "update-ref", "--no-deref", "-m", "the end of the run", branch, head)
        failpoint("worktree.moved")
        here.run("name the branch", "symbolic-ref", "HEAD", branch)
        index.replace(own / "index")
    return head


@contextmanager
def _own_index(own: Path) -> Iterator[Path]:
    """Give a copy of the index of a worktree: the lock of a killed command is then in no one's way."""
    copy = own / f"index.{secrets.token_hex(8)}"
    with os.fdopen(os.open(own / "index", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as before:
        descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(before, file)
    try:
        yield copy
    finally:
        for left in (copy, copy.with_name(f"{copy.name}.lock"), own / "index.lock"):
            left.unlink(missing_ok=True)


def _tree(found: _Found, here: Git) -> str:
    """Return the tree of all files that are there and not ignored, as `git add --all` would have it.

    That command enters submodules, and so does their configuration.
    """
    gone, there = found.gone, found.there
    if gone:
        here.run("stage changes", "update-index", "-z", "--force-remove", "--stdin", given=joined(gone))
    if there:
        words = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        here.run("stage changes", *words, given=joined(there))
    return here.line("write a tree", "write-tree")


def _literal(name: str) -> str:
    """Return a pattern that fits this name alone."""
    return _SPECIAL.sub(r"\\\1", name)


def commit_tree(
    git: Git, tree: str, parents: list[str], message: str, author: Mapping[str, str] | None = None
) -> str:
    """Make a commit with the identity of the user, or a fixed one; nothing is signed and no hook runs.

    Raises:
        GitFailed.
    """
    name = git.settings.get("user.name") or _NAME
    address = git.settings.get("user.email") or _ADDRESS
    identity = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", name), ("EMAIL", address))
    }
    words = [word for parent in parents for word in ("-p", parent)]
    made = git.at(git.directory, **{**identity, **(author or {})})
    done = made.run("make a commit", "commit-tree", tree, *words, given=message.encode("utf-8", "replace"))
    return done.decode("ascii").strip()


def _named(repositories: list[str]) -> str:
    """Return the names of repositories in a few words; nothing if there are none."""
    found = [printable(name)[:100] for name in repositories]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


# -- removing


def _removed(worktree: Worktree, state: WorktreeState, git: Git) -> WorktreeState:
    _delete(worktree, git)
    return state.model_copy(update={"phase": "removed"})


def _delete(worktree: Worktree, git: Git) -> None:
    path, own = Path(worktree.path), own_directory(worktree)
    with suppress(GitFailed):  # the run may have broken what it needs for this; then the rest goes by hand
        git.run("remove the worktree", "worktree", "remove", "--force", "--force", str(path))
    drop_files(worktree)
    failpoint("worktree.dropped")
    with suppress(FileNotFoundError):
        remove_tree(Directory(own.parent).entry(own.name))
    git.run("delete the branch", "update-ref", "--no-deref", "-d", f"refs/heads/{worktree.branch}")
