"""A page of a long log, and a line of it as it comes, compared with the same of a short one.

`python -m benchmarks.logs [RUNS]`, where the log has 2 MB times RUNS
"""

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.run import durable
from subagent_server.run.files import Entry
from subagent_server.run.journal import page

TITLE = "Logs"
TIMES = 200
LINES = 50
_BLOCK = (
    "09:30:15 → bash git show --stat HEAD and what else there is to be said of it " * 2 + "\n"
).encode() * 6_000


def measure(scale: Scale) -> list[Line]:
    """Return the lines; short and long take turns."""
    size = scale.log_bytes
    taken: dict[str, list[float]] = {"tail": [], "short tail": [], "follow": [], "short follow": []}
    with tempfile.TemporaryDirectory() as name:
        short, long = _log(Path(name, "short"), 1), _log(Path(name, "long"), size // len(_BLOCK) + 1)
        for _ in range(scale.times(TIMES)):
            for path, prefix in ((short, "short "), (long, "")):
                began = time.perf_counter()
                cursor = page(Entry.at(path), None, LINES).cursor
                taken[f"{prefix}tail"].append((time.perf_counter() - began) * 1000)
                durable.append_bytes(Entry.at(path), b"09:30:16 one more line\n")
                began = time.perf_counter()
                found = page(Entry.at(path), cursor, LINES)
                taken[f"{prefix}follow"].append((time.perf_counter() - began) * 1000)
                assert found.lines == ["09:30:16 one more line"]
    length = f"{size / 1e9:g} GB" if size >= 1e8 else f"{size / 1e6:g} MB"
    bars = (Bar("ratio", 1.5),)
    return [
        Line(f"last {LINES} lines of {length}", taken["tail"], "of 1 MB", taken["short tail"], bars),
        Line(f"a new line of {length}", taken["follow"], "of 1 MB", taken["short follow"], bars),
    ]


def _log(path: Path, blocks: int) -> Path:
    with path.open("wb") as file:
        for _ in range(blocks):
            file.write(_BLOCK)
    return path


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
