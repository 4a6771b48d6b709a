"""Following the journal of a run: only what is new is read, and never much of it at once."""

import threading
from dataclasses import dataclass
from typing import Any

from subagent_server.domain.records import RunMeta, timestamp
from subagent_server.host import journal
from subagent_server.service.reconcile import ending_facts
from subagent_server.store.paths import RunPaths
from subagent_server.store.runs import RunStore

Event = dict[str, Any]
MAX_EVENTS = 200
"""How many events one look takes. Of more, the newest are taken: a feed is for watching, not a record."""


@dataclass(frozen=True)
class Place:
    """How far a journal was followed: the byte behind a line, its `seq`, and whether it was the end."""

    cursor: int = 0
    seq: int = 0
    ended: bool = False


@dataclass(frozen=True)
class News:
    """What has happened since the last look; `left_out`: it was too much, and its beginning is missing."""

    events: list[Event]
    left_out: bool = False


class Follower:
    """Follows the journal of one run from a place on. May be used by several threads."""

    def __init__(self, store: RunStore, run_id: str, place: Place | None = None) -> None:
        self._run = store.paths.run(run_id)
        self._lock = threading.Lock()
        self.place = place or _end(self._run)
        """How far it has come; without a place to begin at: where the journal ends now."""

    def news(self) -> News:
        """Return the events since the last look; a journal that cannot be read has none."""
        with self._lock:
            try:
                if _size(self._run) <= self.place.cursor:
                    return News([])
                page = journal.read_from(self._run.events, self.place.cursor, MAX_EVENTS)
                left_out = not page.at_end
                if left_out:
                    page = journal.tail(self._run.events, MAX_EVENTS)
            except OSError:
                return News([])
            events = [e for line in page.lines if (e := _parsed(line)) and _seq(e) > self.place.seq]
            self._go_on(page.cursor, events)
            return News(events, left_out)

    def ending(self, meta: RunMeta) -> Event | None:
        """Return the event that ends the journal of a run that has ended, if it was not read yet.

        The journal gets it after the state, so whoever has just heard of the end may be too early for it.
        """
        with self._lock:
            if self.place.ended or meta.ended_at is None:
                return None
            self.place = Place(self.place.cursor, self.place.seq, ended=True)
        return {"at": timestamp(meta.ended_at), "type": "run_ended", **ending_facts(meta)}

    def _go_on(self, cursor: int, events: list[Event]) -> None:
        """Remember how far it has come; an end that was told already is not told again."""
        seq = max([self.place.seq, *map(_seq, events)])
        ends = [event for event in events if event.get("type") == "run_ended"]
        if self.place.ended:
            events[:] = [event for event in events if event not in ends]
        self.place = Place(cursor, seq, self.place.ended or bool(ends))


def _end(run: RunPaths) -> Place:
    try:
        page = journal.tail(run.events, 1)
    except OSError:
        return Place()
    last = _parsed(page.lines[0]) if page.lines else None
    return Place(page.cursor, _seq(last or {}), (last or {}).get("type") == "run_ended")


def _size(run: RunPaths) -> int:
    return run.events.stat().st_size


def _seq(event: Event) -> int:
    number = event.get("seq")
    return number if isinstance(number, int) else 0


def _parsed(line: str) -> Event | None:
    try:
        return journal.parse(line)
    except RecursionError:
        return None  # nested deeper than anything that a run writes
