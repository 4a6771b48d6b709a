"""The material that a worker hands to a runner."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.toolkit.nested import Delegation
from subagent_server.toolkit.telemetry import NO_TRACER, Tracer
from subagent_server.worker.run_context import WorkerRun


@dataclass(frozen=True)
class RunnerSetup:
    """An agent, its run, and the surroundings that it works in.

    No tool may change the `read_only` paths. `delegation` is None if the agent may not start others.
    """

    agent: AgentDefinition
    run: WorkerRun
    environment: Mapping[str, str]
    read_only: list[Path]
    delegation: Delegation | None = None
    tracer: Tracer = NO_TRACER
