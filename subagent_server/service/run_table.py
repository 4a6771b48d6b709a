"""The rows of a root for a screen that stays open: all of them once, then those that have changed.

Tested in `tests/web/test_stream.py`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from subagent_server.domain.ids import is_run_id
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.list_runs import RowReader, RunList
from subagent_server.service.run_row import RunRow
from subagent_server.store.latest import latest_doing
from subagent_server.store.logs import recorded_usage
from subagent_server.store.paths import RunPaths

Row = dict[str, Any]
MAX_ENDED = 500
"""How many of the runs that are over are shown, the newest."""
MAX_DOING_CHARACTERS = 300


@dataclass(frozen=True)
class TableNews:
    """The rows that are new or have changed, and the ids of the runs that are gone."""

    rows: list[Row] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.gone)


class RunTable:
    """The rows as they were at the last look. Used by one thread at a time."""

    def __init__(self, service: Service, caller: Caller = USER) -> None:
        self._store = service.store
        self._caller = caller
        self._reader = RowReader(self._store, caller)
        self._rows: dict[str, Row] = {}
        self._listing: RunList | None = None
        self._seen_root = self._changed_at()
        self.has_older = False
        """Whether there are ended runs that are older than those of the table."""

    @property
    def rows(self) -> list[Row]:
        """All rows of the last look."""
        return list(self._rows.values())

    @property
    def active(self) -> list[str]:
        """The runs that were not over at the last look."""
        return [run_id for run_id, row in self._rows.items() if not row["over"]]

    def read_active(self) -> None:
        """Look at the whole root, and take every run that is not over."""
        self._seen_root = self._changed_at()
        self._listing = RunList(self._store, caller=self._caller)
        self._rows = {row.run_id: self._wire(row) for row in self._listing.active}

    def read_over(self) -> TableNews:
        """Take the newest of the other runs too, and return their rows."""
        if self._listing is None:
            return TableNews()
        newest = list(islice(self._listing.over(), MAX_ENDED + 1))
        self._listing = None
        self.has_older = len(newest) > MAX_ENDED
        rows = [self._wire(row) for row in newest[:MAX_ENDED]]
        self._rows |= {row["runId"]: row for row in rows}
        return TableNews(rows)

    def removed(self) -> list[str]:
        """Return the runs of the table that are not there any more, if a name came or went at all."""
        now = self._changed_at()
        if now == self._seen_root:
            return []
        self._seen_root = now
        return [run_id for run_id in self._rows if not self._store.exists(run_id)]

    def _changed_at(self) -> int | None:
        """When a name in the root came or went last, in ns since the epoch; None if there is no root."""
        try:
            return self._store.paths.root.stat().st_mtime_ns
        except OSError:
            return None

    def look(self, run_ids: Collection[str]) -> TableNews:
        """Look at these runs again, and return what has changed."""
        marked = set(self._store.live_ids())
        rows: list[Row] = []
        gone: list[str] = []
        for run_id in filter(is_run_id, run_ids):  # a watch also names what is no run
            found = self._reader.read(run_id, is_marked=run_id in marked)
            if found is None:
                if self._rows.pop(run_id, None) is not None:
                    gone.append(run_id)
                continue
            row = self._wire(found[0])
            if self._rows.get(run_id) != row:
                self._rows[run_id] = row
                rows.append(row)
        return TableNews(rows, gone)

    def _wire(self, row: RunRow) -> Row:
        wire = wire_row(row)
        return wire if row.is_over else wire | self._doing(self._store.paths.run(row.run_id))

    def _doing(self, run: RunPaths) -> Row:
        """Return the present step of a working run, and its cost so far, by its journal."""
        doing, usage = latest_doing(run), recorded_usage(run)
        told: Row = {} if doing is None else {"doing": doing[:MAX_DOING_CHARACTERS]}
        if usage is not None:
            if usage.tokens is not None:
                told["tokens"] = usage.tokens
            if usage.cost_usd is not None:
                told["costUsd"] = str(usage.cost_usd)
        return told


def wire_row(row: RunRow) -> Row:
    """Return the JSON object of a row, without `elapsedSeconds`, which would be another at each look."""
    wire = row.to_full_wire() | {"over": row.is_over}
    wire.pop("elapsedSeconds", None)
    return wire
