"""The stored runs, newest first, without looking into them. Standard library only: `ls` starts here.

The names are the entries of the runs root. In a large root the newest are also kept in `.index/newest.json`,
for as long as no entry came or went: a cache, which may be deleted at any time.
"""

import heapq
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from subagent_server.domain.errors import StorageFailed
from subagent_server.domain.ids import is_run_id
from subagent_server.host.atomic import write_durably
from subagent_server.host.directory import Entry
from subagent_server.store.paths import RootPaths

MANY = 2_000
"""From so many entries on, a root is large: what is known of it is kept."""
_KEPT = 256
_NEWEST, _NEWEST_BYTES = "newest.json", 64 << 10
_TICK_NS, _COARSE_TICK_NS = 100_000_000, 2_000_000_000
"""A change may hide behind another of the same tick of the clock: what is younger is not trusted. Some file
systems know only whole seconds."""


@dataclass(frozen=True)
class Extent:
    """The attributes of a root that change if a name comes or goes."""

    device: int
    inode: int
    changed_ns: int

    def is_settled(self, moment_ns: int) -> bool:
        """Whether every later change would have another time, seen at `moment_ns` since the epoch."""
        tick = _TICK_NS if self.changed_ns % 1_000_000_000 else _COARSE_TICK_NS
        return self.changed_ns + tick < moment_ns


def extent_of(root: RootPaths) -> Extent | None:
    """Return the attributes of the root now, or None if there is no root."""
    try:
        status = root.root.stat()
    except OSError:
        return None
    return Extent(status.st_dev, status.st_ino, status.st_mtime_ns)


class StoredRuns:
    """The names in a root that may be runs: only reading shows whether a name really is a run."""

    def __init__(self, root: RootPaths) -> None:
        self._root = root

    def is_large(self) -> bool:
        """Whether there is so much in the root that an index pays."""
        return bool(self._kept()) or len(self._names()) >= MANY

    def newest_first(self) -> Iterator[str]:
        """Yield every name that is a run id. A caller taking only a few does not pay for all."""
        kept = self._kept()
        yield from kept
        seen = set(kept)
        for name in _descending(self._names()):
            if name not in seen and is_run_id(name):
                yield name

    def starting_with(self, prefix: str) -> list[str]:
        """Return the run ids that begin so, newest first."""
        return sorted((n for n in self._listed() if n.startswith(prefix) and is_run_id(n)), reverse=True)

    def ending_in(self, tail: str) -> list[str]:
        """Return the run ids whose last part is `tail`, newest first."""
        found = (n for n in self._listed() if n.endswith(tail) and n.rsplit("-", 1)[-1] == tail)
        return sorted((n for n in found if is_run_id(n)), reverse=True)

    def _listed(self) -> list[str]:
        try:
            return self._root.open().names()
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _names(self) -> list[str]:
        """List the root; if it is large and at rest, keep its newest names for the next caller."""
        began, extent = time.time_ns(), extent_of(self._root)
        names = self._listed()
        if len(names) < MANY:
            return names
        index = self._root.index
        if not self._root.is_ours:
            return names
        with suppress(OSError):
            index.make_new()  # a change of the root as well
            return names
        if extent is not None and extent.is_settled(began):
            newest = [name for name in heapq.nlargest(_KEPT, names) if is_run_id(name)]
            _keep(index.entry(_NEWEST), {**_wire(extent), "names": newest})
        return names

    def _kept(self) -> list[str]:
        """Return the newest names as they were kept, if nothing came or went since; else none."""
        extent = extent_of(self._root)
        try:
            kept = json.loads(self._root.index.entry(_NEWEST).read(_NEWEST_BYTES))
            names = [str(name) for name in kept.pop("names")] if self._root.is_ours else []
            return (
                names if extent is not None and kept == _wire(extent) and all(map(is_run_id, names)) else []
            )
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return []


def _wire(extent: Extent) -> dict[str, int]:
    return {"device": extent.device, "inode": extent.inode, "changedNs": extent.changed_ns}


def _keep(file: Entry, content: dict[str, object]) -> None:
    """Write a cache for others; a root that cannot be written to does without."""
    with suppress(StorageFailed):
        write_durably(file, json.dumps(content).encode())


def _descending(names: list[str]) -> Iterator[str]:
    """Yield the names from the last to the first; the first few come before all are sorted."""
    if len(names) <= _KEPT:
        yield from sorted(names, reverse=True)
        return
    first = heapq.nlargest(_KEPT, names)
    yield from first
    yield from sorted(names, reverse=True)[len(first) :]
