"""The way in. `subagent serve` is handed to the warm process, if there is one; all else is the command line.

Nothing heavy is imported before that is decided. The process that was started then stands for the server that
was forked: its signals, its end and its exit code are the server's.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TAKES_VALUE = ("--agents", "--runs", "--max-runs")
_HARMLESS = frozenset(
    f"PYTHON{name}"
    for name in ("UNBUFFERED", "DONTWRITEBYTECODE", "UTF8", "HASHSEED", "STARTUP", "SAFEPATH", "NOUSERSITE")
)
"""What an interpreter may be told without the server being another one."""


def main() -> int:
    """Run the command line of this process and return its exit code."""
    if _verb(sys.argv[1:]) == "serve" and _may_be_warm(os.environ):
        _serve_warm()
    from subagent_server.cli import main as command_line

    return command_line()


def _serve_warm() -> None:
    """Stand for a forked server until it ends, and end with it; return where there is none."""
    from subagent_server.launch.asking import Wanted, ask, default_directory
    from subagent_server.launch.leash import Front

    directory = os.environ.get("SUBAGENT_RUNTIME_DIR") or default_directory()
    streams = {number: number for number in (0, 1, 2) if _is_open(number)}
    wanted = Wanted("command", sys.orig_argv, sys.argv, os.environ)
    try:
        started = ask(directory, wanted, streams, cwd=".", leashed=True)
    except TimeoutError:
        return
    if started is not None:
        Front(*started).attend()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _verb(arguments: "Sequence[str]") -> str | None:
    """Return the verb of a command line, or None where it has none or begins with an option unknown here."""
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            return word
        if word in _TAKES_VALUE:
            next(rest, None)
        elif not word.startswith(tuple(f"{name}=" for name in _TAKES_VALUE)):
            return None
    return None


def _may_be_warm(environment: "Mapping[str, str]") -> bool:
    """Whether this is wanted, and this interpreter was started so that the warm one can stand for it."""
    if sys.platform != "linux" or environment.get("SUBAGENT_WARM") == "0":
        return False
    told = {name for name in environment if name.startswith("PYTHON") and not name.startswith("PYTHON_")}
    flags = sys.flags
    odd = (flags.optimize, flags.debug, flags.inspect, flags.verbose, flags.bytes_warning, flags.dev_mode)
    return not (told - _HARMLESS or any(odd) or sys.warnoptions or sys._xoptions)
