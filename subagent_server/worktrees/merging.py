"""Merging the branch of a run: worked out in objects first, then brought into the working copy in one step.

The result is a commit that `git merge-tree` has shown to be free of conflicts. The working copy moves on to
it as a fast-forward, which git refuses as a whole if it would overwrite anything that is not committed.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from subagent_server.run.confined_path import printable
from subagent_server.run.errors import CallerError
from subagent_server.run.executed_files import executed_by
from subagent_server.sandbox.git_files import git_settings
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.standstill import standing_still
from subagent_server.worktrees.git import NO_PROGRAMS, USAGE, Git, GitFailed, harmless_git, joined, signing
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.settling import commit_tree
from subagent_server.worktrees.store_of_run import belong_together

MergeWay = Literal["merge", "squash", "rebase"]
MERGE_WAYS: tuple[MergeWay, ...] = ("merge", "squash", "rebase")
MOST_NAMED = 10
_LINK = "120000"
"""How git writes the mode of a symbolic link."""
_BY_GIT = frozenset(("unspecified", "unset", "set", ""))
"""The answers of git for an attribute that names no filter."""


class NotMerged(CallerError):
    """The branch of a run was not merged; the working copy is as it was."""

    code = "not_merged"


@dataclass(frozen=True)
class MergeOrder:
    """The order to merge `tip` of `branch`, whose work began at `base`, into the working copy `target`.

    `target` is that of the `repository`, or this itself if it is bare.
    `into` reads the target if that is the worktree of a run, which has to be on its branch: what the run has
    written there must not decide which branch is moved, and git outside of a box is not called there.
    `before` is the commit that an earlier merge of all this has made. `workers` are those of the live runs
    that can write in the target. `holds` are descriptors of locks that git keeps until it has written.
    `signs` is false if a run orders it: a signature says that the person has agreed.
    """

    target: Path
    repository: Path
    branch: str
    base: str
    tip: str
    way: MergeWay
    message: str
    into: Reader | None = None
    before: str | None = None
    workers: Sequence[int] = ()
    holds: Sequence[int] = ()
    signs: bool = True


def merge_branch(order: MergeOrder, environment: Mapping[str, str]) -> tuple[str, bool]:
    """Merge a branch; return the target's commit afterwards, and whether it had the work already.

    Raises:
        NotMerged: it conflicts, would touch uncommitted changes, or brings files that run code.
        GitFailed: git refused. In each case the target is as it was, except where the sentence differs.
    """
    if order.into is None:
        git = harmless_git(environment, order.target)
        if order.target != order.repository:
            _check_is_copy(git, order)
        head = git.commit("HEAD")
    else:
        git, head = order.into.git, _head_of_run(order, order.into)
    if head is None:
        raise NotMerged(f"{_shown(order.target)} has no commit to merge into: nothing was merged.")
    if any(git.is_ancestor(commit, head) for commit in (order.tip, order.before) if commit):
        return head, True
    # In the worktree of a run nothing is signed either: the person signs what is merged from there.
    signer = signing(git, environment) if order.signs and order.into is None else None
    made = (_rebased if order.way == "rebase" else _merged)(git, order, head, signer)
    fields = git.names("list the changes", "diff", "--raw", "-z", "--no-renames", *NO_PROGRAMS, head, made)
    entries, touched = fields[::2], fields[1::2]
    # Before anything moves: a merge would bring files that other programs execute into the person's copy.
    executed = [
        name
        for entry, name in zip(entries, touched, strict=True)
        if executed_by(name.split("/"), or_above=entry.split()[1] == _LINK) is not None
    ]
    _check_executed(order, executed)
    if order.into is not None:
        try:
            order.into.bring_in(made)
        except GitFailed as error:
            raise _in_the_way(order, error.why) from error
        return made, False
    if _is_bare(git):
        git.run("move HEAD", "update-ref", "-m", f"merge {order.branch}", "HEAD", made, head)
        return made, False
    _check_executed(order, _named_by_settings(order.target, touched, environment))
    _check_filters(git, order, touched)
    _check_submodules(order, entries, touched)
    _bring_in(git, order, head, made, touched)
    return made, False


def _check_is_copy(git: Git, order: MergeOrder) -> None:
    """Refuse a directory from which git is led elsewhere by now.

    A run in a directory above can have written the configuration, or `.git`: files would go anywhere.
    """
    top = git.line("find the working copy", "rev-parse", "--show-toplevel")
    named_back = git.settings.get("core.worktree")
    if os.path.realpath(top) != str(order.target) or not belong_together(
        order.target, order.repository, named_back
    ):
        raise NotMerged(
            f"{_shown(order.target)} is no working copy of {_shown(order.repository)} any more: nothing was "
            "merged. Look at its .git, and at core.worktree in its configuration."
        )


def _head_of_run(order: MergeOrder, into: Reader) -> str:
    """Return the commit of a run's worktree, which the repository then has. Raises NotMerged, GitFailed."""
    there, branch = into.head(), into.worktree.branch
    if there.on != f"refs/heads/{branch}":
        raise NotMerged(f"{_shown(order.target)} is not on {branch} any more: nothing was merged.")
    if into.git.commit(there.tip) is None:
        into.take(there.tip)
    return there.tip


