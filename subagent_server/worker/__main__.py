"""The worker: `python -m subagent_server.worker RUN_DIRECTORY MEMORY_FD[,SLOT_FD...] [DEADLINE_FD]`.

`--reconcile RUN_DIRECTORY EXIT_FACTS` writes how a run ended whose worker is gone, and exits;
`--observe RUN_DIRECTORY` reads a run as every reader does, which ends a run without a live shim.
"""

import sys

from subagent_server.run import processes, stderr

if (
    __name__ == "__main__"
):  # before the rest is imported: until now other processes could read its environment
    processes.keep_others_out()
    stderr.exit_in_one_sentence(71)  # EXIT_GATE_CLOSED: it has not begun

import asyncio
import gc
import importlib
import json
import os
import random
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from subagent_server import extensions
from subagent_server.process.worker_process import read_package
from subagent_server.run import locks
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import LaunchFailed, RunRefused, StorageFailed, SubagentError, UnreadableMeta
from subagent_server.run.files import Directory, Entry, NotPlain, held_open
from subagent_server.run.records import Failure
from subagent_server.run.stderr import MaskedText, log
from subagent_server.run.store import RunStore
from subagent_server.verbs.inputs import enter
from subagent_server.verbs.reconcile import EXIT_STORAGE, observe
from subagent_server.verbs.run_worktree import prepare_worktree
from subagent_server.worker.run_end import end_unbegun, exit_worker, reconcile
from subagent_server.worker.runners import RUNNERS
from subagent_server.worker.worker_run import WorkerRun

_SUPERVISOR = "subagent_server.worker.supervisor"
_NICENESS = 5
_FEWEST_FILES = 16
"""How many more files a worker has to be able to open than it begins with: with fewer it fails midway."""


def main(arguments: list[str]) -> None:
    """Work on a run, or reconcile one.

    An error that a sentence describes ends this process without a traceback: the shim tries again, or writes
    how the run ended.
    """
    processes.keep_others_out()
    processes.forbid_core_dumps()
    try:
        _main(arguments)
    except Exception as error:
        sentence = error.sentence if isinstance(error, SubagentError) else stderr.lack_of_room(error)
        if sentence is None:
            raise
        log(sentence)
        sys.exit(EXIT_STORAGE if isinstance(error, StorageFailed) else 1)


def _main(arguments: list[str]) -> None:
    if arguments[0] in ("--reconcile", "--observe"):
        directory = Path(arguments[1])
        store = RunStore(directory.parent)
        if arguments[0] == "--observe":
            observe(store, directory.name)
        else:
            reconcile(store, directory.name, json.loads(arguments[2]))
        return
    memory, *slots = [int(number) for number in arguments[1].split(",")]
    for descriptor in (memory, *slots):
        os.set_inheritable(descriptor, False)
    run = WorkerRun(Path(arguments[0]), slots, int(arguments[2]) if len(arguments) > 2 else None)
    with held_open(memory):
        package = read_package(memory)
    work(run, package, dict(os.environ))
    exit_worker()  # a thread that still waits for something must not keep a run alive that has ended


def work(run: WorkerRun, package: dict[str, Any], environment: dict[str, str]) -> None:
    """Work on a run in this process, from its first event to its last."""
    run.use_package(package, environment)
    sys.stderr = MaskedText(sys.stderr, lambda text: run.masker.text(text))  # it is a file of the run
    try:
        began = run.begin()
    except StorageFailed as error:
        end_unbegun(run, Failure(code="storage", message=error.sentence))
        return
    if not began:
        end_unbegun(run)
        return
    try:
        prepare_worktree(run.store, run.meta(), package["definition"], environment)
    except SubagentError as error:
        code, hint = (
            (error.failure_code, error.hint) if isinstance(error, RunRefused) else ("launch_failed", None)
        )
        end_unbegun(run, Failure(code=code, message=processes.on_node() + error.sentence, hint=hint))
        return
    try:
        enter(package["cwd"])
    except OSError as error:
        why = f"{processes.on_node()}cwd {package['cwd']} cannot be entered: {error.strerror}."
        end_unbegun(run, Failure(code="config", message=why))
        return
    try:
        _supervise(run, package, environment)
    except LaunchFailed as error:
        end_unbegun(run, Failure(code="launch_failed", message=error.sentence))
    except UnreadableMeta as error:  # for want of files, which are free again by now; the run may have begun
        end_unbegun(run, Failure(code="storage", message=error.sentence))
    except Exception as error:
        if (lack := stderr.lack_of_room(error) or stderr.half_upgraded(error)) is None:
            raise
        end_unbegun(run, Failure(code="launch_failed", message=f"The worker could not begin. {lack}"))


