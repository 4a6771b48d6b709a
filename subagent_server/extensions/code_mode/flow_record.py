"""The values that a flow got from elsewhere than a run: `code/001/record.jsonl`, a line for each.

A flow that is continued gets the same values again: bases of worktrees, merges, answers of people, results
of tools, moments and numbers. A file of a run directory is data: what has not the form of a line is passed
over.
"""

import threading
from collections.abc import Iterable
from typing import Any

from subagent_server.run import durable
from subagent_server.run.errors import RunRefused, storing
from subagent_server.run.files import Directory, Entry
from subagent_server.run.secrets import Masker

RECORD_FILE = "record.jsonl"


class FlowRecord:
    """The last line of each name: of the programs that this one continues, oldest first, and its own.

    Only where each line is stays in memory: 200,000 results of tools may have 16 MiB each. Raises
    RunRefused: one of them cannot be read.
    """

    def __init__(self, own: Directory, masker: Masker, before: Iterable[Directory]) -> None:
        self._file = own.entry(RECORD_FILE)
        self._masker = masker
        self._writing = threading.Lock()
        self._positions: dict[str, tuple[Entry, int]] = {}
        for directory in before:
            file = directory.entry(RECORD_FILE)
            try:
                for offset, line in durable.placed_records(file):
                    if isinstance(name := line.get("name"), str):
                        self._positions[name] = file, offset
            except OSError as error:  # without it, the effect of a tool would come a second time
                raise RunRefused(
                    "storage", f"{file.path} cannot be read ({error.strerror or error})."
                ) from error

    def line(self, name: str, *, own: bool = False) -> dict[str, Any] | None:
        """Return the line with the `value` of this name; without one if it began and its end is not known.

        With `own` those of the programs before count as not there.

        Raises:
            StorageFailed.
        """
        file, offset = self._positions.get(name, (None, 0))
        if file is None or (own and file is not self._file):
            return None
        with storing(file.path):
            return durable.record_at(file, offset)

    def write(self, name: str, **value: Any) -> None:
        """Write a `value`, or without one that something begins which may have an effect; it lasts.

        Raises:
            StorageFailed.
        """
        with storing(self._file.path), self._writing:
            offset = durable.append_line(self._file, self._masker.data({"name": name, **value}))
            self._file.sync()
            self._file.directory.sync()
            self._positions[name] = self._file, offset
