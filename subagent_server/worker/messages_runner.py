"""From a definition to a loop with its tools and its model: the heavy half of a worker's imports."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from subagent_server.catalog.models import resolve_model
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import RunRequest
from subagent_server.runners.messages.loop import Loop
from subagent_server.runners.messages.meter import Purse
from subagent_server.runners.messages.model import DEFAULT_MAX_TOKENS, Model, ModelSettings
from subagent_server.runners.messages.prices import Prices, find_prices
from subagent_server.runners.messages.prompt import Task, system_blocks, task_blocks
from subagent_server.runners.messages.resume import Opening
from subagent_server.runners.messages.traced import TracedModel
from subagent_server.runners.outcome import Outcome
from subagent_server.store.root import is_marked
from subagent_server.toolkit.ask_parent import AskParent
from subagent_server.toolkit.final_answer import FinalAnswer
from subagent_server.toolkit.nested import Delegation, nested_tools
from subagent_server.toolkit.outputs import KeptOutputs
from subagent_server.toolkit.pace import Pace
from subagent_server.toolkit.run_context import RunDoor
from subagent_server.toolkit.telemetry import NO_TRACER, Tracer
from subagent_server.toolkit.tool import Tool
from subagent_server.toolkit.workspace.search_scope import SearchScope
from subagent_server.toolkit.workspace.selection import Selection, select
from subagent_server.toolkit.workspace.tools import make_workspace_tools
from subagent_server.worker.conversation_start import Beginning, begin
from subagent_server.worker.own_run import OwnRun

if TYPE_CHECKING:
    from subagent_server.worker.servers import ConnectedServers

_AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
"""The other variable by which programs call the Messages API."""
SANDBOX_MARK = "none (unsandboxed: programs run with all rights of the user)"


@dataclass(frozen=True)
class Assembled:
    """A loop that can start, and how its conversation begins."""

    loop: Loop
    beginning: Beginning
    servers: "ConnectedServers | None" = None

    async def work(self) -> Outcome:
        """Carry the conversation on to its end. Raises as `Loop.work` does."""
        return self.beginning.outcome or await self.loop.work(self.beginning.messages)


@dataclass(frozen=True)
class Surroundings:
    """What a run works in: its environment, what its tools may not change, and whom it may lead."""

    environment: Mapping[str, str]
    read_only: list[Path]
    delegation: Delegation | None = None
    tracer: Tracer = NO_TRACER


async def assemble(agent: AgentDefinition, own: OwnRun, door: RunDoor, around: Surroundings) -> Assembled:
    """Return the loop of a run, with its start recorded and its MCP servers connected.

    Raises:
        RunRefused: `config`, for what the definition asks and cannot be had.
    """
    purse = _purse(agent)
    settings = _model_settings(agent, around.environment, purse.prices)
    request = own.request()
    final = FinalAnswer(agent.output_schema) if agent.output_schema is not None else None
    selection = _selection(agent)
    workspace = make_workspace_tools(
        selection,
        scope=SearchScope(Path.cwd(), Path(os.path.realpath(own.root)), is_marked),
        environment=_shell_environment(agent, around.environment),
        read_only=around.read_only,
        output_dir=own.outputs,
        lifted=agent.sandbox_write,
        masker=own.masker,
        spare=own.other_shims,
    )
    _record_start(agent, request, door, settings.model)
    own_tools = [*workspace, *_companions(agent, door, around.delegation), *([final] if final else [])]
    task = _task(agent, request, own)
    leads = around.delegation is not None
    opening = Opening(task_blocks(task.prompt, task.inputs), settings.model, final, leads)
    beginning = await begin(task.continues, own, door, opening)
    servers = await _servers(agent, own, door, around, own_tools)  # from here on nothing may be refused
    tools = [*own_tools, *(servers.tools if servers else [])]
    pace = own.pace(settings.base_url or "", agent.api_key_env)
    may_ask = any(tool.name == AskParent.name for tool in tools)
    loop = Loop(
        run=door,
        model=_model(settings, own.run_id, around.tracer, pace),
        system=system_blocks(task, may_ask=may_ask, structured=final is not None),
        tools=tools,
        max_turns=agent.limits.max_turns,
        final=final,
        tracer=around.tracer,
        purse=purse,
        outputs=KeptOutputs(own.outputs, own.masker),
    )
    _warn_of_unknown(selection, tools, servers, door)
    if purse.prices is None:
        door.record("warning", message=f"No price is known for {settings.model}, so no cost is told.")
    loop.text = beginning.text
    return Assembled(loop, beginning, servers)


def _shell_environment(agent: AgentDefinition, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the shell: that of the run without the key of its model.

    An agent that may start others keeps it, because a `subagent run` in its shell hands it on; so does one
    whose own `env` gives it.
    """
    if agent.agents:
        return dict(environment)
    keys = {agent.api_key_env, _AUTH_TOKEN} - agent.env.keys()
    return {name: value for name, value in environment.items() if name not in keys}


