"""`make bench`: every benchmark, one after the other, and one table of them all in `benchmarks/RESULTS.md`.

`python -m benchmarks [N]`: N is how many runs are alive at most (500); with fewer the rest is smaller too,
and nothing is written. A benchmark is a module with `TITLE` and `measure(scale) -> list[Line]`.
"""

import sys
import time
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.scale import WHOLE, Scale
from benchmarks.table import Line, table

MODULES = (
    "start",
    "serve_start",
    "latency",
    "alive",
    "replies",
    "writes",
    "listing",
    "logs",
    "delegation",
    "mcp_servers",
)
"""In this order; one that is not there is named as such in the results."""
RESULTS = Path(__file__).with_name("RESULTS.md")


def main(scale: Scale) -> int:
    """Measure everything, print it, and write it down if it was the whole."""
    parts = [f"# What it takes\n\n{_about(scale)}"]
    missed: list[Line] = []
    failed = 0
    for name in MODULES:
        if find_spec(f"benchmarks.{name}") is None:
            continue
        began = time.monotonic()
        title, lines, fault = _measured(name, scale)
        print(f"{title}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        parts.append(f"## {title}\n\n{fault or table(lines)}")
        missed += [line for line in lines if line.missed]
        failed += bool(fault)
    parts.append(_summary(missed))
    text = "\n\n".join(parts) + "\n"
    print(text)
    if scale.runs >= WHOLE:
        RESULTS.write_text(text, encoding="utf-8")
    return 1 if failed else 0


def _measured(name: str, scale: Scale) -> tuple[str, list[Line], str]:
    """Return title, lines, and what went wrong: one benchmark that fails keeps no other from its figures."""
    module = import_module(f"benchmarks.{name}")
    try:
        return module.TITLE, module.measure(scale), ""
    except Exception as error:  # noqa: BLE001 - the others are measured all the same
        traceback.print_exc()
        return module.TITLE, [], f"**Not measured**: {type(error).__name__}: {error}"


def _about(scale: Scale) -> str:
    size = "" if scale.runs >= WHOLE else f" Smaller than the whole: at most {scale.runs} runs."
    return (
        "By `make bench`. Each line stands beside a baseline that was measured in the same run; absolute "
        f"times depend on the machine, ratios less so.{size}\n\n{machine()}"
    )


def _summary(missed: list[Line]) -> str:
    if not missed:
        return "Every bar is met."
    names = "\n".join(f"- {line.what}: {line.verdict}" for line in missed)
    return f"## Missed\n\n{names}"


if __name__ == "__main__":
    sys.exit(main(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else WHOLE)))
