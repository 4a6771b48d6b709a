"""The zygote: `python -E -P -m subagent_server.worker.zygote_main DIRECTORY NAME IDLE_SECONDS FILLER`.

A process that could have used a fork starts it in the background (`process/zygote_client.py`). It loads
everything and rehearses a run, so that no fork has to, then forks shims. Nothing depends on it: if it is
missing, dead, hung or of another version, the plain start does the same. Killing it harms no run.
"""

import gc
import importlib
import pkgutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from subagent_server import extensions
from subagent_server.agents.known_names import resolve_model
from subagent_server.process import shim
from subagent_server.process.zygote_protocol import zygote_name
from subagent_server.process.zygote_server import ForkedProgram, ForkedWorker, Zygote, detach
from subagent_server.run import processes

_ROOMS = ("run", "agents", "process", "verbs", "tools", "toolbox", "loop", "worker", "server")

_SIZES = range(48, 513, 16)
"""The sizes of small objects, in bytes, that the interpreter's allocator keeps apart."""
_OF_EACH_SIZE = 128 * 1024
"""How many bytes of each size fill the gaps: of most sizes there were fewer than 1,100 (CPython 3.11)."""
_BYTES_HEADER = sys.getsizeof(b"")
_FILLERS: list[bytes] = []


def main(arguments: list[str]) -> None:
    """Be the zygote, unless there is one."""
    processes.keep_others_out()
    directory, name, idle = Path(arguments[0]), arguments[1], float(arguments[2])
    # 1. The files may have changed since the starter looked: then the next starter finds them as they are.
    if zygote_name() != name:
        return
    detach()
    # 2. One zygote a name, decided by a lock before anything is loaded.
    zygote = Zygote(directory, name, idle)
    if not zygote.listen_alone():
        return
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=directory, ignore_cleanup_errors=True) as scratch:
        programs = warmed_up(Path(scratch))
    # 3. The files that were loaded have to be those of the name.
    if zygote.is_current():
        zygote.listen()
        zygote.serve(programs)
    zygote.leave()


def warmed_up(scratch: Path) -> dict[str, ForkedProgram]:
    """Load everything, and return the table of programs; `scratch` is a directory to rehearse in."""
    gc.disable()
    load()
    gc.freeze()  # to collect among what stays would take as long as a tenth of this function
    # Not at the top: `main` decides whether this process is wanted before it loads what takes a second.
    from subagent_server.worker.__main__ import main as worker
    from subagent_server.worker.rehearsal import rehearse_if_possible

    rehearse_if_possible(scratch)
    gc.enable()
    # A fork puts its objects into the gaps that freed ones left, and copies a page for a few of them: filled
    # gaps spare each waiting run 1.9 of 25 MiB (`benchmarks/waiting.py`).
    _FILLERS.extend(bytes(size - _BYTES_HEADER) for size in _SIZES for _ in range(_OF_EACH_SIZE // size))
    gc.freeze()  # the collector of a fork never visits these objects, which would copy their pages
    return {"shim": lambda title, arguments: shim.main(arguments, ForkedWorker(title, worker))}


def load() -> None:
    """Import the modules that a run may use, and read the certificates of the system and the list prices.

    Nothing may be left that belongs to a process: no thread, no event loop, no open descriptor.
    """
    names = list[str]()
    for room in _ROOMS:
        package = importlib.import_module(f"subagent_server.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                names.append(found.name)
    names += [where.partition(":")[0] for where in extensions.used_by_runs()]
    names.append("jsonschema")  # whatever needs it imports it late: 40 ms and 2 MiB of each typed result
    for name in names:
        with suppress(ImportError):  # an extra is not installed: the worker reports it, if it matters
            importlib.import_module(name)
    model = importlib.import_module("subagent_server.loop.model")
    model.tls_context()
    if (prices := model.find_prices(resolve_model("sonnet"))) is not None:
        prices.cost({})  # the first price of a process takes 3 ms, and the rehearsal pays nothing


if __name__ == "__main__":
    main(sys.argv[1:])
