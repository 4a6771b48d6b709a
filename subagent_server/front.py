"""The entry point. `serve`, and `run` without a terminal, are handed to the zygote; the rest runs here.

Nothing heavy is imported before that is decided. The process that was started then stands for the fork
(`forkserver/front.py`): its signals, its end and its exit code are the fork's.
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
"""Variables that change the interpreter, and not the command that it runs."""


_ENVIRONMENT = 6
"""The exit code of a machine that refuses; `cli/console/exits.py` has them all, and is not loaded yet."""


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        return _run()
    except Exception as error:
        from subagent_server.host.no_room import lack_of_room

        sentence = lack_of_room(error)
        if sentence is None:
            raise
        os.write(2, f"subagent: {sentence}\n".encode())
        return _ENVIRONMENT


def _run() -> int:
    if _is_handed_over(sys.argv[1:]) and _may_be_warm(os.environ):
        from subagent_server.forkserver.client import default_directory
        from subagent_server.forkserver.front import stand_for_fork

        stand_for_fork("command", os.environ.get("SUBAGENT_RUNTIME_DIR") or default_directory())
    from subagent_server.cli import main as command_line

    return command_line()


def _is_handed_over(arguments: "Sequence[str]") -> bool:
    """Whether the zygote may run a command line: a fork has no controlling terminal.

    A server over HTTP stays what its starter, such as systemd, has started and passed a socket to.
    """
    verb = _verb(arguments)
    if verb == "serve":
        return not any(word.startswith(("--http", "--unix")) for word in arguments)
    return verb == "run" and not any(map(os.isatty, (0, 1, 2)))


def _verb(arguments: "Sequence[str]") -> str | None:
    """Return the verb of a command line, or None if it has none or begins with an option unknown here."""
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
    """Whether forks are wanted, and this interpreter was started so that a fork of the zygote is like it."""
    if sys.platform != "linux" or environment.get("SUBAGENT_WARM") == "0":
        return False
    changed = {name for name in environment if name.startswith("PYTHON") and not name.startswith("PYTHON_")}
    flags = sys.flags
    odd = (flags.optimize, flags.debug, flags.inspect, flags.verbose, flags.bytes_warning, flags.dev_mode)
    return not (changed - _HARMLESS or any(odd) or sys.warnoptions or sys._xoptions)
