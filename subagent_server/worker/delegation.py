"""The parent's tools for an agent that may start others: its run is the parent of the started runs."""

from collections.abc import Mapping
from typing import Any

from subagent_server.service.access import run_as_caller
from subagent_server.service.changes import Changes
from subagent_server.service.context import Service, open_service
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.dispatch import ToolDispatcher
from subagent_server.service.tools.table import PARENT_TOOLS
from subagent_server.settings import read_settings
from subagent_server.worker.run_context import WorkerRun
from subagent_server.worker.work_clock import WorkClock

LONGEST_WAIT_SECONDS = 3600.0
"""A wait of the loop has no client that could lose patience; the run's own limits bound it."""


class WorkerDelegation:
    """Implements `toolkit.nested.Delegation` with the tool calls that the server has too."""

    def __init__(self, service: Service, run_id: str, clock: WorkClock) -> None:
        self.service = service
        caller = run_as_caller(service.store, run_id)
        self._tools = ToolDispatcher(service, Changes(service.store), caller, PARENT_TOOLS)
        self._clock = clock

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tools: those that start the agents that the run may start, then the generic tools."""
        return [
            {"name": tool.name, "description": tool.description, "input_schema": tool.shown_arguments}
            for tool in self._tools.table().tools
        ]

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a verb. While the verb waits for another run, the clock of this run stands still.

        Raises:
            SubagentError.
        """
        call = Call(arguments, LONGEST_WAIT_SECONDS)
        if not _waits(call, tool):
            return await self._tools.call(tool, call)
        with self._clock.waiting():
            return await self._tools.call(tool, call)


def open_delegation(run: WorkerRun, environment: Mapping[str, str]) -> WorkerDelegation:
    """Return the parent's tools of a run, with the settings that its `environment` gives."""
    return WorkerDelegation(service_of(run, environment), run.run_id, run.clock)


def service_of(run: WorkerRun, environment: Mapping[str, str]) -> Service:
    """Return the verbs for a run, with the settings that its `environment` gives."""
    return open_service(read_settings(runs=run.store.paths.root, environment=dict(environment)))


def _waits(call: Call, tool: str) -> bool:
    """Whether the call waits for a run. The call itself refuses a value that is not a number."""
    wanted = call.arguments.get("waitSeconds", 45 if tool == "wait_for_runs" else 0)
    return isinstance(wanted, int | float) and wanted > 0
