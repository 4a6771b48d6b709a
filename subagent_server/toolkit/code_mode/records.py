"""The programs of a run on disk: `code/NNN/` with the code, its calls, its output and its end."""

import json
import os
from collections.abc import Callable
from typing import Any

from subagent_server.domain.code_mode import CALLS_FILE, END_FILE, OUTPUT_FILE, PROGRAM_FILE
from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory, Entry


class ProgramRecords:
    """Numbers the programs of a run. A disk that refuses is a warning, once, and the programs go on."""

    def __init__(self, directory: Directory, masker: Masker, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._masker = masker
        self._warn = warn
        self._refused = False
        self._last = 0

    def begin(self, code: str) -> "ProgramRecord":
        """Return the record of the next program, with its code in it."""
        self._last += 1
        directory = self._directory.below(f"{self._last:03d}")
        try:
            self._directory.make()
            directory.make_new()
        except OSError as error:
            self._refuse(error)
        record = ProgramRecord(self._last, directory, self._masker, self._refuse)
        record.write(PROGRAM_FILE, code)
        return record

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            self._warn(f"The programs of this run are not kept in {self._directory.path}: {error.strerror}.")


class ProgramRecord:
    """The record of one program."""

    def __init__(
        self, number: int, directory: Directory, masker: Masker, refuse: Callable[[OSError], None]
    ) -> None:
        self.number = number
        self._directory = directory
        self._masker = masker
        self._refuse = refuse

    def keep_call(self, facts: dict[str, Any]) -> None:
        """Append a line about a call."""
        line = json.dumps(self._masker.data(facts), ensure_ascii=False) + "\n"
        self._add(self._directory.entry(CALLS_FILE), line, os.O_APPEND)

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        self._add(self._directory.entry(name), self._masker.text(text), os.O_TRUNC)

    def finish(self, output: str, facts: dict[str, Any]) -> None:
        """Write the output, as the model saw it, and how the program has ended."""
        self.write(OUTPUT_FILE, output)
        self.write(END_FILE, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")

    def _add(self, entry: Entry, text: str, how: int) -> None:
        try:
            with os.fdopen(entry.open(os.O_WRONLY | os.O_CREAT | how), "wb") as file:
                file.write(text.encode("utf-8", "replace"))
        except OSError as error:
            self._refuse(error)
