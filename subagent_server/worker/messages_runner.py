"""Opening the built-in loop for a run: its model, its tools, its MCP servers and its conversation."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from subagent_server import extensions
from subagent_server.domain.definitions import AgentDefinition, Verdict
from subagent_server.domain.records import Failure, RunRequest, Usage
from subagent_server.domain.tool_selection import Selection
from subagent_server.domain.worktrees import worktree_words
from subagent_server.host.control_groups import GROUPS
from subagent_server.launch import marks
from subagent_server.runners.messages.loop import Loop
from subagent_server.runners.messages.model import (
    DEFAULT_MAX_TOKENS,
    Model,
    ModelSettings,
    Prices,
    UsageMeter,
    find_prices,
)
from subagent_server.runners.messages.prompt import Task, system_blocks, task_blocks
from subagent_server.runners.messages.resume import (
    Opening,
    Resumed,
    carry_on_conversation,
    start_conversation,
)
from subagent_server.runners.messages.web import make_web_tools
from subagent_server.runners.outcome import Outcome
from subagent_server.sandbox.refusal import BoxRefused, end_of_run
from subagent_server.service.inputs import copied_inputs
from subagent_server.service.scripted import is_scripted
from subagent_server.service.tool_names import verdict_of
from subagent_server.store.root import is_marked
from subagent_server.toolkit.agent_complete import AgentComplete
from subagent_server.toolkit.ask_parent import AskParent
from subagent_server.toolkit.final_answer import FinalAnswer
from subagent_server.toolkit.nested import nested_tools
from subagent_server.toolkit.outputs import KeptOutputs
from subagent_server.toolkit.permission import check_asked
from subagent_server.toolkit.todo_list import todo_tools
from subagent_server.toolkit.tool import RunTools, Tool
from subagent_server.toolkit.workspace.bash import BashTool
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.ripgrep import SearchScope
from subagent_server.toolkit.workspace.tools import make_workspace_tools
from subagent_server.worker.boxes import NO_GROUP, Place, entered, get_ready, planned_place, without_box
from subagent_server.worker.past import read_past
from subagent_server.worker.run_context import WorkerRun
from subagent_server.worker.runner_setup import RunnerSetup
from subagent_server.worker.shared_pace import SharedPace

if TYPE_CHECKING:
    from subagent_server.worker.servers import ConnectedServers

_AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
"""The other variable by which programs call the Messages API."""


class MessagesRunner:
    """Implements `runners.runner.Runner` with a loop that can start, and the start of its conversation."""

    def __init__(
        self,
        loop: Loop,
        start: Resumed,
        servers: "ConnectedServers | None",
        place: Place,
        first_request: asyncio.Event,
    ) -> None:
        self._loop = loop
        self._start = start
        self._servers = servers
        self._place = place
        self._first_request = first_request

    @property
    def usage(self) -> Usage:
        """What the run has used so far."""
        return self._loop.usage

    async def work(self) -> Outcome:
        """Carry the conversation on to its end. Raises as `Loop.work` does."""
        if self._start.outcome is not None:
            return self._start.outcome
        getting_ready = asyncio.create_task(self._get_ready())
        try:
            return await self._loop.work(self._start.messages)
        finally:
            getting_ready.cancel()
            await asyncio.gather(getting_ready, return_exceptions=True)

    async def _get_ready(self) -> None:
        """Get the place of the programs ready, from when the first request of the model is on its way."""
        await self._first_request.wait()
        await get_ready(self._place, self._loop.tools)
        if GROUPS.has_failed and self._place.box is not None:
            self._loop.run.record("warning", message=NO_GROUP)
        with suppress(OSError):
            for name in await off_loop(self._place.open):
                message = f"What other programs execute is not protected in the sandbox: {name}"
                self._loop.run.record("warning", message=message)

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends."""
        return self._loop.cut_short(failure)

    async def rest(self) -> None:
        """End the shell and its jobs."""
        await asyncio.gather(*(tool.aclose() for tool in self._loop.tools if isinstance(tool, BashTool)))

    async def aclose(self) -> None:
        """Close the tools, the MCP servers and the connections of the model, all at once."""
        closing = [_leave(self._loop.tools)]
        closing += [self._servers.aclose()] if self._servers is not None else []
        await asyncio.gather(*closing, self._loop.model.aclose(), return_exceptions=True)


