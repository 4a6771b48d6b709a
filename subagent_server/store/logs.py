"""The journal of a run (`events.jsonl`), and the same for people (`run.log`)."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from subagent_server.domain.errors import UnreadableMeta
from subagent_server.domain.records import Usage
from subagent_server.domain.times import timestamp
from subagent_server.host import journal
from subagent_server.host.directory import Entry
from subagent_server.host.stderr import log
from subagent_server.store.log_format import render
from subagent_server.store.paths import RunPaths

MAX_FIELD_CHARACTERS = 64_000
"""A longer text is cut in the middle and its event says `cut`; `outputs/` has what tools printed whole."""


class RunJournal:
    """Writes events to both files. There is a single writer at a time: the worker, then reconciliation.

    A disk that refuses is a warning on stderr, and the run goes on (SPEC section 6).
    """

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._seq: int | None = None

    def append(self, kind: str, now: datetime, facts: dict[str, Any]) -> None:
        """Append one event of type `kind` with these camelCase facts."""
        try:
            seq = self._seq or next_seq(self._run)
            self._seq = None  # a write that fails may have left its line all the same
            event = {"seq": seq, "at": timestamp(now), "type": kind, **_cut(facts)}
            journal.append_line(self._run.events, event)
            self._seq = seq + 1
            journal.append_bytes(self._run.log, render(event).encode("utf-8", "replace"))
        except OSError as error:
            log(f"The journal of the run could not be written ({error}); the run goes on.")


def next_seq(run: RunPaths) -> int:
    """Return the number of the next event. A last line without its newline counts: the next write adds it."""
    for line in (journal.torn_line(run.events), *reversed(journal.tail(run.events, 50).lines)):
        event = journal.parse(line)
        if event is not None and isinstance(event.get("seq"), int):
            return int(event["seq"]) + 1
    return 1


def recorded_usage(run: RunPaths) -> Usage | None:
    """Return the usage by the last entry of the journal: newer than the meta file while the run works."""
    try:
        event = journal.last_of(run.events, "usage")
        return None if event is None else Usage.model_validate(event)
    except (OSError, ValidationError):
        return None  # a journal is data: one that is damaged must not keep a run from being stopped


def recorded_can_run_code(run: RunPaths) -> list[str]:
    """Return the files that a run left and that can run code, by the end of its journal."""
    try:
        warning = journal.latest(run.events, frozenset({"warning"}), within=10).get("warning", {})
    except OSError:
        return []
    found = warning.get("canRunCode")
    return [path for path in found if isinstance(path, str)] if isinstance(found, list) else []


def page(file: Entry, cursor: int | None, lines: int) -> journal.Page:
    """Return a page of a line file: its last lines, or the lines from `cursor` on. Raises UnreadableMeta."""
    try:
        return journal.tail(file, lines) if cursor is None else journal.read_from(file, cursor, lines)
    except OSError as error:
        raise UnreadableMeta(file.directory.path.name, file.path, error.strerror or str(error)) from error


def in_order(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return lines of several journals, each with the id of its run, in the order of their times."""
    return sorted(lines, key=lambda each: _time_of(each[1]))  # stable: lines of one moment stay as they are


def _time_of(line: str) -> str:
    return str((journal.parse(line) or {}).get("at", ""))


def _cut(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts that fit a line, marked as `cut` if something was left out."""
    bounded: dict[str, Any] = _bounded(facts)
    return bounded if bounded == facts else bounded | {"cut": True}


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_FIELD_CHARACTERS:
        half = MAX_FIELD_CHARACTERS // 2
        return f"{value[:half]}\n… {len(value) - 2 * half} characters left out …\n{value[-half:]}"
    if isinstance(value, dict):
        return {key: _bounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value]
    return value
