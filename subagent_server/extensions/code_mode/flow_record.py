"""What a program has learnt that is not the result of a run: `code/NNN/record.jsonl`, a line a value.

A flow that is continued gets the same values again: bases of worktrees, merges, answers of people, results
of tools, moments and numbers. A file of a run directory is data: what has not the form of a line is passed
over.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from subagent_server.run import durable
from subagent_server.run.errors import StorageFailed
from subagent_server.run.files import Directory
from subagent_server.run.paths import RunPaths
from subagent_server.run.secrets import Masker

RECORD_FILE = "record.jsonl"
_BEGUN = "begun"


class FlowRecord:
    """The values of one program: those of the runs that it continues, oldest first, and its own."""

    def __init__(self, directory: Directory, masker: Masker, before: Iterable[RunPaths]) -> None:
        self._file = directory.entry(RECORD_FILE)
        self._masker = masker
        self._is_synced = True
        self._values: dict[str, Any] = {}
        self._begun: set[str] = set()
        for run in before:
            for line in _lines_of(run):
                if isinstance(name := line.get("name"), str):
                    self._begun.add(name)
                    if _BEGUN not in line:
                        self._values[name] = line.get("value")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def was_begun(self, name: str) -> bool:
        """Whether this was begun by a run whose end is not known to have been written."""
        return name in self._begun

    def begin(self, name: str) -> None:
        """Write that something begins that may have an effect. Raises StorageFailed."""
        self._write({"name": name, _BEGUN: True})
        self.sync()

    def keep(self, name: str, value: Any) -> None:
        """Write a value, which lasts from the next `sync` on. Raises StorageFailed."""
        self._values[name] = value
        self._write({"name": name, "value": self._masker.data(value)})

    def sync(self) -> None:
        """Make what was written last through a power cut: what paid calls depend on. Raises StorageFailed."""
        if self._is_synced:
            return
        try:
            self._file.sync()
            self._file.directory.sync()
        except OSError as error:
            raise self._refused(error) from error
        self._is_synced = True

    def _write(self, line: dict[str, Any]) -> None:
        try:
            durable.append_line(self._file, line)
        except OSError as error:
            raise self._refused(error) from error
        self._is_synced = False

    def _refused(self, error: OSError) -> StorageFailed:
        return StorageFailed(Path(self._file.path), error.strerror or os.strerror(error.errno or 0))


def _lines_of(run: RunPaths) -> Iterable[dict[str, Any]]:
    names: list[str] = []
    with suppress(OSError):
        names = sorted(run.code.names())
    for name in names:
        with suppress(OSError):
            yield from durable.records(run.code.below(name).entry(RECORD_FILE))
