"""The worker's process: `python -m subagent_server.worker RUN_DIRECTORY MEMORY_FD[,SLOT_FD...]`.

With `--reconcile RUN_DIRECTORY` it writes how a run ended whose worker is gone, and leaves.
"""

import asyncio
import importlib
import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

from subagent_server.domain import events
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import IllegalTransition
from subagent_server.domain.records import Failure, WorkerIdentity
from subagent_server.host import die, locks, processes
from subagent_server.host.clock import now
from subagent_server.service.reconcile import reconcile_after_worker
from subagent_server.store.paths import RootPaths, RunPaths, root_of
from subagent_server.store.runs import RunStore

_HEAVY = "subagent_server.worker.life"
_NICENESS = 10


def main(arguments: list[str]) -> int:
    """Run or reconcile; returns the exit code."""
    if arguments[0] == "--reconcile":
        run = RunPaths(Path(arguments[1]))
        reconcile_after_worker(RunStore(run.directory.parent), run.run_id)
        return 0
    run = RunPaths(Path(arguments[0]))
    memory, *slots = [int(number) for number in arguments[1].split(",")]
    for descriptor in (memory, *slots):
        os.set_inheritable(descriptor, False)
    package = _read_package(memory)
    code = _begin(run, package, slots)
    sys.stderr.flush()
    die.may_die("worker.leaving")
    os._exit(code)  # a thread that still waits for something must not keep a run alive that has ended


def _begin(run: RunPaths, package: dict[str, Any], slots: list[int]) -> int:
    store = RunStore(run.directory.parent)
    identity = processes.this_process()
    worker = WorkerIdentity(
        host=identity.host, pid=identity.pid, start_time=identity.start_time, boot_id=identity.boot_id
    )
    try:
        store.update(run.run_id, events.WorkerStarted(worker=worker), now())
    except IllegalTransition:  # stopped while it was starting
        return _leave(store, run)
    die.may_die("worker.started")
    try:
        os.chdir(package["cwd"])
    except OSError as error:
        failure = Failure(code="config", message=f"cwd {package['cwd']} cannot be entered: {error.strerror}.")
        store.update(run.run_id, events.RunFailed(failure=failure), now())
        return _leave(store, run)
    life = _import_gently(root_of(run))
    agent = AgentDefinition.model_validate(package["definition"])
    asyncio.run(life.Life(store, run, agent, dict(os.environ), slots).live())
    return 0


def _leave(store: RunStore, run: RunPaths) -> int:
    """End with code 0 a worker whose run has ended before it began: its journal says so too."""
    reconcile_after_worker(store, run.run_id)
    return 0


def _read_package(memory: int) -> dict[str, Any]:
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        package: dict[str, Any] = json.loads(file.read().decode("utf-8", "surrogateescape"))
    return package


def _import_gently(root: RootPaths) -> Any:
    """Import the heavy half, at most one worker a core at a time and niced, so that servers stay quick.

    Niceness belongs to a thread (sched(7)), and only root could take it back: so a thread of its own imports.
    """
    gate = _starting_place(root)
    try:
        thread = threading.Thread(target=_import_niced, name="import")
        thread.start()
        thread.join()
    finally:
        os.close(gate)
    return importlib.import_module(_HEAVY)


def _starting_place(root: RootPaths) -> int:
    """Return a held lock, one of as many as there are cores; where all are taken, wait for one of them."""
    places = [root.slots / f"starting.{number}" for number in range(os.cpu_count() or 1)]
    for place in places:
        descriptor = locks.take(place)
        if descriptor is not None:
            return descriptor
    descriptor = locks.open_lock(random.choice(places))
    locks.lock(descriptor)
    return descriptor


def _import_niced() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    importlib.import_module(_HEAVY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
