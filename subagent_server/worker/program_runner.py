"""Opening a program that carries out a run: its task, its place, its child's server and its dialect."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from subagent_server.domain.definitions import RunnerName
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import RunRequest
from subagent_server.launch import marks
from subagent_server.runners.messages.prompt import task_blocks
from subagent_server.runners.programs.acp import AcpDialect
from subagent_server.runners.programs.claude import ClaudeDialect
from subagent_server.runners.programs.codex import CodexDialect
from subagent_server.runners.programs.command import CommandDialect
from subagent_server.runners.programs.dialect import ChildServer, Dialect, ProgramTask
from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.gemini import GeminiDialect
from subagent_server.runners.programs.runner import ProgramRunner
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.service.inputs import copied_inputs
from subagent_server.toolkit.agent_process import AgentProcess, ProcessOrder
from subagent_server.toolkit.mcp_servers.server_log import ServerLog
from subagent_server.toolkit.permission import Permissions
from subagent_server.worker.carried_on import CarriedOn, carry_on
from subagent_server.worker.runner_setup import RunnerSetup

MakeDialect = Callable[[ProgramTask, ProgramEvents, Permissions], Dialect]

DIALECTS: dict[RunnerName, MakeDialect] = {
    "claude": ClaudeDialect,
    "codex": CodexDialect,
    "gemini": GeminiDialect,
    "acp": AcpDialect,
    "command": lambda task, events, _: CommandDialect(task, events),
}
"""The programs that can carry out a run, under the name of their runner."""

_UNSANDBOXED = "none (unsandboxed: the program works with all rights of the user, within its own rules)"
_CHILD_VARIABLES = ("SUBAGENT_RUN_ID", "SUBAGENT_RUN_TOKEN", "SUBAGENT_RUNS", "SUBAGENT_AGENTS")


async def open_runner(setup: RunnerSetup) -> ProgramRunner:
    """Return the runner of a program, with the start of the run recorded and the program not yet started.

    Raises:
        RunRefused: `config`, if the agent asks for something that cannot be kept.
        UnknownRun, UnreadableMeta: the run to carry on is gone.
    """
    agent, run = setup.agent, setup.run
    request = run.store.read_request(run.run_id)
    setup.record_start(request, _UNSANDBOXED, agent.model)
    log = ServerLog(
        agent.runner,
        run.paths.server_logs,
        run.masker,
        lambda server, text: run.record("server_log", server=server, text=text),
    )
    events = ProgramEvents(run, lambda: log.tail)
    past = await asyncio.to_thread(carry_on, run.store, request)
    if past.session_id is not None:
        run.session_opened(past.session_id)
    task = _task(setup, request, past)
    run.adopt([*past.messages, {"role": "user", "content": list(task.content)}])
    dialect = DIALECTS[agent.runner](task, events, Permissions(run, beside_work=True))
    start = partial(_start, setup, dialect, log)
    return ProgramRunner(run, agent, dialect, events, start)


def _task(setup: RunnerSetup, request: RunRequest, past: CarriedOn) -> ProgramTask:
    agent, run = setup.agent, setup.run
    state = run.paths.program
    state.make()
    inputs = copied_inputs(run.paths)
    words = past.words(request.prompt)
    texts = [
        block["text"] if block["type"] == "text" else f"({file.path})"
        for file, kind in inputs
        for block in task_blocks("", [(file, kind)])
    ]
    return ProgramTask(
        agent=agent,
        run_id=run.run_id,
        prompt="\n\n".join([*texts, words]) if texts else words,
        content=task_blocks(words, inputs),
        preamble=_preamble(setup),
        cwd=Path.cwd(),
        child=child_server(),
        state=state,
        environment=setup.environment,
        resumes=past.session_id,
        spent=past.spent,
    )


def child_server() -> ChildServer:
    """Return the command of the server for children, which is this installation's."""
    # -P: a directory of the run's own must not be searched for modules
    args = ["-P", "-m", "subagent_server", "serve", "--role", "child"]
    return ChildServer("subagent", sys.executable, args, _CHILD_VARIABLES)


def _preamble(setup: RunnerSetup) -> str:
    return (
        f"You are run {setup.run.run_id} of the subagent {setup.agent.name}: another agent, your parent, "
        "gave you the task and sees only your final result. If you need a decision or a fact that only the "
        "parent has, call the tool ask_parent of the MCP server subagent; its tool update_status says how "
        "far you are."
    )


async def _start(setup: RunnerSetup, dialect: Dialect, log: ServerLog) -> AgentProcess:
    launch = await asyncio.to_thread(dialect.launch)
    environment = {**setup.environment, **launch.environment}
    order = ProcessOrder(
        argv=launch.argv,
        environment={name: value for name, value in environment.items() if name not in launch.lacking},
        cwd=Path.cwd(),
        descriptors=launch.descriptors,
        spare=marks.shims_on_record(setup.run.store.paths),
    )
    try:
        return await AgentProcess.start(order, log.write)
    except (OSError, ValueError, BoxRefused) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise RunRefused(
            "config",
            f"The program {launch.argv[0]} of the agent cannot be started: {why}.",
            "Install it, or mend `command` and `args` in the agent file; a long prompt belongs on stdin.",
        ) from error