def _merged(git: Git, order: MergeOrder, head: str, signer: Git | None) -> str:
    tree = _tree_of(git, order, head, order.tip, "")
    if order.way == "merge":
        return commit_tree(git, tree, [head, order.tip], order.message, signer=signer)
    if tree == _tree(git, head):
        return head
    return commit_tree(git, tree, [head], order.message, signer=signer)


def _rebased(git: Git, order: MergeOrder, head: str, signer: Git | None) -> str:
    """Return the last of the commits of the branch, rebased one by one on `head`."""
    words = ("rev-list", "--topo-order", order.tip, f"^{head}", f"^{order.base}")
    made = head
    for commit in git.line("list the commits", *words, "--reverse", "--no-merges").split():
        made = _picked(git, order, commit, made, signer)
    has_merges = git.line("list the commits", *words, "--merges", "--max-count=1")
    if has_merges and _tree(git, made) != _tree_of(git, order, head, order.tip, ""):
        raise NotMerged(
            f"{order.branch} has merge commits with changes of their own, which --rebase would leave out: "
            "nothing was merged. Take --merge or --squash."
        )
    return made


def _picked(git: Git, order: MergeOrder, commit: str, head: str, signer: Git | None) -> str:
    """Return a commit rebased on `head`, or `head` if that has its change already.

    `git merge-tree` learns its base from the history, so it gets three commits that have no other history.
    """
    before = commit_tree(git, _tree(git, f"{commit}^"), [], "before")
    ours = commit_tree(git, _tree(git, head), [before], "ours")
    theirs = commit_tree(git, _tree(git, commit), [before], "theirs")
    tree = _tree_of(git, order, ours, theirs, f" (commit {commit[:12]})")
    if tree == _tree(git, head):
        return head
    wanted = "--format=%an%x00%ae%x00%ad%x00%B"
    fields = git.run("read a commit", "log", "-1", "--date=raw", wanted, commit).decode("utf-8", "replace")
    name, address, date, message = fields.split("\0", 3)
    author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address, "GIT_AUTHOR_DATE": date}
    return commit_tree(git, tree, [head], message.removesuffix("\n"), author, signer)  # that of `git log`


def _tree_of(git: Git, order: MergeOrder, ours: str, theirs: str, where: str) -> str:
    """Return the tree of a merge without conflicts. Raises NotMerged with the names of those in conflict."""
    words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs)
    code, output, complaint = git.tried("merge", *words)
    tree, *names = os.fsdecode(output).split("\0")
    if code == 1:
        raise NotMerged(
            f"{order.branch} conflicts with {_shown(order.target)} in {_named(names)}{where}: nothing was "
            f"merged. Merge it by hand there (`git merge {order.branch}`), or let the run continue and "
            "resolve it."
        )
    if code == USAGE:
        raise GitFailed("merge", "it takes git 2.38 or later")
    if code and git.tried("compare commits", "merge-base", ours, theirs)[0] == 1:
        raise NotMerged(
            f"{order.branch} and {_shown(order.target)} have no commit in common: nothing was merged. "
            "--rebase puts the commits of the run on top of those there."
        )
    if code:
        raise GitFailed("merge", complaint)
    return tree.strip()


def _tree(git: Git, commit: str) -> str:
    return git.line("read a commit", "rev-parse", "--verify", f"{commit}^{{tree}}")


def _check_executed(order: MergeOrder, executed: list[str]) -> None:
    """Refuse a merge that brings files which other programs execute: no run may write these."""
    if executed:
        raise NotMerged(
            f"{order.branch} changes files that other programs execute by themselves ({_named(executed)}): "
            f"nothing was merged. Look at these, then merge by hand (`git merge {order.branch}`)."
        )


