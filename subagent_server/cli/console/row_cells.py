"""The cells that every list of runs on a terminal shares. A short list does not wait for pydantic."""

import sys
from datetime import UTC, datetime

from subagent_server.cli.console.output import is_terminal
from subagent_server.cli.console.text import duration, one_line
from subagent_server.service.run_row import RunRow
from subagent_server.store.latest import latest_doing
from subagent_server.store.paths import RootPaths


def run_cell(run_id: str) -> str:
    """Return the id for a list: on a terminal its last part, which every command takes as well."""
    return run_id.rpartition("-")[2] if is_terminal(sys.stdout) else run_id


def age_cell(row: RunRow) -> str:
    """Return how long ago the run was made, in one unit: `41s`, `3m`, `2d`."""
    if row.created is None:
        return ""
    words = duration((datetime.now(UTC) - row.created).total_seconds())
    return words[: next(place + 1 for place, c in enumerate(words) if c.isalpha())]


def what_cell(root: RootPaths, row: RunRow) -> str:
    """Return the cell WHAT: the label of the run, and its result, its present step or its task."""
    if row.unreadable is not None:
        return one_line(row.unreadable)
    slot = "waits for a slot" if row.waiting_for_slot else None
    told = row.summary or slot or latest_doing(root.run(row.run_id))
    return " · ".join(one_line(text) for text in (row.label, told) if text)
