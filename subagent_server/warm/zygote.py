"""The program of the zygote: `python -E -P -m subagent_server.warm.zygote DIRECTORY KEY IDLE_SECONDS FILLER`.

The first process that could have used a fork starts it in the background (`forkserver/starter.py`). It loads
everything and rehearses runs, so that no fork has to, then forks shims and commands. Nothing depends on it:
if it is missing, dead, hung or of another version, the plain start does the same. Killing it harms no run.
"""

import gc
import importlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from subagent_server.forkserver.child import ForkedProgram
from subagent_server.forkserver.installation import installation_key
from subagent_server.forkserver.server import Zygote, detach
from subagent_server.host import dumpable
from subagent_server.warm import heap

_IMPORTS = "subagent_server.warm.imports"
_PROGRAMS = "subagent_server.warm.programs"
_REHEARSAL = "subagent_server.warm.rehearsal"
_NICENESS = 5
REHEARSALS = 10
"""Runs that are rehearsed: the interpreter rewrites code that has run some times (PEP 659), which in a fork
would copy the page of each function."""


def warmed_up(scratch: Path) -> dict[str, ForkedProgram]:
    """Load everything, and return the table of programs; `scratch` is a directory to rehearse in."""
    # 1. One heap for all threads, before the first thread.
    gc.disable()
    heap.keep_to_one_arena()
    # 2. Imports, then whole runs: each caches something that later runs find.
    _load_niced()
    programs: dict[str, ForkedProgram] = importlib.import_module(_PROGRAMS).PROGRAMS
    importlib.import_module(_REHEARSAL).rehearse_if_possible(REHEARSALS, scratch)
    gc.enable()
    gc.collect()
    # 3. No free slots between the objects that stay, so that a fork's objects lie together.
    heap.fill_free_slots()
    # 4. The collector of a fork never visits these objects, which would copy their pages.
    gc.freeze()
    return programs


def _load_niced() -> None:
    """Import in a thread that gives way to others; niceness could not be taken back from the process."""

    def load() -> None:
        os.nice(_NICENESS)  # of this thread, added to what it has
        importlib.import_module(_IMPORTS).load()

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(load).result()


def main(arguments: list[str]) -> None:
    """Be the zygote, unless there is one."""
    dumpable.keep_others_out()
    directory, key, idle = Path(arguments[0]), arguments[1], float(arguments[2])
    # 1. The files may have changed since the starter looked: then the next starter finds them as they are.
    if installation_key() != key:
        return
    detach()
    # 2. One zygote a key, decided by a lock before anything is loaded.
    zygote = Zygote(directory, key, idle)
    if not zygote.take_place():
        return
    with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=directory, ignore_cleanup_errors=True) as scratch:
        programs = warmed_up(Path(scratch))
    # 3. The files that were loaded have to be those of the key.
    if installation_key() != key:
        return
    zygote.listen()
    zygote.serve(programs)
    zygote.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
