"""Reading agent files: hostile front matter, a prompt of a megabyte, and 300 agents in one directory.

`python -m benchmarks.agent_files`. The baseline is an ordinary agent file.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_file
from subagent_server.agents.yaml_reader import AgentFileError

TITLE = "Agent files"
TIMES = 20
AGENTS = 300
BAR = Bar("worst", 1_000)
"""No file costs more than a second (SPEC section 3)."""
DIRECTORY_BAR = Bar("worst", 5_000)
MIB = 1 << 20
ROOM = 120 << 10
"""A little less than the longest front matter that is read."""
HOSTILE = {
    "many keys": "".join(f"k{number}: v\n" for number in range(ROOM // 12)),
    "many colons": "description: " + "a: " * (ROOM // 3),
    "many brackets": "tools: " + "(" * ROOM,
    "nested lists": "tools: " + "[" * ROOM,
}
ORDINARY = "---\nname: {name}\ndescription: Use it: so\ntools: Read, Bash\n---\n{body}\n"


def measure(scale: Scale) -> list[Line]:
    """Return the lines of single files, and of a directory."""
    times = scale.times(TIMES)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        floor = _loads(_written(place, ORDINARY.format(name="a", body="You help.")), times)
        hostile = [
            taken
            for keys in HOSTILE.values()
            for taken in _loads(_written(place, f"---\nname: a\n{keys}\n---\nbody\n"), max(2, times // 5))
        ]
        body = "Look at it twice.\n" * (MIB // 18)
        long = _loads(_written(place, ORDINARY.format(name="a", body=body)), times)
        for number in range(AGENTS):
            _written(place, ORDINARY.format(name=f"a{number}", body="You help."), f"a{number}.md")
        listed = [_timed(lambda: discover([place])) for _ in range(max(2, times // 5))]
    ordinary = "an ordinary agent file"
    return [
        Line(f"a file with hostile front matter ({', '.join(HOSTILE)})", hostile, ordinary, floor, (BAR,)),
        Line("a file with a prompt of a megabyte", long, ordinary, floor, (BAR,)),
        Line(f"a directory of {AGENTS} agents", listed, ordinary, floor, (DIRECTORY_BAR,)),
    ]


def _written(place: Path, text: str, name: str = "a.md") -> Path:
    path = place / name
    path.write_text(text, encoding="utf-8")
    return path


def _loads(path: Path, times: int) -> list[float]:
    return [_timed(lambda: _load(path)) for _ in range(times)]


def _load(path: Path) -> None:
    with suppress(AgentFileError):  # a refusal has to be as quick
        load_file(path)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
