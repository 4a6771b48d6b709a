"""The programs of a run on disk: `code/NNN/` with the code, its calls, its output and its end."""

import json
import os
from collections.abc import Callable
from io import FileIO
from typing import Any, Self

from subagent_server.domain.code_mode import CALLS_FILE, END_FILE, OUTPUT_FILE, PROGRAM_FILE
from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory


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
    """The record of one program. Leave it as a context: the file of its calls stays open meanwhile."""

    def __init__(
        self, number: int, directory: Directory, masker: Masker, refuse: Callable[[OSError], None]
    ) -> None:
        self.number = number
        self._directory = directory
        self._masker = masker
        self._refuse = refuse
        self._calls: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._calls is not None:
            self._calls.close()

    def keep_call(self, facts: dict[str, Any]) -> None:
        """Append a line about a call."""
        line = json.dumps(self._masker.data(facts), ensure_ascii=False) + "\n"
        try:
            if self._calls is None:
                self._calls = FileIO(self._opened(CALLS_FILE, os.O_APPEND), "wb")
            self._calls.write(line.encode("utf-8", "replace"))
        except OSError as error:
            self._refuse(error)

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        try:
            with os.fdopen(self._opened(name, os.O_TRUNC), "wb") as file:
                file.write(self._masker.text(text).encode("utf-8", "replace"))
        except OSError as error:
            self._refuse(error)

    def finish(self, output: str, facts: dict[str, Any]) -> None:
        """Write the output, as the model saw it, and how the program has ended."""
        self.write(OUTPUT_FILE, output)
        self.write(END_FILE, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")

    def _opened(self, name: str, how: int) -> int:
        return self._directory.entry(name).open(os.O_WRONLY | os.O_CREAT | how)