def _named_by_settings(target: Path, touched: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return what settings of git name, what lies in it, and what is, or becomes, a link on the way to it.

    Raises:
        GitFailed.
    """
    top = Path(os.path.realpath(target))
    try:
        named = set(git_settings(environment, top).executed)
    except BoxRefused as error:
        raise GitFailed("merge", error.reason) from error
    way = {each for path in named for each in (path, *path.parents)}
    return [name for name in touched if top / name in way or not named.isdisjoint((top / name).parents)]


def _check_filters(git: Git, order: MergeOrder, touched: list[str]) -> None:
    """Refuse a merge of files that a configured filter makes: it is a program, and would not be run."""
    configured = {
        key.removeprefix("filter.").rpartition(".")[0]
        for key, value in git.settings.items()
        if key.startswith("filter.") and value
    }
    if not configured or not touched:
        return
    words = ("check-attr", "-z", "--stdin", "filter")
    fields = os.fsdecode(git.run("read the attributes", *words, stdin=joined(touched))).split("\0")
    filtered = [
        name
        for name, value in zip(fields[::3], fields[2::3], strict=False)
        if value not in _BY_GIT and value in configured
    ]
    if filtered:
        raise NotMerged(
            f"{order.branch} changes files that a filter of git makes ({_named(filtered)}), and no program "
            f"of a repository is run here: nothing was merged. Merge it by hand (`git merge {order.branch}`)."
        )


def _check_submodules(order: MergeOrder, entries: list[str], touched: list[str]) -> None:
    """Refuse a merge of a file that replaces a submodule with files, which git would delete unasked."""
    filled = [
        name
        for entry, name in zip(entries, touched, strict=True)
        if entry.startswith(":160000 ") and entry.endswith("T") and _holds_files(order.target / name)
    ]
    if filled:
        raise NotMerged(
            f"{order.branch} replaces submodules that hold files ({_named(filled)}): nothing was merged. "
            "`git submodule deinit` empties one of which you need nothing more; then try again."
        )


def _holds_files(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


def _bring_in(git: Git, order: MergeOrder, head: str, made: str, touched: list[str]) -> None:
    """Move the working copy on from `head` to `made`; git refuses as a whole what it would overwrite."""
    words = ("--ff-only", "--quiet", "--no-stat", "--no-verify", "--no-autostash", "--no-overwrite-ignore")
    with ExitStack() as stopped:
        try:  # git follows a link that replaces a directory while it writes the files in it
            stopped.enter_context(standing_still(order.workers))
        except OSError as error:
            why = f"programs of a run write in {_shown(order.target)}, and do not pause ({error})"
            raise NotMerged(
                f"{order.branch} was not merged: {why}. Try again when that run has ended."
            ) from error
        before = _stamps(order.target, touched)
        try:
            code, _, complaint = git.tried("merge", "merge", *words, made, finishes=True, holds=order.holds)
        except GitFailed as error:  # such as a git that was killed: it may have written some of the files
            code, complaint = 1, error.why
        if not code:
            return
        if git.commit("HEAD") != head:
            raise NotMerged(f"{_shown(order.target)} has moved on meanwhile: nothing was merged. Try again.")
        # Git writes the files before it moves the branch, which another git or a killed one may have locked.
        listing = ("diff-index", "--cached", "--name-only", "-z", "--no-renames", *NO_PROGRAMS, head)
        if set(touched) <= set(git.names("look at the index", *listing)):
            back = ("read-tree", "-m", "-u", made, head)
            is_back = not git.tried("take the merge back", *back, finishes=True, holds=order.holds)[0]
        else:
            is_back = _stamps(order.target, touched) == before
    why = complaint.rstrip(".")
    if is_back:
        raise _in_the_way(order, why)
    raise NotMerged(
        f"{order.branch} was not merged, but git could not write all of it ({why}), and has left some of its "
        f"files in {_shown(order.target)}: `git status` shows them there. Put them back, then try again."
    )


def _stamps(target: Path, names: list[str]) -> list[tuple[int, int] | None]:
    """Return what changes with each writing of a file: its inode and the moment of its last change."""

    def stamp(name: str) -> tuple[int, int] | None:
        try:
            seen = os.lstat(target / name)
        except OSError:
            return None
        return seen.st_ino, seen.st_ctime_ns

    return [stamp(name) for name in names]


def _in_the_way(order: MergeOrder, why: str) -> NotMerged:
    return NotMerged(
        f"{order.branch} was not merged, and {_shown(order.target)} is as it was: git refused "
        f"({why}). Commit or stash what is in the way, then try again."
    )


def _is_bare(git: Git) -> bool:
    return git.line("look at the repository", "rev-parse", "--is-bare-repository") == "true"


def _named(names: list[str]) -> str:
    every = [printable(name)[:200] for name in dict.fromkeys(filter(None, names))]
    more = [f"and {len(every) - MOST_NAMED} more"] if len(every) > MOST_NAMED else []
    return ", ".join([*every[:MOST_NAMED], *more])


def _shown(target: Path) -> str:
    return printable(str(target))[:300]
