"""The processes of a run, by two proofs: the record of the shim, and the mark on the process itself.

The record (`shim.json`) is a file, and files are data: another writer could name any process. So a recorded
process is signalled only if its identity (pid, start time, boot, host) is the same and the process carries
the run's own mark. The mark of shim and worker is the run directory in their command line, which everybody
can read; the worker's programs have the run id in their environment. The other way round, a process that
looks like the shim of some run is left alone only if named by a record of this root. Standard library only:
the shim imports this module.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from subagent_server.process.worker_process import WORKER
from subagent_server.run import durable, processes
from subagent_server.run.paths import RECORD_BYTES, RootPaths, RunPaths
from subagent_server.run.processes import Command, Identity
from subagent_server.run.states import is_run_id

RUN_VARIABLE = "SUBAGENT_RUN_ID"
"""Names the run in the environment of its worker and of the programs that this starts."""
SHIM_FLAGS = ("-I", "-S")
_SHIM_FILES = (b"process/shim.py", b"launch/shim.py")
"""The second is of earlier versions, whose shims may still supervise a run after an upgrade."""
_SHIM_WORDS = [word.encode() for word in SHIM_FLAGS]
_WORKER_WORDS = [word.encode() for word in WORKER[1:]]


def read_shim(run: RunPaths) -> dict[str, Any]:
    """Return the record of the shim of a run, `shim.json`; empty if no shim ever recorded itself."""
    return durable.read_object(run.shim, RECORD_BYTES)


def shim_on_record(run: RunPaths) -> Identity | None:
    """Return the shim of a run by its record alone, whether or not it lives."""
    return Identity.from_json(read_shim(run).get("shim"))


def recorded_shim(run: RunPaths) -> Identity | None:
    """Return the shim of a run, if it lives: on record, and marked."""
    return _proven(run, "shim", lambda command: _shim_of(command) == run.run_id)


def recorded_worker(run: RunPaths) -> Identity | None:
    """Return the worker of a run, if alive, on record, and marked.

    A worker is on record before executing its program; until then its command line is the shim's.
    """
    return _proven(run, "worker", lambda command: run.run_id in (_worker_of(command), _shim_of(command)))


def dying_worker(run: RunPaths) -> Identity | None:
    """Return the worker on record if it shows no command line: its memory is gone, its locks may not be."""
    record = read_shim(run)
    identity = Identity.from_json(record.get("worker"))
    if identity is None or not _is_written_in(run, record):
        return None
    return None if processes.command_of(identity.pid) else identity


def is_original(run: RunPaths) -> bool:
    """Whether the record was written in this very directory: the processes of a copy are the original's."""
    return _is_written_in(run, read_shim(run))


def is_copy_of_live(run: RunPaths) -> bool:
    """Whether a run directory was copied from that of a run whose shim still lives."""
    shim = shim_on_record(run)
    return shim is not None and processes.is_alive(shim) and not is_original(run)


def processes_of(run_id: str) -> list[Identity]:
    """Return the live processes that carry the mark of a run, its shim left out."""
    return processes.marked(
        f"{RUN_VARIABLE}={run_id}", or_command=lambda command: _worker_of(command) == run_id
    )


def runs_with_processes() -> set[str]:
    """Return the ids that live processes carry as the mark of their run, in one look at all processes."""
    return processes.values_of(RUN_VARIABLE, or_command=_worker_of)


def shims_on_record(root: RootPaths) -> Callable[[Identity], bool]:
    """Return whether a process is the shim of a run, by a record of this root and not by its own claim.

    Its command line only names the record to read.
    """

    def is_shim(identity: Identity) -> bool:
        run_id = _shim_of(processes.command_of(identity.pid))
        if run_id is None or not is_run_id(run_id):
            return False
        return shim_on_record(root.run(run_id)) == identity

    return is_shim


def _proven(run: RunPaths, role: str, carries_mark: Callable[[Command], bool]) -> Identity | None:
    record = read_shim(run)
    identity = Identity.from_json(record.get(role))
    if identity is None or not processes.is_alive(identity) or not _is_written_in(run, record):
        return None
    return identity if carries_mark(processes.command_of(identity.pid)) else None


def _is_written_in(run: RunPaths, record: dict[str, Any]) -> bool:
    with suppress(OSError):
        here = os.fstat(run.files.descriptor)
        # A snapshot has the inodes of its original on a device of its own. Earlier versions wrote no device.
        return (record.get("directory"), record.get("device", here.st_dev)) == (here.st_ino, here.st_dev)
    return False


def _shim_of(command: Command) -> str | None:
    """Return the run whose shim shows such a command line: `python -I -S .../shim.py DIRECTORY ...`."""
    if len(command) < 5 or command[1:3] != _SHIM_WORDS or not command[3].endswith(_SHIM_FILES):
        return None
    return _name(command[4])


def _worker_of(command: Command) -> str | None:
    """Return the run whose worker shows such a command line; not of `--reconcile` and `--observe`."""
    if len(command) < 7 or command[1:5] != _WORKER_WORDS:
        return None
    return _name(command[5])


def _name(path: bytes) -> str:
    return path.rpartition(b"/")[2].decode("ascii", "replace")
