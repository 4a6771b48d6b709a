"""Everything that a worker hands to a runner: the agent, its run and their surroundings."""

from collections.abc import Mapping
from dataclasses import dataclass

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.records import RunRequest
from subagent_server.sandbox.name_watch import CommandWatch
from subagent_server.worker.delegation import WorkerDelegation
from subagent_server.worker.own_places import OwnPlaces
from subagent_server.worker.run_context import WorkerRun


@dataclass(frozen=True)
class RunnerSetup:
    """An agent, its run, and the agent's surroundings at work.

    `delegation` is None if the agent may not start others. `watch` is told of each command.
    """

    agent: AgentDefinition
    run: WorkerRun
    environment: Mapping[str, str]
    places: OwnPlaces
    delegation: WorkerDelegation | None = None
    watch: CommandWatch | None = None

    def record_start(self, request: RunRequest, sandbox: str, model: str | None = None) -> None:
        """Append the start of the run to its journal, and the warnings of its starter.

        `sandbox` says where its programs work. A runner calls this after its checks: a later refusal stands
        behind the start in the journal.
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
