"""The programs that a run has run in code mode, as its directory keeps them. The files are data."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from subagent_server.domain.code_mode import CALLS_FILE, END_FILE, OUTPUT_FILE, PROGRAM_FILE
from subagent_server.host import journal
from subagent_server.host.directory import Directory
from subagent_server.store.paths import RunPaths

_MOST_BYTES = 8 << 20
_MOST_LINES = 2_500


@dataclass(frozen=True)
class KeptProgram:
    """One program. `calls` are the lines about its calls; `outcome` is None if its end is not known."""

    number: int
    code: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    outcome: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {
            "program": self.number,
            "code": self.code,
            "calls": self.calls,
            "output": self.output,
            "outcome": self.outcome,
        }


def kept_programs(run: RunPaths) -> Iterator[KeptProgram]:
    """Yield the programs of a run in their order. A file that cannot be read leaves its part empty."""
    names = run.code.names() if run.code.exists() else []
    for name in sorted((name for name in names if name.isascii() and name.isdigit()), key=int):
        directory = run.code.below(name)
        yield KeptProgram(
            number=int(name),
            code=_text(directory, PROGRAM_FILE),
            calls=_calls(directory),
            output=_text(directory, OUTPUT_FILE),
            outcome=_outcome(directory),
        )


def _text(directory: Directory, name: str) -> str:
    with suppress(OSError):
        return directory.entry(name).read(_MOST_BYTES).decode("utf-8", "replace")
    return ""


def _calls(directory: Directory) -> list[dict[str, Any]]:
    found = [journal.parse(line) for line in _text(directory, CALLS_FILE).splitlines()[:_MOST_LINES]]
    return [call for call in found if call is not None]


def _outcome(directory: Directory) -> int | None:
    with suppress(ValueError, RecursionError):
        end = json.loads(_text(directory, END_FILE) or "null")
        outcome = end.get("outcome") if isinstance(end, dict) else None
        return outcome if isinstance(outcome, int) else None
    return None