def _supervise(run: WorkerRun, package: dict[str, Any], environment: dict[str, str]) -> None:
    """Load the modules of the agent, and let it work.

    Raises:
        LaunchFailed: its script cannot be played.
        Exception: that there is no room in the machine, in one of many forms.
    """
    stderr.check_open_files(_FEWEST_FILES)
    agent = AgentDefinition.model_validate(package["definition"])
    run.limit(agent.limits)
    _import_gently(run, agent)
    from subagent_server.worker.supervisor import Supervisor  # not before this worker's turn

    with _model_played(package["script"], environment):
        run.use_agent(agent, environment)
        asyncio.run(Supervisor(run, agent, environment).supervise())


def _model_played(script: dict[str, str] | None, environment: dict[str, str]) -> AbstractContextManager[None]:
    """Play the script of a run that has one. Raises LaunchFailed."""
    if script is None:
        return nullcontext()
    if (where := extensions.script_player()) is None:
        raise LaunchFailed("Nothing in this installation can play the script of the run.")
    played: AbstractContextManager[None] = extensions.imported(where)(script, environment)
    return played


def _import_gently(run: WorkerRun, agent: AgentDefinition) -> None:
    """Import what the work needs, at most one worker a core at a time and niced: servers stay quick.

    A process forked warm has it already.

    Niceness belongs to a thread (sched(7)), and only root could lower the value again: so a separate thread
    imports.
    """
    if _SUPERVISOR in sys.modules:
        return
    with held_open(_take_import_lock(run.paths.root.slots)):
        thread = threading.Thread(target=_import_niced, args=[agent], name="import")
        thread.start()
        thread.join()
    _import(agent)
    gc.freeze()  # imported objects stay: to look through them again and again holds the run up for 150 ms


def _import_niced(agent: AgentDefinition) -> None:
    os.nice(_NICENESS)  # of this thread, added to what it has
    with suppress(Exception):  # the main thread imports what is missing, and meets the same error
        _import(agent)


def _import(agent: AgentDefinition) -> None:
    importlib.import_module(_SUPERVISOR)
    importlib.import_module(RUNNERS[agent.runner].partition(":")[0])
    if agent.may_delegate:
        importlib.import_module("subagent_server.worker.delegation")
    if (agent.mcp_servers or agent.served) and agent.is_built_in:
        importlib.import_module("subagent_server.worker.connected_servers")
    if agent.enabled_code_mode is not None and (where := extensions.tools_for("codeMode")) is not None:
        extensions.imported(where)


def _take_import_lock(slots: Directory) -> int:
    """Take a lock, of which there are as many as cores, and return the held lock. Blocks while all are taken.

    Raises:
        StorageFailed: all the names are taken by other kinds of files.
    """
    taken: list[Entry] = []
    for number in range(os.cpu_count() or 1):
        file = slots.entry(f"starting.{number}")
        with suppress(NotPlain):
            descriptor = locks.take(file)
            if descriptor is not None:
                return descriptor
            taken.append(file)
    if not taken:
        raise StorageFailed(slots.path, "it holds something else than lock files")
    descriptor = locks.open_lock(random.choice(taken))
    locks.lock(descriptor)
    return descriptor


if __name__ == "__main__":
    main(sys.argv[1:])