async def open_runner(setup: RunnerSetup) -> MessagesRunner:
    """Return the loop of a run, with its start recorded and its MCP servers connected.

    The order of the steps matters. A refusal before step 2 leaves a run that never began in its journal; a
    refusal after step 4 would leave the servers connected.

    Raises:
        RunRefused: `config`, if a setting of the agent cannot be kept.
        UnknownRun, UnreadableMeta: the run to carry on is gone.
    """
    agent, run = setup.agent, setup.run
    # 1. Take the verdict on model and tools, made before the start, and look up the prices.
    verdict = agent.verdict or verdict_of(agent)  # a server from before an upgrade sends none
    prices, scripted = find_prices(verdict.model), is_scripted(setup.environment)
    meter = UsageMeter(None if scripted else prices)
    settings = _model_settings(agent, verdict.model, setup.environment, prices)
    request = run.request()
    final = FinalAnswer(agent.output_schema) if agent.output_schema is not None else None
    workspace, place = await _entered_workspace(setup, verdict.selection)
    async with AsyncExitStack() as cleanup:
        cleanup.push_async_callback(_leave, workspace)
        # 2. Record the start: whatever is refused from here on stands in the journal behind it.
        setup.record_start(request, place.mark, settings.model)
        todos = todo_tools(verdict.selection.todos, run.record)
        own_tools = [*workspace, *todos, *_companions(setup), *([final] if final else [])]
        # 3. Begin the transcript, before any server is started: a kill from here on loses no conversation.
        task = _task(agent, request, run, place)
        delegates = setup.delegation is not None
        opening = Opening(task_blocks(task.prompt, task.inputs), settings.model, final, delegates)
        if request.continues_run_id is None:
            start = start_conversation(run, opening)
        else:
            start = await carry_on_conversation(run, read_past(run.store, request.continues_run_id), opening)
        # 4. Connect the servers. If one fails, this closes them all itself.
        own_names = [*(tool.name for tool in own_tools), *verdict.web.names]
        servers = await _servers(setup, own_names, place)
        if servers is not None:
            cleanup.push_async_callback(servers.aclose)
        foreign = await _foreign_tools(setup, servers, own_tools, place)
        tools = [*own_tools, *foreign]
        check_asked(agent.ask, [tool.name for tool in tools])
        # 5. Nothing may be refused from here on.
        may_ask = any(tool.name == AskParent.name for tool in tools)
        pace = SharedPace(run.store.paths.backoff, settings.base_url or "", settings.api_key)
        loop = Loop(
            run=run,
            model=Model(settings, pace, run.request_sent),
            system=system_blocks(task, may_ask=may_ask, structured=final is not None),
            tools=tools,
            max_turns=agent.limits.max_turns,
            final=final,
            meter=meter,
            outputs=KeptOutputs(run.paths.outputs, run.masker),
            text=start.text,
            web=make_web_tools(verdict.web),
            ask=agent.ask,
        )
        _warn(setup, verdict, [*tools, *(servers.tools if servers else [])], servers)
        if prices is None and not scripted and verdict.is_model_known:  # else the start has said so
            message = f"No price is known for {settings.model}, so its cost is not counted."
            run.record("warning", message=message)
        cleanup.pop_all()
        return MessagesRunner(loop, start, servers, place, run.first_request)


# -- step 1: without an effect


def _model_settings(
    agent: AgentDefinition, model: str, environment: Mapping[str, str], prices: Prices | None
) -> ModelSettings:
    return ModelSettings(
        model=model,
        api_key=environment[agent.api_key_env].strip(),
        base_url=agent.base_url or environment.get("ANTHROPIC_BASE_URL") or None,
        max_tokens=agent.max_tokens or DEFAULT_MAX_TOKENS,
        effort=agent.effort,
        context_window=prices.context_window if prices else None,
    )


async def _entered_workspace(setup: RunnerSetup, selection: Selection) -> tuple[list[Tool], Place]:
    """Return the tools of the workspace, with the shell in its box if there is one, and where it works."""
    place = await off_loop(lambda: planned_place(setup, selection))
    tools = _workspace(setup, selection, place)
    try:
        await entered(place, tools)
    except BoxRefused as refusal:
        if refusal.passes:
            raise end_of_run("The programs of the run", refusal) from refusal
        place = without_box(setup.agent, refusal.reason)
        tools = _workspace(setup, selection, place)
    except BaseException:
        await _leave(tools)
        raise
    return tools, place


