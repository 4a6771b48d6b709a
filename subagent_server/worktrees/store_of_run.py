"""The store of a worktree: a git directory of the run's own, which borrows the objects of the repository.

    ~/.local/state/subagent/worktrees/RUN        the files; `.git` in it is a file that names the store
    ~/.local/state/subagent/worktrees/RUN.git    the store

Hooks, configuration and the list of borrowed objects are written here, from the repository's own as far as
they execute nothing. In the repository itself a worktree leaves one reference, which keeps its base. Once a
run works in it, a store is data: git outside of a box is never called with it (`reading.py`).
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run.errors import CallerError, HostError, shorten
from subagent_server.run.files import Directory
from subagent_server.run.records import Worktree
from subagent_server.sandbox.git_files import common_directory, is_repository, plain_content, pointer
from subagent_server.worktrees.git import GIT_SECONDS, NAMELESS, Git, GitFailed, harmless_git

BRANCHES = "subagent"
"""The first part of the name of every branch made for a run."""
_PINS = "refs/subagent/base"
_STALE_SECONDS, _STALE_PACKED_SECONDS = 5.0, 60.0
"""The age at which the lock of a reference of ours, and of all packed ones, is that of a killed git."""
_LOOK_SECONDS = 30.0
"""A FIFO instead of a file of a repository would hold up each look for good."""
_MOST_BORROWED = 64
_MOST_TEXT = 1 << 20
_COPIED = (
    *("user.name", "user.email", "core.filemode", "core.ignorecase", "core.symlinks", "core.autocrlf"),
    *("core.eol", "core.safecrlf", "core.precomposeunicode", "core.protecthfs", "core.protectntfs"),
    *("core.quotepath", "extensions.objectformat"),
)
"""The settings of the user that a store has too: none names a program or a path."""
_SIGNING = ("commit.gpgsign", "tag.gpgsign", "gpg.format", "user.signingkey")
"""Further settings, for the store of a run without a box: in a box there is no key."""
_OURS = {
    "core.bare": "false",
    "core.fsync": "committed,reference,index",
    "gc.auto": "0",
    "maintenance.auto": "false",  # from git 2.54 on it packs in the background without `gc`, too
}
_HELD = ("config", "hooks", "info", "commondir", "objects/info/alternates")
"""The files that decide what git executes and reads. `commondir` could name another configuration."""


class NotOurs(HostError):
    """A record with a path or a branch that no run ever gets."""

    code = "not_our_worktree"

    def __init__(self, worktree: Worktree) -> None:
        super().__init__(
            f"{shorten(worktree.path, 200)} with the branch {shorten(worktree.branch)} is not a worktree "
            "that was made for a run, so nothing is changed there."
        )


def store_of(worktree: Worktree) -> Path:
    """Return the git directory of a worktree."""
    return Path(f"{worktree.path}.git")


def is_of_run(path: str | Path, worktree: Worktree) -> bool:
    """Whether a directory is the worktree of another run: it lies next to this one."""
    return Path(path).parent == Path(worktree.path).parent


def worktree_mounts(worktree: Worktree) -> list[tuple[str, Path]]:
    """Return what a box of the run shows of its worktree, as arguments of bubblewrap with their paths.

    The files and the store are written; what git executes by, and the borrowed objects, are read-only. These
    are those of the beginning alone: a run in a directory above can have let the repository lead to others.
    """
    store, files = store_of(worktree), Path(worktree.path)
    mounts = [("--bind", files), ("--ro-bind", files / ".git"), ("--bind", store)]
    mounts += [("--ro-bind", store / name) for name in _HELD]
    at_first = small_file(store / "objects" / "info" / "alternates").splitlines()
    borrowed = borrowed_objects(Path(worktree.repository))
    mounts += [("--ro-bind", path) for path in borrowed if str(path) in at_first]
    return [(how, path) for how, path in mounts if os.path.lexists(path)]


def repository_of(worktree: Worktree, environment: Mapping[str, str], *, seconds: float = GIT_SECONDS) -> Git:
    """Return git for the repository of a worktree; `seconds` bounds each command.

    Raises:
        GitFailed: it is gone, or git is.
        NotOurs: the record names something else than a worktree of a run.
    """
    path, common = Path(worktree.path), Path(worktree.repository)
    is_plausible = (
        path.is_absolute()
        and path.parts[-3:-1] == ("subagent", "worktrees")
        and ".." not in path.parts
        and worktree.branch.startswith(f"{BRANCHES}/")
        and ".." not in worktree.branch
    )
    if not is_plausible:
        raise NotOurs(worktree)
    if not common.is_dir():
        raise GitFailed(
            "open the repository of the worktree", f"{common} is gone: put it back, then try again"
        )
    return harmless_git(environment, common, seconds=seconds, GIT_DIR=str(common))


def borrowed_objects(repository: Path) -> list[Path]:
    """Return the directories of the objects of a repository, its own and what it borrows, by real paths.

    Boxes show them, and the list is data: it may name a directory of secrets.
    """
    found: list[Path] = []
    waiting = [repository / "objects"]
    while waiting and len(found) < _MOST_BORROWED:
        path = Path(os.path.realpath(waiting.pop(0)))
        if path not in found and path.is_dir() and (not found or is_repository(path.parent)):
            found.append(path)
            lines = small_file(path / "info" / "alternates").splitlines()
            waiting += [path / line for line in lines if line and line[0] not in '#"']
    return found


def small_file(path: Path) -> str:
    """Return the beginning of a plain file, or nothing; a link could lead to a secret of the user."""
    return os.fsdecode(plain_content(path, _MOST_TEXT) or b"")


def write_store(
    store: Path,
    git: Git,
    worktree: Worktree,
    tip: str,
    borrowed: Sequence[Path],
    *,
    signs: bool = False,
) -> None:
    """Make a git directory at `store`, whose branch is at `tip`. Raises OSError; GitFailed for odd names.

    With `signs`, what is committed there is signed as in the repository.
    """
    common = Path(worktree.repository)
    if any("\n" in str(path) for path in borrowed):
        raise GitFailed("borrow the objects of the repository", "its path has a line break")
    branch = store / "refs" / "heads" / worktree.branch
    for directory in (branch.parent, store / "objects" / "info", store / "objects" / "pack"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("hooks", "info"):
        (store / name).mkdir(mode=0o700, exist_ok=True)
    _write(store / "objects" / "info" / "alternates", "".join(f"{path}\n" for path in borrowed))
    copied = (*_COPIED, *(_SIGNING if signs else ()))
    settings = NAMELESS | {key: git.settings[key] for key in copied if key in git.settings}
    _write(store / "config", _configuration(settings))
    _write(store / "info" / "exclude", ignored_everywhere(git, common))
    _write(store / "commondir", ".\n")
    if shallow := small_file(common / "shallow"):
        _write(store / "shallow", shallow)
    _write(branch, f"{tip}\n")
    _write(store / "HEAD", f"ref: refs/heads/{worktree.branch}\n")


def write_known_references(store: Path, git: Git) -> None:
    """Let a store know the branches and tags of the repository. Raises OSError, GitFailed."""
    words = ("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/remotes", "refs/tags")
    lines = os.fsdecode(git.run("list the branches", *words)).splitlines()
    known = (line for line in lines if f" refs/heads/{BRANCHES}/" not in line)
    _write(store / "packed-refs", "# pack-refs with: sorted \n" + "".join(f"{line}\n" for line in known))


def write_pointer(worktree: Worktree) -> None:
    """Let the files name their store; the path changes atomically. Raises OSError."""
    new = store_of(worktree) / "pointer"
    _write(new, _pointer(worktree))
    new.replace(Path(worktree.path, ".git"))


def is_pointer(file: Path, worktree: Worktree) -> bool:
    """Whether a file is what `write_pointer` has written."""
    return small_file(file) == _pointer(worktree)


def _pointer(worktree: Worktree) -> str:
    return f"gitdir: {store_of(worktree)}\n"


def ignored_everywhere(git: Git, common: Path) -> str:
    """Return the patterns of ignored files of the repository and of the user.

    The run reads them. So the repository does not decide which file they are in.
    """
    home = git.variables.get("HOME", "/")
    configured = Path(git.variables.get("XDG_CONFIG_HOME") or f"{home}/.config", "git", "ignore")
    if named := git.of_user.get("core.excludesfile"):
        configured = Path(named.replace("~", home, 1) if named.startswith("~/") else named)
    of_user = small_file(Path(os.path.realpath(configured)))  # people keep it among others, by a link
    return f"{small_file(common / 'info' / 'exclude')}\n{of_user}\n"


def pin_base(git: Git, worktree: Worktree) -> None:
    """Keep the base of a worktree in its repository, whatever is deleted there. Raises GitFailed."""
    set_reference(git, pin_of(worktree), worktree.base)


def has_base(git: Git, worktree: Worktree) -> bool:
    """Whether a repository keeps the base of a worktree, so that it is the one where that was made.

    A run in a directory above can have replaced it by another one, or by a link to one. Raises GitFailed.
    """
    return git.commit(pin_of(worktree)) == worktree.base


def pin_of(worktree: Worktree) -> str:
    """Return the reference that keeps the base of a worktree."""
    return f"{_PINS}/{Path(worktree.path).name}"


def set_reference(git: Git, name: str, commit: str | None) -> None:
    """Let a reference of ours name a commit, or be gone; durable, and without a log. Raises GitFailed.

    Git holds the lock of one reference, and that of reftable, for milliseconds, so an old one is that of a
    git that was killed. To delete one it takes the lock of the packed ones, too, which `git gc` holds for
    longer: while it reads all references, and then while it writes.
    """
    directory = Path(git.variables["GIT_DIR"])
    value = ("-d", name) if commit is None else (name, commit)
    words = ("-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", *value)
    _drop_stale(directory, name)
    try:
        git.run("write a reference", *words)
    except GitFailed:  # git has waited for the lock, which by now is old
        if not _drop_stale(directory, name):
            raise
        git.run("write a reference", *words)
    for written in ((directory / name).parent, directory / "reftable"):
        sync_directories(written)


def _drop_stale(directory: Path, name: str) -> bool:
    """Remove the locks that a killed git has left; return whether there were any."""
    of_format = (f"{name}.lock", "reftable/tables.list.lock")  # reftable has one lock for all references
    own = _drop_old([directory / lock for lock in of_format], _STALE_SECONDS)
    packed = [directory / "packed-refs.new", directory / "packed-refs.lock"]
    return _drop_old(packed, _STALE_PACKED_SECONDS) or own


def _drop_old(files: Sequence[Path], seconds: float) -> bool:
    """Remove what is there of these files if nothing of it was written for so long."""
    there = [file for file in files if os.path.lexists(file)]
    with suppress(OSError):
        if there and time.time() - max(file.lstat().st_mtime for file in there) > seconds:
            for file in there:
                file.unlink()
            return True
    return False


def drop_references(git: Git, worktree: Worktree) -> None:
    """Delete the branch of a worktree and what keeps its base. Raises GitFailed."""
    for name in (f"refs/heads/{worktree.branch}", pin_of(worktree)):
        set_reference(git, name, None)


def sync_directories(directory: Path) -> None:
    """Make the names in a directory and in those above it, up to the git directory, durable."""
    for path in (directory, *directory.parents[:4]):
        with suppress(OSError):
            Directory(path).sync()


def _configuration(copied: Mapping[str, str]) -> str:
    settings = {**copied, **_OURS}
    has_extension = any(key.startswith("extensions.") for key in settings)
    settings["core.repositoryformatversion"] = "1" if has_extension else "0"
    lines = []
    for key, value in settings.items():
        section, _, name = key.partition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        lines.append(f'[{section}]\n\t{name} = "{escaped}"\n')
    return "".join(lines)


def _write(path: Path, text: str) -> None:
    path.write_bytes(os.fsencode(text))


# -- The repository of a directory, and whether a run may get a worktree of it.


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
    environment: Mapping[str, str], directory: Path, *, written: Sequence[Path] = ()
) -> FoundRepository:
    """Return the repository of a directory (its real path).

    `written` is where live runs write: a repository there could show files which they may not read, by what
    it borrows, by a link, or by a `.git` that names another one.

    Raises:
        NoWorktree: there is none, or none that worktrees can be made from.
    """
    try:
        git = harmless_git(environment, directory, seconds=_LOOK_SECONDS)
        is_bare, is_in_copy, common = git.line(
            "find a repository",
            *("rev-parse", "--path-format=absolute"),
            *("--is-bare-repository", "--is-inside-work-tree", "--git-common-dir"),
        ).split("\n")
        top, prefix = Path(common), ""
        str(directory).encode()  # records hold text
        if is_in_copy == "true":
            words = ("rev-parse", "--show-prefix", "--show-toplevel")
            prefix, copy = git.line("find the working copy", *words).split("\n")
            top, prefix = Path(copy), prefix.rstrip("/")
            if not belong_together(top, Path(os.path.realpath(common)), git.settings.get("core.worktree")):
                # files of another repository would be shown, or what is merged be written elsewhere
                names = f"{shorten(common, 200)} and {shorten(str(top), 200)}"
                raise _refused(directory, f"{names} do not name each other by core.worktree and .git")
        elif is_bare != "true":
            raise _refused(directory, "it lies inside the directory of a repository")
        head = git.commit("HEAD")
        lacking = None if head is None else _lacking(git, head)
    except (GitFailed, ValueError) as error:
        why = error.sentence if isinstance(error, GitFailed) else "its path has a line break, or is not UTF-8"
        raise _refused(directory, why) from error
    if head is None:
        raise _refused(directory, "its repository has no commit yet, or has lost it (`git fsck`)")
    found = FoundRepository(Path(os.path.realpath(top)), prefix, Path(os.path.realpath(common)), head)
    if is_written(found.top, found.common, written):
        lacking = "a run that is at work can write its repository"
    if lacking is not None:
        raise _refused(directory, lacking)
    return found


def belong_together(top: Path, common: Path, named_back: str | None) -> bool:
    """Whether a working copy and a repository name each other; a plain `.git` is of the directory around it.

    `.git` is data, as a file or a link: it may lead to any repository of the user.
    """
    named = top / ".git"
    leads_to = Path(os.path.realpath(top / (pointer(named, "gitdir: ") or named)))
    is_back = named_back is not None and os.path.realpath(common / named_back) == os.path.realpath(top)
    is_plain = named.is_dir() and not named.is_symlink()
    return common_directory(top) == common or (leads_to == common and (is_plain or is_back))


def _refused(directory: Path, why: str) -> NoWorktree:
    return NoWorktree(
        f"isolation: worktree cannot be kept in {shorten(str(directory), 200)}: {why.rstrip('.')}. Change "
        "that, start it elsewhere, or remove `isolation` from the agent file."
    )


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


def is_written(top: Path, common: Path, written: Sequence[Path]) -> bool:
    """Whether live runs, which write in these directories, can change what git of the host reads as settings.

    That is the repository `common`, or the `.git` of its working copy `top`, which leads there. A change
    between two commands of git would come too late for what `harmless_git` overrides. The `.git` of the
    working directory of a run is read-only for it.
    """
    return any(
        path.is_relative_to(each) and not path.is_relative_to(each / ".git")
        for path in (common, top / ".git")
        for each in written
    )
