"""`make bench`: every benchmark, one after the other, and one table of them all in `benchmarks/RESULTS.md`.

`python -m benchmarks [N]`: N is the largest number of runs alive at once (500); with fewer the rest is
smaller too, and RESULTS.md is not written. A benchmark is a module with `TITLE` and `measure(scale) ->
list[Line]`. The exit code is 0 only if every benchmark was measured and every bar is met.
"""

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.scale import WHOLE, Scale
from benchmarks.table import Line, table

MODULES = (
    "start",
    "bursts",
    "waiting",
    "serve_start",
    "latency",
    "alive",
    "replies",
    "endings",
    "writes",
    "listing",
    "agent_files",
    "many_agents",
    "logs",
    "delegation",
    "flows",
    "mcp_servers",
    "boxes",
    "boxes_alive",
    "programs",
    "worktrees",
    "http_calls",
    "page",
    "code_programs",
    "code_tokens",
)
"""The benchmarks, in the order in which they are measured."""
RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True)
class Part:
    """The result of one benchmark: its lines, or the reason why there are none."""

    title: str
    lines: Sequence[Line] = ()
    fault: str = ""

    def __str__(self) -> str:
        return f"## {self.title}\n\n{f'**Not measured**: {self.fault}' if self.fault else table(self.lines)}"


def main(scale: Scale, names: Sequence[str] = MODULES) -> int:
    """Measure everything and print it; write it to RESULTS.md if the scale is the whole."""
    parts: list[Part] = []
    for name in names:
        began = time.monotonic()
        parts.append(measured(name, scale))
        print(f"{parts[-1].title}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    text = "\n\n".join([f"# What it takes\n\n{_about(scale)}", *map(str, parts), summary(parts)]) + "\n"
    print(text)
    if scale.runs >= WHOLE:
        RESULTS.write_text(text, encoding="utf-8")
    return 0 if is_met(parts) else 1


def measured(name: str, scale: Scale) -> Part:
    """Measure one benchmark. A benchmark that is missing or raises does not keep the others from theirs."""
    if find_spec(f"benchmarks.{name}") is None:
        return Part(name, fault=f"there is no module benchmarks.{name}")
    title = name
    try:
        module = import_module(f"benchmarks.{name}")
        title = module.TITLE
        lines = module.measure(scale)
    except Exception as error:  # noqa: BLE001 - the others are measured all the same
        traceback.print_exc()
        return Part(title, fault=f"{type(error).__name__}: {error}")
    return Part(title, lines) if lines else Part(title, fault="it has no lines")


def is_met(parts: Sequence[Part]) -> bool:
    """Whether every benchmark was measured and every bar is met."""
    return not any(part.fault or any(line.missed for line in part.lines) for part in parts)


def summary(parts: Sequence[Part]) -> str:
    """Return the last paragraph: "Every bar is met.", or a list of benchmarks and bars that are not."""
    if is_met(parts):
        return "Every bar is met."
    faults = [f"- {part.title}: **not measured**: {part.fault}" for part in parts if part.fault]
    missed = [f"- {line.what}: {line.verdict}" for part in parts for line in part.lines if line.missed]
    return "\n".join(["## Missed", "", *faults, *missed])


def _about(scale: Scale) -> str:
    size = "" if scale.runs >= WHOLE else f" Smaller than the whole: at most {scale.runs} runs."
    return (
        "By `make bench`. Each line has a baseline, measured in the same run; absolute "
        f"times depend on the machine, ratios less so.{size}\n\n{machine()}"
    )


if __name__ == "__main__":
    sys.exit(main(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else WHOLE)))
