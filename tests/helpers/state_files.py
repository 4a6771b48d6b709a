"""Counting how often this process reads and replaces the state files of runs, by its audit events."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STATE = "run.meta.json"


@dataclass
class StateFiles:
    """How often a state was opened for reading, and how often a new one took its name."""

    reads: int = 0
    writes: int = 0


_counting: list[StateFiles] = []
_hooked: list[bool] = []


@contextmanager
def counted_state_files() -> Iterator[StateFiles]:
    """Count inside the `with` block, in all threads."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_heard)  # it stays as long as the process, and does nothing outside the block
    count = StateFiles()
    _counting.append(count)
    try:
        yield count
    finally:
        _counting.remove(count)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if not _counting:
        return
    if event == "open" and _is_state(arguments[0]):
        for count in _counting:
            count.reads += 1
    elif event == "os.rename" and _is_state(arguments[1]):
        for count in _counting:
            count.writes += 1


def _is_state(path: object) -> bool:
    return isinstance(path, str) and path.rpartition("/")[2] == STATE
