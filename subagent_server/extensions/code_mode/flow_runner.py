"""The runner `flow`: the agent's thinking is a program, which works where programs of code mode work."""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from subagent_server.extensions.code_mode.code_tool import Programs, programs_of
from subagent_server.extensions.code_mode.execution import ProgramEnd, ProgramOutcome
from subagent_server.loop.runner import Outcome, Runner
from subagent_server.run.agent_definition import CODE_TOOL_NAME, END_FILE, OUTPUT_FILE, Selection
from subagent_server.run.commands import misfit
from subagent_server.run.errors import RunRefused
from subagent_server.run.records import Failure, RunRequest, Usage
from subagent_server.run.states import cut
from subagent_server.run.store import RunStore
from subagent_server.sandbox.readable import BoxRefused, end_of_run
from subagent_server.toolbox.tool import Tool
from subagent_server.toolbox.workspace import off_loop
from subagent_server.verbs.flow_calls import dry_run_text
from subagent_server.worker.runners import RunnerSetup
from subagent_server.worker.sandbox_setup import entered, planned_sandbox

NO_CLOCK = 1e9
"""Seconds: the limit of a flow is `timeoutSeconds` of working time, which the worker watches."""
_HINT = "code/001/ of its run has the program and its output; continue the run when that is fixed."


@dataclass
class FlowRunner:
    """Implements `loop.runner.Runner` with a program; `held` closes its MCP servers."""

    programs: Programs
    request: RunRequest
    store: RunStore
    held: AsyncExitStack

    @property
    def usage(self) -> Usage:
        """What the flow itself has used: a program costs nothing, the runs that it starts have their own."""
        return Usage()

    async def work(self) -> Outcome:
        """Run the program to its end."""
        setup, arguments = self.programs.setup, json.loads(self.request.prompt)
        code = setup.agent.system_prompt
        record = await off_loop(lambda: self.programs.records.begin(code))
        try:
            with setup.run.working():
                end, _, remark = await self.programs.executed(code, record, NO_CLOCK, arguments)
        except BoxRefused as refusal:
            raise end_of_run("The flow", refusal) from refusal
        except OSError as error:
            raise RunRefused("launch_failed", f"The flow could not be started ({error}).") from error
        record.write(OUTPUT_FILE, end.output)
        record.write(END_FILE, json.dumps({"outcome": int(end.outcome), "exitCode": end.exit_code}) + "\n")
        if remark:
            setup.run.record("warning", message=remark)
        return await self._outcome(end)

    async def _outcome(self, end: ProgramEnd) -> Outcome:
        agent, output = self.programs.setup.agent, end.output.strip()
        is_dry = self.request.flow is not None and self.request.flow.dry_run
        if is_dry and end.outcome in (ProgramOutcome.DONE, ProgramOutcome.RAISED):
            then = f"\nThen it ended with {end.why}" if end.why and end.failed != "dry_run" else ""
            return Outcome(dry_run_text(self.store, self.request.run_id) + then)
        if end.outcome is not ProgramOutcome.DONE:
            message = cut(end.why or end.remark.strip("[]"))
            code = "budget" if end.failed == "budget" else "agent_error"
            return Outcome(output, failure=Failure(code=code, message=message, hint=_HINT))
        if agent.output_schema is not None:
            wrong = await misfit(agent.output_schema, end.value)
            if wrong is None:
                return Outcome(output, output=end.value, has_output=True)
            wrong = f"what run() returned {wrong}"
        elif isinstance(end.value, str):
            return Outcome(end.value)
        else:
            returned = "nothing" if end.value is None else type(end.value).__name__
            wrong = f"run() returned {returned}, and says that it returns a text"
        return Outcome(output, failure=Failure(code="invalid_output", message=cut(wrong), hint=_HINT))

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends; the results of its calls are on record."""
        return Outcome("", failure=failure)

    async def stop_programs(self) -> None:
        """End the MCP servers: the program has ended with `work`."""
        await self.held.aclose()

    async def aclose(self) -> None:
        """Close the MCP servers."""
        await self.held.aclose()


async def open_runner(setup: RunnerSetup) -> Runner:
    """Return the program of a run, with its start recorded and its MCP servers connected.

    Raises:
        RunRefused: `config`; a setting of the agent cannot be kept.
    """
    agent, run = setup.agent, setup.run
    request = run.request()
    sandbox = await entered(agent, await off_loop(lambda: planned_sandbox(setup, Selection())))
    setup.record_start(request, sandbox.mark)
    async with AsyncExitStack() as cleanup:
        listed: Sequence[Tool] = ()
        if agent.mcp_servers or agent.served:
            # Not at the top: this imports the SDK of the protocol.
            from subagent_server.worker.connected_servers import connect_servers

            servers = await connect_servers(setup, [CODE_TOOL_NAME], sandbox.build_for_servers)
            cleanup.push_async_callback(servers.aclose)
            listed = servers.tools
        programs = await programs_of(setup.tools([], listed, sandbox.build))
        held = cleanup.pop_all()
    return FlowRunner(programs, request, run.store, held)
