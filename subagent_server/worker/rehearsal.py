"""Rehearse a run in the zygote, before it forks the first one for a starter.

A run loads and caches on its way: the start, a conversation with a question in it, the files, the end. After
the rehearsal its forks find all this done. It works in a directory of its own, with a scripted model.
"""

import gc
import json
import os
import sys
import tempfile
from contextlib import AbstractContextManager, chdir, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from subagent_server import extensions
from subagent_server.process.launcher import Launcher, LaunchPackage
from subagent_server.run.agent_definition import AgentDefinition, Limits
from subagent_server.run.errors import SubagentError
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import Status
from subagent_server.run.stderr import log
from subagent_server.sandbox.verify import rehearse_box
from subagent_server.settings import read_settings
from subagent_server.verbs.access import USER
from subagent_server.verbs.service import KEY, new_key, open_service
from subagent_server.verbs.start import StartOrder, start_agent
from subagent_server.worker.__main__ import work
from subagent_server.worker.worker_run import WorkerRun

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
    # It works among the zygotes, where no run may: those of this run are elsewhere.
    environment = {KEY: new_key(), "SUBAGENT_RUNTIME_DIR": str(directory / "zygotes")}
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
    # the shell would start a box
    agent = AgentDefinition(name=_AGENT, model="sonnet", disallowed_tools=["Bash"], limits=limits)
    meta = start_agent(service, agent, StartOrder(_AGENT, "Is anybody there?"), USER)
    if meta.status.is_terminal:
        raise OSError("the run was not started")
    return service.store.paths.run(meta.run_id)


@dataclass
class _KeptPackage:
    """A launcher, its starts and its reservations: it keeps the package, and starts no process."""

    package: LaunchPackage | None = None
    kind: str = "local"
    host: str = "rehearsal"

    def warm_up(self) -> None: ...

    def reap(self) -> None: ...

    def give_up(self) -> None: ...

    def starting(self) -> AbstractContextManager["_KeptPackage"]:
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "_KeptPackage":
        return self

    def start(self, package: LaunchPackage) -> None:
        self.package = package
