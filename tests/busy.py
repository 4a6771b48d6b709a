"""Whole runs of the suite on a busy machine: `python -m tests.busy --times 5 -n 4 [PATH ...]`.

Two busy loops per core run beside it, with the same niceness. All other arguments are those of pytest. The
exit code is the number of runs that failed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

LOOPS_PER_CORE = 2
_LOOP = "import os, sys\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


@contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy; a loop ends by itself if this process is gone."""
    with ExitStack() as stack:
        for _ in range(LOOPS_PER_CORE * (os.cpu_count() or 1)):
            loop = subprocess.Popen([sys.executable, "-I", "-c", _LOOP])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


def run_suite(arguments: list[str]) -> list[str] | None:
    """Run pytest and return the lines of what failed, or None if all passed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rfE", *arguments],
        env={**os.environ, "COLUMNS": "400"},  # a line of what failed says why
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed or done.stdout.splitlines()[-20:]


def main() -> int:
    """Run the suite as often as wanted, and report each failure."""
    parser = argparse.ArgumentParser(description="Run the suite beside busy loops.")
    parser.add_argument("--times", type=int, default=1)
    options, arguments = parser.parse_known_args()
    failures = 0
    with busy():
        for number in range(1, options.times + 1):
            began = time.monotonic()
            failed = run_suite(arguments)
            failures += failed is not None
            print(f"run {number}: {'passed' if failed is None else 'FAILED'}", end=" ")
            print(f"in {time.monotonic() - began:.0f} s", *(failed or []), sep="\n  ", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
