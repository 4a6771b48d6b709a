"""Following the journal of a run: a look reads only the new lines, and a bounded part of them."""

from dataclasses import dataclass
from typing import Any

from subagent_server.domain.records import RunMeta
from subagent_server.domain.times import timestamp
from subagent_server.host import journal
from subagent_server.service.reconcile import ending_facts
from subagent_server.store.paths import RunPaths
from subagent_server.store.runs import RunStore

Event = dict[str, Any]
MAX_BYTES = 256 * 1024
"""How much one look reads. Of more, the newest is read: a feed is for watching, not a record."""
_MAX_LINES = 5_000


@dataclass(frozen=True)
class JournalPlace:
    """How far a journal was followed: the byte behind a line, and whether the end of the run was reported."""

    cursor: int = 0
    ended: bool = False


@dataclass(frozen=True)
class JournalNews:
    """The events since the last look; `left_out`: they were too many, and the first are missing."""

    events: list[Event]
    left_out: bool = False


class JournalFollower:
    """Follows the journal of a run from a place on. Used by one thread at a time."""

    def __init__(self, store: RunStore, run_id: str, place: JournalPlace | None = None) -> None:
        self._run = store.paths.run(run_id)
        self.place = place or _end(self._run)
        """How far it has come; without a place to begin at: where the journal ends now."""

    def news(self) -> JournalNews:
        """Return the events since the last look; a journal that cannot be read has none."""
        try:
            start = max(self.place.cursor, self._run.events.stat().st_size - MAX_BYTES)
            page = journal.read_from(self._run.events, start, _MAX_LINES, max_bytes=MAX_BYTES)
        except OSError:
            return JournalNews([])
        left_out = start > self.place.cursor
        lines = page.lines[1:] if left_out else page.lines  # the first of them is cut
        events = [event for line in lines if (event := journal.parse(line)) is not None]
        return JournalNews(self._unreported(page.cursor, events), left_out)

    def ending(self, meta: RunMeta) -> Event | None:
        """Return the last event of an ended run's journal, if not read yet.

        The state is written before this event, so a reader of the state may be too early for the event.
        """
        if self.place.ended or meta.ended_at is None:
            return None
        self.place = JournalPlace(self.place.cursor, ended=True)
        return {"at": timestamp(meta.ended_at), "type": "run_ended", **ending_facts(meta)}

    def _unreported(self, cursor: int, events: list[Event]) -> list[Event]:
        """Remember how far the reader has come; leave out an end already reported."""
        ended = self.place.ended
        ends = [event for event in events if event.get("type") == "run_ended"]
        self.place = JournalPlace(cursor, ended or bool(ends))
        return [event for event in events if event not in ends] if ended else events


def _end(run: RunPaths) -> JournalPlace:
    try:
        page = journal.tail(run.events, 1)
    except OSError:
        return JournalPlace()
    last = journal.parse(page.lines[0]) if page.lines else None
    return JournalPlace(page.cursor, last is not None and last.get("type") == "run_ended")
