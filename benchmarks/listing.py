"""How long the whole command `subagent ls` takes, by how many runs are stored.

`python -m benchmarks.listing [RUNS]`, where 200 times RUNS are stored at most
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from tests.helpers.stored import make_stored

TITLE = "Lists, the whole command"
TIMES = 25
_COMMAND = str(Path(sys.executable).with_name("subagent"))


def measure(scale: Scale) -> list[Line]:
    """Return a line for each number of stored runs, and one for a search; they take turns."""
    with tempfile.TemporaryDirectory() as name:
        roots = {number: Path(name, f"runs-{number}") for number in scale.stored}
        for number, root in roots.items():
            make_stored(root, number)
            _ls(root)  # so that the first of those that are timed is as the others
        search = ("--agent", "nobody")
        taken: dict[int, list[float]] = {number: [] for number in roots}
        bare: list[float] = []
        searched: list[float] = []
        for _ in range(scale.times(TIMES)):
            bare.append(_timed([sys.executable, "-c", "pass"]))
            for number, root in roots.items():
                taken[number].append(_ls(root))
            searched.append(_ls(roots[max(roots)], *search))
    return _lines(taken, bare, searched)


def _lines(taken: dict[int, list[float]], bare: list[float], searched: list[float]) -> list[Line]:
    few, *others = sorted(taken)
    least = f"`ls`, {few} stored"
    many = others[-1]
    lines = [Line(least, taken[few], "Python start", bare, (Bar("p50", 350),))]
    for number in others:
        lines.append(Line(f"`ls`, {number:,} stored", taken[number], least, taken[few], (Bar("p50", 350),)))
    name = f"`ls --agent nobody`, {many:,} stored"
    lines.append(Line(name, searched, least, taken[few], (Bar("p50", 1_500),)))
    return lines


def _ls(root: Path, *words: str) -> float:
    return _timed([_COMMAND, "ls", "--runs", str(root), *words])


def _timed(command: list[str]) -> float:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUBAGENT")}
    began = time.perf_counter()
    subprocess.run(command, env=kept, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=True)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
