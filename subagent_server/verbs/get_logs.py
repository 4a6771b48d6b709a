"""The verb `get_logs`: a run's log, journal, result or payload, page by page.

Tested in `tests/server/test_results.py` and `tests/cli/test_logs.py`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from subagent_server.run import durable
from subagent_server.run.errors import BadArgument
from subagent_server.run.files import Entry
from subagent_server.run.journal import page
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import Record, RunMeta
from subagent_server.run.states import timestamp
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.reconcile import ending_facts, observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import MAX_RESULT_CHARACTERS

Stream = Literal["log", "events", "result", "payload"]
MAX_LINES = 1_000
PAGE_CHARACTERS = 20_000


class LogPage(Record):
    """A page of a stream. `cursor` goes into the next call; `at_end`: nothing more is there yet."""

    run_id: str
    stream: str
    text: str
    cursor: str
    at_end: bool
    total_characters: int | None = None
    note: str | None = Field(default=None, description="Why the page is empty")


def get_logs(
    service: Service,
    run_id: str,
    stream: Stream = "log",
    cursor: str | None = None,
    lines: int = 50,
    caller: Caller = USER,
) -> LogPage:
    """Return a page: the last `lines` of a log, or what follows `cursor`. A result starts at its beginning.

    Raises:
        BadArgument: the cursor or the number of lines is not valid.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    if not 1 <= lines <= MAX_LINES:
        raise BadArgument(f"lines is {lines}: give 1 to {MAX_LINES}.")
    meta = observe(service.store, run_id, caller).meta
    offset = _offset(cursor)
    run = service.store.paths.run(run_id)
    if stream in ("log", "events"):
        return _page(run_id, stream, run.log if stream == "log" else run.events, offset, lines)
    text, start = _whole(service, run_id, stream), offset or 0
    # As much as a view shows: of a longer answer Codex leaves out the middle (12,000 bytes; 48,000 with its
    # own models), while the cursor has passed it.
    part = text[start : start + MAX_RESULT_CHARACTERS]
    end = start + len(part)
    return LogPage(
        run_id=run_id,
        stream=stream,
        text=part,
        cursor=str(end),
        at_end=end >= len(text),
        total_characters=len(text),
        note=None if text else why_empty(meta, stream),
    )


def why_empty(meta: RunMeta, stream: str) -> str:
    """Return why there is nothing in a stream that a run writes once."""
    if not meta.status.is_terminal:
        return f"Run {meta.run_id} is {meta.status.value}: its {stream} comes with its end."
    return f"Run {meta.run_id} is {meta.status.value} and left no {stream}: its log shows how far it came."


def _offset(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
        raise BadArgument(f"{cursor[:40]!r} is no cursor: use the one of the page before, or none.")
    return int(cursor)


def _page(run_id: str, stream: str, file: Entry, offset: int | None, lines: int) -> LogPage:
    """Return a page. Of long lines it has fewer, and the next page the rest; at the tail the newest stay."""
    found = page(file, offset, lines, PAGE_CHARACTERS)
    text = "\n".join(found.lines)
    if len(text) > PAGE_CHARACTERS and offset is None:
        text = "… " + text[-PAGE_CHARACTERS:]
    elif len(text) > PAGE_CHARACTERS:  # a single line
        text = text[: PAGE_CHARACTERS - 2] + " …"
    return LogPage(run_id=run_id, stream=stream, text=text, cursor=str(found.cursor), at_end=found.at_end)


def _whole(service: Service, run_id: str, stream: str) -> str:
    if stream == "payload":
        payload = service.store.read_payload(run_id)
        return "" if payload is None else payload.decode("utf-8", "replace")
    result = service.store.read_result(run_id)
    if result is None:
        return ""
    return result.to_json().decode() if result.has_output else result.text


# -- Following the journal of a run: a look reads only the new lines, and a bounded part of them.


Event = dict[str, Any]
MAX_BYTES = 256 * 1024
"""How much one look reads. If there is more, it reads the newest: a feed is for watching, not a record."""
_MAX_LINES = 5_000


@dataclass(frozen=True)
class JournalPosition:
    """How far a journal was followed: the byte behind a line, and whether the end of the run was reported."""

    cursor: int = 0
    ended: bool = False


@dataclass(frozen=True)
class JournalNews:
    """The events since the last look; `left_out`: they were too many, and the first are missing."""

    events: list[Event]
    left_out: bool = False


class JournalFollower:
    """Follows the journal of a run from a position on. Used by one thread at a time."""

    def __init__(self, store: RunStore, run_id: str, position: JournalPosition | None = None) -> None:
        self._run = store.paths.run(run_id)
        self.position = position or _end(self._run)
        """How far it has come; without a position to begin at: where the journal ends now."""

    def news(self) -> JournalNews:
        """Return the events since the last look; a journal that cannot be read has none."""
        try:
            start = max(self.position.cursor, self._run.events.stat().st_size - MAX_BYTES)
            page = durable.read_from(self._run.events, start, _MAX_LINES, max_bytes=MAX_BYTES)
        except OSError:
            return JournalNews([])
        left_out = start > self.position.cursor
        lines = page.lines[1:] if left_out else page.lines  # the first of them is cut
        events = [event for line in lines if (event := durable.parse(line)) is not None]
        ends = [event for event in events if event.get("type") == "run_ended"]
        if self.position.ended:  # an end already reported is left out
            events = [event for event in events if event not in ends]
        self.position = JournalPosition(page.cursor, self.position.ended or bool(ends))
        return JournalNews(events, left_out)

    def ending(self, meta: RunMeta) -> Event | None:
        """Return the last event of an ended run's journal, if not read yet.

        The state is written before this event, so a reader of the state may be too early for the event.
        """
        if self.position.ended or meta.ended_at is None:
            return None
        self.position = JournalPosition(self.position.cursor, ended=True)
        return {"at": timestamp(meta.ended_at), "type": "run_ended", **ending_facts(meta)}


def _end(run: RunPaths) -> JournalPosition:
    try:
        page = durable.tail(run.events, 1)
    except OSError:
        return JournalPosition()
    last = durable.parse(page.lines[0]) if page.lines else None
    return JournalPosition(page.cursor, last is not None and last.get("type") == "run_ended")
