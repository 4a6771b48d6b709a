"""The zygote: `python -E -P -m subagent_server.worker.zygote_main DIRECTORY NAME IDLE_SECONDS FILLER`.

A process that could have used a fork starts it in the background (`process/zygote_client.py`). It loads
everything and rehearses a run, so that no fork has to, then forks shims. Nothing depends on it: if it is
missing, dead, hung or of another version, the plain start does the same. Killing it harms no run.
"""

import gc
import importlib
import json
import os
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, chdir, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server import extensions
from subagent_server.process.launcher import Launcher, LaunchPackage
from subagent_server.process.zygote_protocol import zygote_name
from subagent_server.process.zygote_server import ForkedProgram, Title, Zygote, detach
from subagent_server.run import processes
from subagent_server.run.agent_definition import AgentDefinition, Limits
from subagent_server.run.errors import SubagentError
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import Status
from subagent_server.run.stderr import log
from subagent_server.sandbox.verify import rehearse_box
from subagent_server.settings import read_settings
from subagent_server.verbs.access import USER
from subagent_server.verbs.context import open_service
from subagent_server.verbs.scripts import KEY, new_key
from subagent_server.verbs.start import StartOrder, start_agent
from subagent_server.worker.__main__ import work
from subagent_server.worker.run import WorkerRun

_ROOMS = ("run", "agents", "process", "verbs", "tools", "toolbox", "loop", "worker", "server")


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
    if not zygote.take_place():
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
    # Not at the top: `main` decides whether this process is wanted before it loads what takes a second.
    importlib.import_module("subagent_server.worker.zygote_main").rehearse_if_possible(scratch)
    gc.enable()
    gc.collect()
    gc.freeze()  # the collector of a fork never visits these objects, which would copy their pages
    return _programs()


def load() -> None:
    """Import the modules that a run may use, and read the certificates of the system.

    Nothing may be left that belongs to a process: no thread, no event loop, no open descriptor.
    """
    for name in _modules():
        with suppress(ImportError):  # an extra that is not installed: the worker will say so, if it matters
            importlib.import_module(name)
    importlib.import_module("subagent_server.loop.model").tls_context()


def _modules() -> Iterator[str]:
    for room in _ROOMS:
        package = importlib.import_module(f"subagent_server.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield found.name


def _programs() -> dict[str, ForkedProgram]:
    # Not at the top, as above.
    from subagent_server.process import shim
    from subagent_server.process.program import ForkedWorker
    from subagent_server.worker.__main__ import main as worker

    def run_shim(title: Title, arguments: list[str]) -> int:
        return shim.main(arguments, ForkedWorker(title, worker))

    return {"shim": run_shim}


if __name__ == "__main__":
    main(sys.argv[1:])


# -- Rehearse a run in the zygote, before it forks the first one for a starter.
#
# A run loads and caches on its way: the start, a conversation with a question in it, the files, the end.
# After the rehearsal its forks find all this done. It works in a directory of its own, with a scripted
# model.


_AGENT = "rehearsal"
_BOUND_SECONDS = 30.0
_QUESTION = {"name": "ask_parent", "input": {"question": "Is anybody there?"}}
_SCRIPT = {"turns": [{"tool_use": [_QUESTION]}, {"text": "No."}]}


def rehearse_if_possible(directory: Path) -> None:
    """Rehearse, as far as there are loopback and room for files; without, a little less is loaded."""
    rehearse_box(os.environ)
    try:
        rehearse(directory)
    except (OSError, SubagentError) as error:
        log(f"The rehearsal failed, so the first steps of each fork are slower: {error}")


def rehearse(directory: Path) -> None:
    """Do a run below `directory`, in this thread, which has to be the main one.

    Raises:
        OSError, SubagentError: there is no room for it, or no loopback.
    """
    where = extensions.script_player()
    if where is None:
        return
    temporary = tempfile.TemporaryDirectory(dir=directory)
    environment = {KEY: new_key()}
    played = extensions.imported(where)({"name": "rehearsal", "text": json.dumps(_SCRIPT)}, environment)
    with temporary as name, played, chdir(directory):  # a worker changes to its own
        kept = _KeptPackage()
        own = WorkerRun(_started(Path(name), environment, kept).directory, [])
        assert kept.package is not None  # a start that fails raises before
        package = kept.package.to_json()
        with redirect_stderr(sys.stderr):  # a worker masks its output: not that of this process
            work(own, package, package["environment"])
        if own.meta().status is not Status.COMPLETED:
            raise OSError("the rehearsed run has not completed")
    del own, kept, played
    gc.collect()  # objects of a run that refer to each other hold its directory open


def _started(home: Path, environment: dict[str, str], launcher: Launcher) -> RunPaths:
    """Start a run as every starter does."""
    settings = read_settings(runs=home / "runs", environment=environment, cwd=home)
    service = open_service(settings, launcher)
    limits = Limits(ask_timeout_seconds=0.001, timeout_seconds=_BOUND_SECONDS)
    agent = AgentDefinition(name=_AGENT, model="sonnet", tools=[], limits=limits)
    meta = start_agent(service, agent, StartOrder(_AGENT, "Is anybody there?"), USER)
    if meta.status.is_terminal:
        raise OSError("the run was not started")
    return service.store.paths.run(meta.run_id)


@dataclass
class _KeptPackage:
    """A launcher, its starts and its reservations: it keeps the package, and starts no process."""

    package: LaunchPackage | None = None
    kind: str = "local"

    def warm_up(self) -> None: ...

    def reap(self) -> None: ...

    def give_up(self) -> None: ...

    def starting(self) -> AbstractContextManager["_KeptPackage"]:
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "_KeptPackage":
        return self

    def start(self, package: LaunchPackage) -> None:
        self.package = package
