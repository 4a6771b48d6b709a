"""Opening a program that carries out a run: its task, its surroundings, and its start."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from subagent_server.extensions.programs.boxed_start import (
    ASKED,
    box_of_program,
    built_box,
    copy_state,
    host_program,
)
from subagent_server.extensions.programs.child_connections import ChildConnections
from subagent_server.extensions.programs.previous_session import PreviousSession, previous_session
from subagent_server.extensions.programs.program import (
    ChildServer,
    Dialect,
    ProgramEvents,
    ProgramRunner,
    ProgramTask,
)
from subagent_server.extensions.programs.program_checks import KNOWN_PROGRAMS
from subagent_server.loop.request import task_blocks
from subagent_server.process import marks
from subagent_server.run.agent_definition import RunnerName
from subagent_server.run.errors import RunRefused
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.records import RunRequest, worktree_text
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.file_watch import watching
from subagent_server.sandbox.readable import BoxRefused, end_of_run
from subagent_server.toolbox.agent_process import AgentProcess, ProcessOrder
from subagent_server.toolbox.mcp.server_log import ServerLog
from subagent_server.toolbox.run_context import Permissions
from subagent_server.toolbox.workspace import entered_off_loop
from subagent_server.verbs.inputs import copied_inputs
from subagent_server.worker.delegation import service_of
from subagent_server.worker.runners import RunnerSetup
from subagent_server.worker.sandbox_setup import RunBox, mark_of, refused, sandbox_rules_text

DIALECTS: dict[RunnerName, tuple[str, str]] = {
    "claude": ("claude", "ClaudeDialect"),
    "codex": ("codex", "CodexDialect"),
    "gemini": ("gemini", "GeminiDialect"),
    "acp": ("acp", "AcpDialect"),
    "command": ("command", "CommandDialect"),
}
"""The programs that can carry out a run: under the name of their runner the module and its class.

