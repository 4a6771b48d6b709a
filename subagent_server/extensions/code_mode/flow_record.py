"""What a flow has learnt that is not the result of a run: `code/001/record.jsonl`, a line a value.

A flow that is continued gets the same values again: bases of worktrees, merges, answers of people, results
of tools, moments and numbers. A file of a run directory is data: what has not the form of a line is passed
over.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from subagent_server.run import durable
from subagent_server.run.errors import StorageFailed
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker

RECORD_FILE = "record.jsonl"


class FlowRecord:
    """The last line of each name: of the programs that this one continues, oldest first, and its own."""

    def __init__(self, own: Directory, masker: Masker, before: Iterable[Directory]) -> None:
        self._file = own.entry(RECORD_FILE)
        self._masker = masker
        self._writing = threading.Lock()
        self._lines: dict[str, dict[str, Any]] = {}
        for directory in before:
            with suppress(OSError):
                for line in durable.records(directory.entry(RECORD_FILE)):
                    if isinstance(name := line.get("name"), str):
                        self._lines[name] = line

    def line(self, name: str) -> dict[str, Any] | None:
        """Return the line with the `value` of this name; without one if it began and its end is not known."""
        return self._lines.get(name)

    def write(self, name: str, **value: Any) -> None:
        """Write a `value`, or without one that something begins which may have an effect; it lasts.

        Raises:
            StorageFailed.
        """
        line = {"name": name, **value}
        try:
            with self._writing:
                durable.append_line(self._file, self._masker.data(line))
                self._file.sync()
                self._file.directory.sync()
                self._lines[name] = line
        except OSError as error:
            raise StorageFailed(self._file.path, error.strerror or str(error)) from error
