"""Import, once and before any run, the modules that a worker, a server or a command may use.

Nothing may be left that belongs to a process: no thread, no event loop, no open descriptor.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import suppress

from subagent_server.runners.messages.model import tls_context

ROOMS = (
    *("domain", "host", "forkserver", "catalog", "store", "launch", "service", "toolkit"),
    *("runners", "worker", "server", "cli"),
)
_NOT_IMPORTED = ("__main__", "demo", "demo_tracker")


def load() -> None:
    """Import them, and read the certificates of the system."""
    for name in modules():
        with suppress(ImportError):  # an extra that is not installed: the worker will say so, if it matters
            importlib.import_module(name)
    tls_context()


def modules() -> Iterator[str]:
    """Yield the modules of these rooms."""
    for room in ROOMS:
        package = importlib.import_module(f"subagent_server.{room}")
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] not in _NOT_IMPORTED:
                yield found.name
