"""The runners: a row each, under the name used in agent files."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subagent_server import extensions
from subagent_server.loop.runner import Runner
from subagent_server.process import marks
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.records import RunRequest
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.file_watch import CommandWatch
from subagent_server.toolbox.tool import RunTools, Tool
from subagent_server.worker.protected_paths import ProtectedPaths
from subagent_server.worker.worker_run import WorkerRun

if TYPE_CHECKING:  # imports every verb
    from subagent_server.worker.delegation import WorkerDelegation


@dataclass(frozen=True)
class RunnerSetup:
    """An agent, its run, and the agent's surroundings at work.

    `delegation` is None if the agent may not start others. `watch` is notified of each command.
    """

    agent: AgentDefinition
    run: WorkerRun
    environment: Mapping[str, str]
    protected: ProtectedPaths
    delegation: "WorkerDelegation | None" = None
    watch: CommandWatch | None = None

    def record_start(self, request: RunRequest, sandbox: str, model: str | None = None) -> None:
        """Append the start of the run to its journal, and the warnings of its starter.

        `sandbox` says where its programs work. A runner calls this after its checks: a later refusal comes
        after the start in the journal.
        """
        self.run.record(
            "run_started",
            agent=self.agent.name,
            runner=self.agent.runner,
            **({"model": model} if model is not None else {}),
            cwd=request.cwd,
            sandbox=sandbox,
            prompt=request.prompt,
            **({"continuesRunId": request.continues_run_id} if request.continues_run_id else {}),
        )
        for warning in request.warnings:
            self.run.record("warning", message=warning)

    def tools(self, own: Sequence[Tool], listed: Sequence[Tool], box: Callable[[], Box] | None) -> RunTools:
        """Return what an extension makes tools from: the run's `own` tools, and those of its MCP servers."""
        return RunTools(
            agent=self.agent,
            run=self.run,
            environment=self.environment,
            own=own,
            listed=listed,
            code=self.run.paths.code,
            outputs=self.run.paths.outputs,
            masker=self.run.masker,
            box=box,
            spare=marks.shims_on_record(self.run.store.paths),
            watch=self.watch,
            delegation=self.delegation,
        )


OpenRunner = Callable[[RunnerSetup], Awaitable[Runner]]
"""Returns a runner that is ready to work, with the start of its run recorded.

It raises RunRefused with `config` for a setting that cannot be kept.
"""

RUNNERS: dict[str, str] = {
    "messages": "subagent_server.worker.messages_runner:open_runner",
    **extensions.runners(),
}
"""The function that opens each. A worker imports that of its own agent alone.

The names are those of `RunnerName` in `run/agent_definition.py`, by which agent files are judged.
"""
