"""Doing once, before any run, what every worker would do first: imports, the TLS context, a whole run.

The zygote calls this before it forks. What is imported or cached here is there in every worker and in every
server. Nothing may be left that belongs to a process: no thread, no event loop, no open descriptor.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.errors import SubagentError
from subagent_server.host import gaps, hot_code
from subagent_server.runners.messages.connection import tls_context
from subagent_server.warm import rehearsal

ROOMS = (
    *("domain", "host", "catalog", "store", "launch", "service", "toolkit", "runners"),
    *("worker", "server", "cli"),
)
_NOT_IMPORTED = ("__main__", "zygote", "demo")
_KEEPING = ("subagent_server.launch", "subagent_server.host")
"""What the keepers of runs run."""
_REHEARSALS = 10
"""The interpreter makes code quicker that has run some times (PEP 659), and writes to it while it does."""


def load() -> None:
    """Import all that a worker or a server may come to use."""
    for name in modules():
        with suppress(ImportError):  # an extra that is not installed: the worker will say so, if it matters
            importlib.import_module(name)
    tls_context()


def practise(place: Path) -> None:
    """Do some runs in a directory, in the main thread, and lay together what they run."""
    with suppress(OSError, SubagentError):  # without loopback or room for a file a little less is warm
        rehearsal.rehearse(1, place)
        with hot_code.watched() as hot:
            rehearsal.rehearse(1, place)
        gaps.fill()
        hot_code.lay_together(hot | hot_code.of_modules(_KEEPING))
        rehearsal.rehearse(_REHEARSALS, place)


def modules() -> Iterator[str]:
    """Yield the modules of the rooms that work in a worker or a server, whatever they are by now."""
    for room in ROOMS:
        package = importlib.import_module(f"subagent_server.{room}")
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] not in _NOT_IMPORTED:
                yield found.name