def _model(settings: ModelSettings, run_id: str, tracer: Tracer, pace: Pace) -> Model:
    return Model(settings, pace) if tracer is NO_TRACER else TracedModel(settings, run_id, tracer, pace)


def _companions(agent: AgentDefinition, door: RunDoor, delegation: Delegation | None) -> list[Tool]:
    """Return the tools that come without being named, less those that the file forbids."""
    tools: list[Tool] = [AskParent(door), *(nested_tools(delegation) if delegation else [])]
    return [tool for tool in tools if tool.name not in agent.disallowed_tools]


async def _servers(
    agent: AgentDefinition, own: OwnRun, door: RunDoor, around: Surroundings, own_tools: list[Tool]
) -> "ConnectedServers | None":
    if not agent.mcp_servers:
        return None
    from subagent_server.worker.servers import connect_servers  # imports the SDK of the protocol

    return await connect_servers(agent, own, door, around.environment, own_tools)


def _task(agent: AgentDefinition, request: RunRequest, own: OwnRun) -> Task:
    return Task(
        run_id=own.run_id,
        agent_name=agent.name,
        system_prompt=agent.system_prompt,
        prompt=request.prompt,
        cwd=request.cwd,
        inputs=own.inputs(),
        continues=request.continues_run_id,
    )


def _record_start(agent: AgentDefinition, request: RunRequest, door: RunDoor, model: str) -> None:
    door.record(
        "run_started",
        agent=agent.name,
        runner=agent.runner,
        model=model,
        cwd=request.cwd,
        sandbox=SANDBOX_MARK,
        prompt=request.prompt,
        **({"continuesRunId": request.continues_run_id} if request.continues_run_id else {}),
    )
    for warning in request.warnings:
        door.record("warning", message=warning)


def _model_settings(
    agent: AgentDefinition, environment: Mapping[str, str], prices: Prices | None
) -> ModelSettings:
    api_key = environment.get(agent.api_key_env, "").strip()
    if not (api_key.isascii() and api_key.isprintable()):
        raise RunRefused(
            "config",
            f"{agent.api_key_env} holds characters that no key has, so the model cannot be called.",
            f"Set {agent.api_key_env} to the key alone, in one line, then run it again.",
        )
    if not api_key:
        raise RunRefused(
            "config",
            f"{agent.api_key_env} is not set, so the model cannot be called.",
            f"Set {agent.api_key_env} where the server or the command is started, then run it again.",
        )
    return ModelSettings(
        model=resolve_model(agent.model),
        api_key=api_key,
        base_url=agent.base_url or environment.get("ANTHROPIC_BASE_URL") or None,
        max_tokens=agent.max_tokens or DEFAULT_MAX_TOKENS,
        effort=agent.effort,
        context_window=prices.context_window if prices else None,
    )


def _purse(agent: AgentDefinition) -> Purse:
    model, budget = resolve_model(agent.model), agent.limits.budget_usd
    prices = find_prices(model)
    if prices is None and budget is not None:
        raise RunRefused(
            "config",
            f"budgetUsd cannot be kept: no price is known for the model {model}.",
            "Name a model whose price is known, or limit the run by `maxTurns` and `timeoutSeconds`.",
        )
    return Purse(prices, budget)


def _selection(agent: AgentDefinition) -> Selection:
    selection = select(agent.tools, agent.disallowed_tools)
    if selection.restricted:
        raise RunRefused(
            "config",
            f"tools: {', '.join(selection.restricted)} asks for a restriction that this version cannot keep.",
            "Name the tool without the part in parentheses to allow all of it, or leave it out.",
        )
    return selection


def _warn_of_unknown(
    selection: Selection, tools: list[Tool], servers: "ConnectedServers | None", door: RunDoor
) -> None:
    offered = {tool.name for tool in tools} | {AskParent.name}
    asked = [name for name in (*selection.unknown, *(selection.mcp or [])) if name not in offered]
    unknown = [name for name in asked if servers is None or not servers.know(name)]
    if unknown:
        door.record("warning", message=f"No tool is offered under the names {', '.join(unknown)}.")