async def _leave(tools: Sequence[Tool]) -> None:
    """Close the tools, all at once."""
    await asyncio.gather(*(tool.aclose() for tool in tools), return_exceptions=True)


def _workspace(setup: RunnerSetup, selection: Selection, place: Place) -> list[Tool]:
    """Return the shell, the editor and search, as far as the agent may use them."""
    return make_workspace_tools(
        selection,
        scope=SearchScope(
            Path.cwd(),
            Path(os.path.realpath(setup.run.store.paths.root)),
            is_marked,
            None if place.box is None else place.box.program,
        ),
        environment=_shell_environment(setup.agent, setup.environment),
        read_only=setup.places.all,
        output_dir=setup.run.paths.outputs,
        lifted=setup.agent.lifted,
        masker=setup.run.masker,
        spare=marks.shims_on_record(setup.run.store.paths),  # no run ends the shim of another
        box=None if place.box is None else place.box.built,
        watch=setup.watch,
    )


def _shell_environment(agent: AgentDefinition, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the shell: the environment of the run without the key of its model.

    An agent that may start others keeps the key, because a `subagent run` in its shell hands the key on. An
    agent whose own `env` gives the key keeps the key too.
    """
    if agent.agents:
        return dict(environment)
    keys = {agent.api_key_env, _AUTH_TOKEN} - agent.env.keys()
    return {name: value for name, value in environment.items() if name not in keys}


def _companions(setup: RunnerSetup) -> list[Tool]:
    """Return the tools that come without being named, less the tools forbidden by the file."""
    tools: list[Tool] = [
        AskParent(setup.run),
        *([AgentComplete(setup.run.run_id)] if setup.agent.by_contract else []),
        *(nested_tools(setup.delegation) if setup.delegation else []),
    ]
    return [tool for tool in tools if tool.name not in setup.agent.disallowed_tools]


# -- step 3: the transcript


def _task(agent: AgentDefinition, request: RunRequest, run: WorkerRun, place: Place) -> Task:
    return Task(
        run_id=run.run_id,
        agent_name=agent.name,
        system_prompt=agent.system_prompt,
        prompt=request.prompt,
        cwd=request.cwd,
        inputs=copied_inputs(run.paths),
        continues=request.continues_run_id,
        by_contract=agent.by_contract,
        place="\n".join(filter(None, (place.words, worktree_words(run.meta().worktree)))),
    )


# -- steps 4 and 5: servers and model


async def _foreign_tools(
    setup: RunnerSetup, servers: "ConnectedServers | None", own: Sequence[Tool], place: Place
) -> Sequence[Tool]:
    """Return the tools of MCP servers, as the extensions of the agent offer them.

    Raises:
        RunRefused: `config`; an extension cannot keep what the agent asks for.
    """
    run, listed = setup.run, servers.tools if servers is not None else []
    where = extensions.tools_for("codeMode")
    if setup.agent.enabled_code_mode is None or where is None:  # without the extension, the start refuses it
        return listed
    with_programs: Callable[[RunTools], Awaitable[Sequence[Tool]]] = extensions.imported(where)
    return await with_programs(
        RunTools(
            agent=setup.agent,
            run=run,
            environment=setup.environment,
            own=own,
            listed=listed,
            code=run.paths.code,
            outputs=run.paths.outputs,
            masker=run.masker,
            box=None if place.box is None else place.box.built,
            spare=marks.shims_on_record(run.store.paths),
            watch=setup.watch,
        )
    )


async def _servers(setup: RunnerSetup, own_names: list[str], place: Place) -> "ConnectedServers | None":
    if not setup.agent.mcp_servers:
        return None
    from subagent_server.worker.servers import connect_servers  # imports the SDK of the protocol

    return await connect_servers(setup, own_names, None if place.servers is None else place.servers.built_for)


def _warn(
    setup: RunnerSetup, verdict: Verdict, tools: list[Tool], servers: "ConnectedServers | None"
) -> None:
    """Record a warning for names in `tools` that no server offers; the start has warned of the others."""
    known = {tool.name for tool in tools} | {AskParent.name, *verdict.missing_tools}
    asked = [*verdict.selection.unknown, *(verdict.selection.mcp or [])]
    unknown = [n for n in asked if n not in known and (servers is None or not servers.know(n))]
    if unknown:
        setup.run.record("warning", message=f"No tool is offered under the names {', '.join(unknown)}.")
