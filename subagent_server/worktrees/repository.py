"""The repository of a directory, and whether a run may be given a worktree of it."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import CallerError, shorten
from subagent_server.sandbox.git_directories import common_directory
from subagent_server.worktrees.git import Git, GitFailed, harmless_git
from subagent_server.worktrees.store import BRANCHES


class NoWorktree(CallerError):
    """No worktree can be made from a directory."""

    code = "no_worktree"


@dataclass(frozen=True)
class FoundRepository:
    """The repository of a directory: its common directory, and the commit that `HEAD` names.

    `top` is the working copy, or the directory of a bare repository; `prefix` leads from there to the
    directory.
    """

    top: Path
    prefix: str
    common: Path
    head: str


def find_repository(
    environment: Mapping[str, str], directory: Path, *, within: Path | None = None
) -> FoundRepository:
    """Return the repository of a directory, given by its real path.

    `within` is the directory of a run that could have written what is there: a repository below it is not
    looked at, and one at its top must not lead to another one, whose files the run may not read.

    Raises:
        NoWorktree: there is none, or none that worktrees can be made from.
    """
    if within is not None and (made := _made_by_run(directory, within)) is not None:
        raise NoWorktree(_refused(directory, f"{made.name} is a repository within the directory of a run"))
    try:
        git = harmless_git(environment, directory)
        is_bare, is_in_copy, common = os.fsdecode(
            git.run(
                "find a repository",
                *("rev-parse", "--path-format=absolute"),
                *("--is-bare-repository", "--is-inside-work-tree", "--git-common-dir"),
            )
        ).splitlines()
        top, prefix = Path(common), ""
        if is_in_copy == "true":
            top = Path(git.line("find the working copy", "rev-parse", "--show-toplevel"))
            prefix = git.line("find the working copy", "rev-parse", "--show-prefix").rstrip("/")
        elif is_bare != "true":
            raise NoWorktree(_refused(directory, "it lies inside the directory of a repository"))
        head = git.commit("HEAD")
        lacking = None if head is None else _lacking(git, head)
    except (GitFailed, ValueError) as error:
        why = error.sentence if isinstance(error, GitFailed) else "its name has a line break"
        raise NoWorktree(_refused(directory, why)) from error
    if head is None:
        raise NoWorktree(_refused(directory, "its repository has no commit yet"))
    found = FoundRepository(Path(os.path.realpath(top)), prefix, Path(os.path.realpath(common)), head)
    if lacking is not None:
        raise NoWorktree(_refused(directory, lacking))
    if within is not None:
        _check_leads_nowhere(found, directory)
    return found


def _refused(directory: Path, why: str) -> str:
    return (
        f"isolation: worktree cannot be kept in {shorten(str(directory), 200)}: {why.rstrip('.')}. Start it "
        "in a repository that has a commit, or remove `isolation` from the agent file."
    )


def _made_by_run(directory: Path, within: Path) -> Path | None:
    """Return the directory below that of a run in which there is a repository that has this directory."""
    below = [
        place for place in (directory, *directory.parents) if place != within and within in place.parents
    ]
    return next((place for place in below if os.path.lexists(place / ".git")), None)


def _lacking(git: Git, head: str) -> str | None:
    """Return why no worktree can be made from a commit, or None."""
    if git.commit(f"refs/heads/{BRANCHES}") is not None:
        return f"a branch is called {BRANCHES}, which leaves no room for those of runs: rename it"
    is_partial = any(key.startswith("remote.") and key.endswith(".promisor") for key in git.settings)
    if is_partial or "extensions.partialclone" in git.settings:
        words = ("rev-list", "--objects", "--missing=print", "--no-walk", head)
        if any(line.startswith(b"?") for line in git.run("list the files", *words).splitlines()):
            return "its partial clone lacks files of HEAD, which `git fetch --refetch` brings"
    return None


def _check_leads_nowhere(found: FoundRepository, directory: Path) -> None:
    """Refuse a repository that could show files of another one. Raises NoWorktree."""
    entry = found.top / ".git"
    is_own = common_directory(found.top) == found.common
    with suppress(OSError):
        is_own = is_own or (stat.S_ISDIR(entry.lstat().st_mode) and found.common == entry)
    borrows = any(os.path.lexists(found.common / "objects" / "info" / name) for name in _BORROWED)
    if not is_own or borrows or _has_links(found.common):
        raise NoWorktree(_refused(directory, "its repository leads to another one"))


_BORROWED = ("alternates", "http-alternates")


def _has_links(common: Path) -> bool:
    """Whether a link could give objects or names of another repository out as those of this one."""
    objects = common / "objects"
    places = [common / "HEAD", common / "refs", objects, *_below(objects, 1), *_below(common / "refs", 8)]
    return any(place.is_symlink() for place in places)


def _below(directory: Path, depth: int) -> list[Path]:
    found: list[Path] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            found.append(Path(entry.path))
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                found += _below(Path(entry.path), depth - 1)
    return found
