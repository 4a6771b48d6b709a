"""The rows of a root for a screen that stays open: all of them once, then those that have changed.

Tested in `tests/page/test_stream.py`.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from subagent_server.run import durable
from subagent_server.run.agent_definition import CALLS_FILE, END_FILE, OUTPUT_FILE, PROGRAM_FILE
from subagent_server.run.errors import BadArgument, UnreadableMeta, shorten
from subagent_server.run.files import Directory
from subagent_server.run.journal import Message, latest_doing, read_transcript, recorded_usage
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import is_run_id
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.list_runs import RowReader, RunList
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import RunRow

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
        over = sorted(run_id for run_id, row in self._rows.items() if row["over"])
        for run_id in over[:-MAX_ENDED]:  # a page that is open for days sees many end
            del self._rows[run_id]
            self.has_older = True
        return TableNews(rows, gone)

    def _wire(self, row: RunRow) -> Row:
        wire = wire_row(row)
        return wire if row.is_over else wire | self._doing(self._store.paths.run(row.run_id))

    def _doing(self, run: RunPaths) -> Row:
        """Return the present step of a working run, and its cost so far, by its journal."""
        doing, usage = latest_doing(run), recorded_usage(run)
        facts: Row = {} if doing is None else {"doing": doing[:MAX_DOING_CHARACTERS]}
        if usage is not None and usage.tokens is not None:
            facts["tokens"] = usage.tokens
        if usage is not None and usage.cost_usd is not None:
            facts["costUsd"] = str(usage.cost_usd)
        return facts


def wire_row(row: RunRow) -> Row:
    """Return the JSON object of a row, without `elapsedSeconds`, which would be another at each look."""
    wire = row.to_full_wire() | {"over": row.is_over}
    wire.pop("elapsedSeconds", None)
    return wire


# -- The verb `older_runs`: ended runs behind those that a screen shows already, searched part by part.
#
# Tested in `tests/page/test_older_runs.py`.


MAX_ROWS = 200
MAX_SECONDS = 1.0
"""How long one part of a search takes at most."""
MAX_WORDS_CHARACTERS = 500


@dataclass(frozen=True)
class OlderRuns:
    """Rows of a part, the newest first; `before` leads to the next part, None if there is none."""

    rows: list[dict[str, Any]]
    looked_at: int
    before: str | None


def older_runs(service: Service, before: str, words: str = "", caller: Caller = USER) -> OlderRuns:
    """Return runs that are over and older than the run `before`, with all these words in their rows.

    Raises:
        BadArgument: `before` is not an id of a run, or the words are too long.
    """
    if not is_run_id(before):
        raise BadArgument(f"{shorten(before)} is not an id of a run: name the oldest that is shown.")
    if len(words) > MAX_WORDS_CHARACTERS:
        raise BadArgument(f"Search for at most {MAX_WORDS_CHARACTERS} characters.")
    wanted, store = words.lower().split(), service.store
    reader, marked = RowReader(store, caller), set(store.live_ids())
    rows: list[dict[str, Any]] = []
    looked_at, deadline = 0, time.monotonic() + MAX_SECONDS
    for run_id in store.newest_first():
        if run_id >= before:
            continue
        found = reader.read(run_id, is_marked=run_id in marked)
        looked_at += 1
        if found is not None and found[0].is_over and _has(found[0], wanted):
            rows.append(wire_row(found[0]))
        if len(rows) == MAX_ROWS or time.monotonic() > deadline:
            return OlderRuns(rows, looked_at, run_id)
    return OlderRuns(rows, looked_at, None)


def _has(row: RunRow, words: list[str]) -> bool:
    """Whether each word is in the row, as the filter of the page looks."""
    status = None if row.status is None else row.status.value
    texts = (row.run_id, row.agent, status, row.started_by, row.label, row.summary, row.unreadable)
    text = "\n".join(each for each in texts if each).lower()
    return all(word in text for word in words)


# -- Read the conversation and the tool outputs that a run's directory keeps, for people.
#
# Everything in it is data of a model or of programs.


MAX_FILE_BYTES = 16 << 20


def conversation(service: Service, run_id: str, last: int, caller: Caller = USER) -> list[Message]:
    """Return the last messages between a run and its model.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    observe(service.store, run_id, caller)
    run = service.store.paths.run(run_id)
    try:
        return list(read_transcript(run))[-last:]
    except OSError as error:
        raise UnreadableMeta(run_id, run.transcript.path, error.strerror or str(error)) from error


def output_names(service: Service, run_id: str) -> list[str]:
    """Return the names of the files that the tools of a run have printed; empty if they cannot be read."""
    outputs = service.store.paths.run(run_id).outputs
    try:
        return sorted(outputs.names())
    except OSError:
        return []


def read_output(service: Service, run_id: str, name: str, caller: Caller = USER) -> bytes:
    """Return the beginning of such a file, 16 MiB at most.

    Raises:
        BadArgument: there is no such file, or it is no plain one.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    observe(service.store, run_id, caller)
    outputs = service.store.paths.run(run_id).outputs
    try:
        if name in outputs.names():
            with outputs.entry(name).reader() as file:
                return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise BadArgument(f"{shorten(name)} cannot be read ({error.strerror or error}).") from error
    raise BadArgument(f"Run {run_id} has no file {shorten(name)}.")


# -- The programs that a run has run in code mode, as its directory keeps them. The files are data.


_MOST_BYTES = 8 << 20
_MOST_LINES = 2_500


@dataclass(frozen=True)
class KeptProgram:
    """One program. `calls` are the lines about its calls; `outcome` is None if its end is not known."""

    program: int
    code: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    outcome: int | None = None


def kept_programs(run: RunPaths) -> Iterator[KeptProgram]:
    """Yield the programs of a run in their order. A file that cannot be read leaves its part empty."""
    names = run.code.names() if run.code.exists() else []
    for name in sorted((name for name in names if name.isascii() and name.isdigit()), key=int):
        directory = run.code.below(name)
        yield KeptProgram(
            program=int(name),
            code=_text(directory, PROGRAM_FILE),
            calls=_calls(directory),
            output=_text(directory, OUTPUT_FILE),
            outcome=_outcome(directory),
        )


def _text(directory: Directory, name: str) -> str:
    with suppress(OSError):
        return directory.entry(name).read(_MOST_BYTES).decode("utf-8", "replace")
    return ""


def _calls(directory: Directory) -> list[dict[str, Any]]:
    found = [durable.parse(line) for line in _text(directory, CALLS_FILE).splitlines()[:_MOST_LINES]]
    return [call for call in found if call is not None]


def _outcome(directory: Directory) -> int | None:
    outcome = (durable.as_object(_text(directory, END_FILE)) or {}).get("outcome")
    return outcome if isinstance(outcome, int) else None
