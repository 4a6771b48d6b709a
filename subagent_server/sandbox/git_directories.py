"""The parts of git directories that decide what git executes."""

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from subagent_server.sandbox.placeholders import COMMONDIR, is_placeholder

READ_ONLY = ("hooks", "config", "info", COMMONDIR)
"""In every git directory, also while missing. `commondir` turns git to another one, with its own `config`."""
READ_ONLY_IF_THERE = ("modules", "worktrees")
"""These hold git directories again."""
WORKTREE_CONFIG = "config.worktree"
_OF_A_REPOSITORY = ("HEAD", "objects", "refs", COMMONDIR)
_WRITTEN = ("objects", "refs", "logs")
_LONGEST_POINTER = 8192
_LARGEST_CONFIG = 1 << 20
_GIT_SECONDS = 3.0
_HOOKS, _WORKTREE_CONFIG = "core.hookspath", "extensions.worktreeconfig"
_SEEN_BY_GIT = ("PATH", "HOME", "XDG_CONFIG_HOME")


@dataclass(frozen=True)
class LinkedWorktree:
    """The parts of a repository outside of its worktree: read-only, writable, and read-only below these.

    `own` is what the repository keeps for this worktree alone.
    """

    common: Path
    own: Path
    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def is_repository(directory: Path) -> bool:
    """Whether git takes this directory itself for a repository (is_git_directory in its setup.c)."""
    there = {name for name in _OF_A_REPOSITORY if os.path.lexists(directory / name)}
    return makes_repository(there - {COMMONDIR} if (directory / COMMONDIR).is_dir() else there)


def makes_repository(names: Set[str]) -> bool:
    """Whether git takes a directory with these names in it for a repository."""
    return "HEAD" in names and (COMMONDIR in names or {"objects", "refs"} <= names)


def is_placeholder_at(path: Path) -> bool:
    """Whether a placeholder is at `path`."""
    with suppress(OSError):
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return is_placeholder(directory, path.name)
        finally:
            os.close(directory)
    return False


def linked_worktree(cwd: Path) -> LinkedWorktree | None:
    """Return the outer parts of the linked worktree `cwd`, or None if that is not proved.

    The file `.git` of the worktree is data: it may name any directory, also one that must not be shown. So
    the repository that it names has to name the worktree in turn, which only a writer of the repository can
    arrange.
    """
    own = _pointer(cwd / ".git", "gitdir: ")
    if own is None:
        return None
    own = Path(os.path.realpath(cwd / own))
    common = own.parent.parent
    back = _pointer(own / "gitdir")
    is_known = (
        own.parent.name == "worktrees"
        and is_repository(common)
        and _real(own, _pointer(own / COMMONDIR)) == common
        and back is not None
        and os.path.realpath(back) == str(cwd / ".git")
    )
    if not is_known or not own.is_dir():
        return None
    written = tuple(
        path for path in (*(common / name for name in _WRITTEN), own) if _is_plain_directory(path)
    )
    kept = tuple(own / name for name in (COMMONDIR, "gitdir", WORKTREE_CONFIG) if _is_plain_file(own / name))
    return LinkedWorktree(common, own, written, kept)


def of_branches(worktree: LinkedWorktree, prefix: str) -> LinkedWorktree:
    """Return the parts of a worktree whose branch begins with `prefix/`: a commit on it writes no other.

    `objects/info` can borrow the objects of other repositories, so that is read-only too.
    """
    objects = worktree.common / "objects"
    branches = [worktree.common / place / prefix for place in ("refs/heads", "logs/refs/heads")]
    written = (path for path in (objects, *branches, worktree.own) if _is_plain_directory(path))
    borrowed = (path for path in (objects / "info",) if _is_plain_directory(path))
    return replace(worktree, written=tuple(written), kept=(*worktree.kept, *borrowed))


def named_in_configuration(git_directory: Path, top: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of git's configuration and the directories of its hooks that lie below `top`.

    They are beside the usual ones: files that are included, and hooks of `core.hooksPath`, also if missing.

    Raises:
        OSError: git could not say.
    """
    files, hooks = [], []
    for origin, key, value in _settings(git_directory):
        file = git_directory / origin
        files.append(file)
        if key == _HOOKS and value:
            hooks.append(top / Path(value).expanduser())
        elif key.startswith("include") and key.endswith(".path") and value:
            files.append(file.parent / Path(value).expanduser())
        elif _is_worktree_config(key, value):
            files.append(git_directory / WORKTREE_CONFIG)
    usual = {git_directory / name for name in READ_ONLY}
    return _below(top, files, usual), _below(top, hooks, usual)


def reads_worktree_config(git_directory: Path) -> bool:
    """Whether git reads a `config.worktree` of each worktree. Raises OSError: git could not say."""
    return any(_is_worktree_config(key, value) for _, key, value in _settings(git_directory))


def _is_worktree_config(key: str, value: str) -> bool:
    return key == _WORKTREE_CONFIG and value != "false"


def _below(top: Path, paths: Iterable[Path], usual: set[Path]) -> list[Path]:
    found = (Path(os.path.normpath(path)) for path in dict.fromkeys(paths))
    return [path for path in found if path != top and path.is_relative_to(top) and path not in usual]


def _settings(git_directory: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file, key and value of each setting that git has for a repository."""
    status = (git_directory / "config").stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_CONFIG:
        raise OSError(None, "it is too large, or not a file")
    command = ["git", f"--git-dir={git_directory}", "config", "--list", "--show-origin", "-z"]
    environment = {name: os.environ[name] for name in _SEEN_BY_GIT if name in os.environ}
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=git_directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except FileNotFoundError:
        return  # nobody executes anything here by git
    except subprocess.SubprocessError as error:
        raise OSError(None, "git cannot read its configuration") from error
    words = iter(done.stdout.decode("utf-8", "surrogateescape").split("\0"))
    for origin, setting in zip(words, words, strict=False):
        key, _, value = setting.partition("\n")
        yield origin.removeprefix("file:"), key, value


def _pointer(file: Path, prefix: str = "") -> Path | None:
    """Return the path in a small file of git, or None if it is not one."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.fsdecode(os.read(descriptor, _LONGEST_POINTER)).rstrip("\n")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    path = content.removeprefix(prefix)
    if not path or "\0" in path or not content.startswith(prefix):
        return None
    return Path(path)


def _real(base: Path, path: Path | None) -> Path | None:
    return None if path is None else Path(os.path.realpath(base / path))


def _is_plain_directory(path: Path) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def _is_plain_file(path: Path) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False