A worker imports that of its own agent alone: the library of one protocol takes 17 MiB and 0.4 s.
"""

_STATE = (*(known.state for known in KNOWN_PROGRAMS.values()), ".claude.json", ".qwen")
"""In the home directory, where a program outside of a box begins to keep its login and its sessions. Without
them its run could not be continued."""
_UNSANDBOXED = "none (unsandboxed: the program works with all rights of the user, within its own rules)"


async def open_runner(setup: RunnerSetup) -> ProgramRunner:
    """Return the runner of a program, with the start of the run recorded and the program not yet started.

    Raises:
        RunRefused: `config`, if the agent asks for something that cannot be kept.
        UnknownRun, UnreadableMeta: the run to continue is gone.
    """
    agent, run = setup.agent, setup.run
    request = run.request()
    module, name = DIALECTS[agent.runner]
    make = getattr(import_module(f"subagent_server.extensions.programs.{module}"), name)
    box = await asyncio.to_thread(box_of_program, setup)
    setup.record_start(request, _UNSANDBOXED if box is None else mark_of(box), agent.model)
    log = ServerLog(
        agent.runner,
        run.paths.server_logs,
        run.masker,
        lambda line: run.record("server_log", server=agent.runner, text=line),
    )
    log.handshake_over()  # of MCP servers: what a program prints is in the log from its first line on
    events = ProgramEvents(run, lambda: log.tail)
    previous = await asyncio.to_thread(previous_session, run.store, request, boxed=box is not None)
    if previous.session_id is not None:
        run.session_opened(previous.session_id)
    run.paths.program.make()
    if previous.state is not None:
        await asyncio.to_thread(copy_state, previous.state, run.paths.program_home)
    async with AsyncExitStack() as opened:
        build = None if box is None else partial(built_box, box)
        connections = _connections(setup, opened)
        task = _task(setup, request, previous, box, connections.relay)
        run.adopt([*previous.messages, {"role": "user", "content": list(task.content)}])
        dialect: Dialect = make(task, events, Permissions(run))
        start = partial(_start, setup, dialect, log, connections, build)
        kept = _STATE if box is None else ()
        watched = entered_off_loop(watching(setup.watch, f"the program {agent.runner}", kept))
        return ProgramRunner(run, agent, dialect, events, start, opened.pop_all().aclose, watched)


def _connections(setup: RunnerSetup, opened: AsyncExitStack) -> ChildConnections:
    """Return the connections by which the program asks, open from now until `opened` is closed.

    Raises:
        RunRefused: `launch_failed`, if there is no room for their descriptors.
    """
    delegation = setup.delegation
    if delegation is not None:
        service = delegation.service
    else:
        service = service_of(setup.run, setup.environment, setup.agent)
    connections = ChildConnections(setup.run, service)
    opened.push_async_callback(connections.aclose)
    try:
        connections.open()
    except OSError as error:
        raise RunRefused(
            "launch_failed",
            f"The worker cannot open the pipes by which its program asks: {error.strerror}.",
            "Raise the limit of open files (`ulimit -n`), or run less at once.",
        ) from error
    return connections


def _task(
    setup: RunnerSetup, request: RunRequest, previous: PreviousSession, box: RunBox | None, child: ChildServer
) -> ProgramTask:
    agent, run = setup.agent, setup.run
    inputs = copied_inputs(run.paths)
    words = previous.words(request.prompt)
    texts = [
        block["text"] if block["type"] == "text" else f"({file.path})"
        for file, kind in inputs
        for block in task_blocks("", [(file, kind)])
    ]
    return ProgramTask(
        agent=agent,
        run_id=run.run_id,
        prompt="\n\n".join([*texts, words]),
        retold="\n\n".join([*texts, replace(previous, session_id=None).words(request.prompt)]),
        content=task_blocks(words, inputs),
        preamble=_preamble(setup) if box is None else f"{_preamble(setup)} {sandbox_rules_text(box)}",
        cwd=Path.cwd(),
        child=child,
        state=run.paths.program,
        environment=setup.environment,
        resumes=previous.session_id,
        spent=previous.spent,
        kept=None if box is None else run.paths.program_home,
    )


def _preamble(setup: RunnerSetup) -> str:
    return (
        f"You are run {setup.run.run_id} of the subagent {setup.agent.name}: another agent, your parent, "
        "gave you the task and sees only your final result. If you need a decision or a fact that only the "
        "parent has, call the tool ask_parent of the MCP server subagent; its tool update_status says how "
        f"far you are. {worktree_text(setup.run.meta().worktree)}"
    ).rstrip()


async def _start(
    setup: RunnerSetup,
    dialect: Dialect,
    log: ServerLog,
    connections: ChildConnections,
    build: Callable[[], Box] | None,
) -> AgentProcess:
    launch = await asyncio.to_thread(dialect.launch)
    program, *arguments = launch.argv
    try:
        box, words = None, [program]
        if build is None:
            words = host_program(setup, program)
        else:
            box = (await asyncio.to_thread(build)).with_environment(launch.environment)
            setup.run.first_request.set()  # from here on files that run code may come
        order = ProcessOrder(
            argv=[*words, *arguments],
            environment={**setup.environment, **launch.environment},
            cwd=Path.cwd(),
            box=box,
            descriptors=[*launch.descriptors, *connections.inherited()],
            spare=marks.shims_on_record(setup.run.store.paths),
        )
        return await AgentProcess.start(order, log.write)
    except BoxRefused as refusal:
        if refusal.passes:
            raise end_of_run(f"The program {launch.argv[0]}", refusal) from refusal
        raise refused(ASKED, refusal.reason) from refusal
    except (OSError, ValueError, NoHostProgram) as error:
        why = error.why if isinstance(error, NoHostProgram) else getattr(error, "strerror", None) or error
        raise RunRefused(
            "config",
            f"The program {program} of the agent cannot be started: {why}.",
            "Install it, or fix `command` and `args` in the agent file; a long prompt belongs on stdin.",
        ) from error
