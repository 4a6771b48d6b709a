"""The one append-only record of a soak: who did what, a line before it is done."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Audit:
    """Appends whole lines; threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, word: str, **facts: Any) -> None:
        """Append a line. `at` is `time.monotonic()` in seconds."""
        record = {"at": round(time.monotonic(), 3), "word": word, **facts}
        os.write(self._file, json.dumps(record).encode("ascii") + b"\n")

    def lines(self, word: str) -> Iterator[dict[str, Any]]:
        """Yield the records of one kind, oldest first."""
        for line in self._path.read_text(encoding="ascii").splitlines():
            record = json.loads(line)
            if record["word"] == word:
                yield record

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
