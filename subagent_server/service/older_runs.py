"""The verb `older_runs`: ended runs behind those that a screen shows already, searched part by part.

Tested in `tests/web/test_older_runs.py`.
"""

import time
from dataclasses import dataclass
from typing import Any

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.domain.ids import is_run_id
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.list_runs import RowReader
from subagent_server.service.run_row import RunRow
from subagent_server.service.run_table import wire_row

MAX_ROWS = 200
MAX_SECONDS = 1.0
"""How long one part of a search takes at most."""
MAX_WORDS_CHARACTERS = 500


@dataclass(frozen=True)
class OlderRuns:
    """Rows of a part, the newest first; `before` leads to the next part, None says that there is none."""

    rows: list[dict[str, Any]]
    looked_at: int
    before: str | None


def older_runs(service: Service, before: str, words: str = "", caller: Caller = USER) -> OlderRuns:
    """Return runs that are over and older than the run `before`, with all these words in their rows.

    Raises:
        BadArgument: `before` is not an id of a run, or the words are too long.
    """
    if not is_run_id(before):
        raise BadArgument(f"{shorten(before)!r} is not an id of a run: name the oldest that is shown.")
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
