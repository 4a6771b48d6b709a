"""Take over a runs root that has no mark: list its content first, then mark it as the user's.

A root of an earlier version, a copy, or a root brought by a CI job becomes the user's in this way: only the
user can decide this (SPEC section 13).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import BadArgument, StorageFailed, SubagentError
from subagent_server.domain.ids import is_run_id
from subagent_server.store.root import RootDirectory
from subagent_server.store.runs import RunStore

_OURS = frozenset(
    {".changes", ".unseen", ".slots", ".index", ".removed", ".backoff", ".gitignore", ".root", "README.md"}
)


@dataclass(frozen=True)
class Inventory:
    """The contents of a runs root: how many runs of each status, and the names that belong to no run.

    `unreadable` are directories named like runs, but without a readable state.
    """

    path: Path
    is_ours: bool
    statuses: Mapping[str, int]
    unreadable: int
    others: tuple[str, ...]

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return sum(self.statuses.values()) + self.unreadable


def take_inventory(path: Path) -> Inventory:
    """Return what is in the runs root at `path`. Nothing is changed.

    Raises:
        BadArgument: there is no directory.
    """
    store = RunStore(path)
    directory = store.paths.open()
    try:
        names = sorted(directory.names())
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be looked into ({error.strerror or error}): name the directory with the runs."
        ) from error
    statuses: Counter[str] = Counter()
    unreadable = 0
    for name in filter(is_run_id, names):
        try:
            statuses[store.read(name).status.value] += 1
        except SubagentError:
            unreadable += 1
    others = tuple(name for name in names if not is_run_id(name) and name not in _OURS)
    return Inventory(path, directory.forbidden is None, dict(statuses), unreadable, others)


def adopt(path: Path) -> None:
    """Mark the runs root at `path` as ours, and close it to others.

    Raises:
        UnsafeRoot: the root belongs to another user, or other users can still write to the root.
        StorageFailed: the mark cannot be written.
    """
    try:
        RootDirectory(path).adopt()
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
    RunStore(path).make_root()
