"""Opening the built-in loop for a run: its model, its tools, its MCP servers and its conversation."""

import asyncio
import hashlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from subagent_server import extensions
from subagent_server.agents.known_names import ALWAYS
from subagent_server.loop.loop import Loop
from subagent_server.loop.model import (
    DEFAULT_MAX_TOKENS,
    Model,
    ModelSettings,
    Prices,
    UsageMeter,
    find_prices,
)
from subagent_server.loop.request import Task, system_blocks, task_blocks
from subagent_server.loop.resume import Opening, Resumed, resume_conversation, start_conversation
from subagent_server.loop.runner import Outcome
from subagent_server.loop.web import make_web_tools
from subagent_server.process import marks
from subagent_server.run.agent_definition import AgentDefinition, Selection, Verdict
from subagent_server.run.control_groups import GROUPS
from subagent_server.run.durable import write_durably
from subagent_server.run.errors import StorageFailed
from subagent_server.run.files import Directory
from subagent_server.run.paths import is_marked
from subagent_server.run.processes import boot_id
from subagent_server.run.records import Failure, Record, RunRequest, Usage, worktree_text
from subagent_server.run.stderr import log
from subagent_server.toolbox.bash import BashTool
from subagent_server.toolbox.basic import AgentComplete, AskParent, FinalAnswer, NestedTool
from subagent_server.toolbox.editor import EditorTool
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.run_context import LONGEST_WAIT_SECONDS, check_asked
from subagent_server.toolbox.search import GlobTool, GrepTool, ListTool
from subagent_server.toolbox.todo_list import todo_tools
from subagent_server.toolbox.tool import RunTools, Tool
from subagent_server.toolbox.workspace import off_loop
from subagent_server.verbs.inputs import copied_inputs
from subagent_server.verbs.service import is_scripted
from subagent_server.worker.previous_run import read_previous_runs
from subagent_server.worker.runners import RunnerSetup
from subagent_server.worker.sandbox_setup import NO_GROUP, Sandbox, entered, get_ready, planned_sandbox
from subagent_server.worker.worker_run import WorkerRun

if TYPE_CHECKING:  # imports the SDK of the protocol
    from subagent_server.toolbox.mcp.mcp_tools import Servers

_AUTH_TOKEN = "ANTHROPIC_AUTH_TOKEN"
"""The other variable by which programs call the Messages API."""


@dataclass
class MessagesRunner:
    """Implements `loop.runner.Runner` with a loop that can start, and the start of its conversation."""

    loop: Loop
    start: Resumed
    servers: "Servers | None"
    sandbox: Sandbox
    first_request: asyncio.Event

    @property
    def usage(self) -> Usage:
        """What the run has used so far."""
        return self.loop.usage

    async def work(self) -> Outcome:
        """Carry the conversation on to its end. Raises as `Loop.work` does."""
        if self.start.outcome is not None:
            return self.start.outcome
        getting_ready = asyncio.create_task(self._get_ready())
        try:
            return await self.loop.work(self.start.messages)
        finally:
            getting_ready.cancel()
            await asyncio.gather(getting_ready, return_exceptions=True)

    async def _get_ready(self) -> None:
        """Get the sandbox of the programs ready, from when the first request of the model is on its way."""
        await self.first_request.wait()
        await get_ready(self.sandbox, self.loop.tools)
        if GROUPS.has_failed and self.sandbox.box is not None:
            self.loop.run.record("warning", message=NO_GROUP)
        with suppress(OSError):
            for name in await off_loop(self.sandbox.open):
                message = f"What other programs execute is not protected in the sandbox: {name}"
                self.loop.run.record("warning", message=message)

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends."""
        return self.loop.cut_short(failure)

    async def stop_programs(self) -> None:
        """End the shell, its jobs, and the MCP servers, which may be files of the working directory."""
        closing = [tool.aclose() for tool in self.loop.tools if isinstance(tool, BashTool)]
        if self.servers is not None:
            closing.append(self.servers.aclose())
        await asyncio.gather(*closing)

    async def aclose(self) -> None:
        """Close the tools, the MCP servers and the connections of the model, all at once."""
        closing = [_close(self.loop.tools), self.loop.model.aclose()]
        if self.servers is not None:
            closing.append(self.servers.aclose())
        await asyncio.gather(*closing, return_exceptions=True)


async def open_runner(setup: RunnerSetup) -> MessagesRunner:
    """Return the loop of a run, with its start recorded and its MCP servers connected.

    The order of the steps matters. A refusal before step 2 leaves a run that never began in its journal; a
    refusal after step 4 would leave the servers connected.

    Raises:
        RunRefused: `config`, if a setting of the agent cannot be kept.
        UnknownRun, UnreadableMeta: the run to continue is gone.
    """
    agent, run = setup.agent, setup.run
    # 1. Take the verdict on model and tools, made before the start, and look up the prices.
    verdict = agent.verdict
    assert verdict is not None, "a start sends it"
    prices, scripted = find_prices(verdict.model), is_scripted(setup.environment)
    meter = UsageMeter(None if scripted else prices)
    settings = _model_settings(agent, verdict.model, setup.environment, prices)
    pace = SharedPace(run.store.paths.backoff, settings.base_url or "", settings.api_key)
    model = Model(settings, pace, run.first_request.set)
    request = run.request()
    final = FinalAnswer(agent.output_schema) if agent.output_schema is not None else None
    planned = await off_loop(lambda: planned_sandbox(setup, verdict.selection))
    sandbox = await entered(agent, planned)
    workspace = _workspace(setup, verdict.selection, sandbox)
    async with AsyncExitStack() as cleanup:
        cleanup.push_async_callback(_close, workspace)
        # 2. Record the start: whatever is refused from here on comes after it in the journal.
        setup.record_start(request, sandbox.mark, settings.model)
        # 3. Begin the transcript, before any server is started: a kill from here on loses no conversation.
        task = _task(agent, request, run, sandbox)
        delegates = setup.delegation is not None
        words = task_blocks(task.prompt, task.inputs)
        opening = Opening(words, settings.model, final, delegates, agent.by_contract)
        before = request.continues_run_id
        previous = [] if before is None else read_previous_runs(run.store, before)
        start = (
            await resume_conversation(run, previous, opening)
            if previous
            else start_conversation(run, opening)
        )
        own_tools = [
            *workspace,
            *todo_tools(verdict.selection.todos, run.record, previous[0].todos if previous else ()),
            *_companions(setup),
            *([final] if final else []),
        ]
        # 4. Connect the servers. If one fails, this closes them all itself.
        servers = None
        if agent.mcp_servers or agent.served:
            # Not at the top: this imports the SDK of the protocol.
            from subagent_server.worker.connected_servers import connect_servers

            own_names = [*(tool.name for tool in own_tools), *verdict.web.names]
            servers = await connect_servers(setup, own_names, sandbox.build_for_servers)
            cleanup.push_async_callback(servers.aclose)
        listed = await _listed_tools(setup, servers, own_tools, sandbox)
        tools = [*own_tools, *listed]
        check_asked(agent.ask, tools)
        # 5. Nothing may be refused from here on.
        may_ask = any(tool.name == AskParent.name for tool in tools)
        loop = Loop(
            run=run,
            model=model,
            system=system_blocks(task, may_ask=may_ask, structured=final is not None),
            tools=tools,
            max_turns=agent.limits.max_turns,
            final=final,
            meter=meter,
            outputs=KeptOutputs(run.paths.outputs, run.masker),
            text=start.text,
            web=make_web_tools(verdict.web),
            ask=agent.ask,
            other_models=[
                (_model_settings(agent, name, setup.environment, found), None if scripted else found)
                for name, found in ((other, find_prices(other)) for other in verdict.other_models)
            ],
        )
        if missing := _missing(verdict, [*tools, *(servers.tools if servers else [])], servers):
            loop.warnings.append(missing)
            run.record("warning", message=missing)
        if prices is None and not scripted and verdict.is_model_known:  # else the start has warned
            message = f"No price is known for {settings.model}, so its cost is not counted."
            run.record("warning", message=message)
        cleanup.pop_all()
        return MessagesRunner(loop, start, servers, sandbox, run.first_request)


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
        direct=is_scripted(environment),
    )


async def _close(tools: Sequence[Tool]) -> None:
    """Close the tools, all at once."""
    await asyncio.gather(*(tool.aclose() for tool in tools), return_exceptions=True)


def _workspace(setup: RunnerSetup, selection: Selection, sandbox: Sandbox) -> list[Tool]:
    """Return the shell, the editor and search, as far as the agent may use them; none starts anything yet.

    The editor writes no file that other programs execute, and nothing in a protected path; only the sandbox
    holds back the shell.
    """
    cwd, box = Path.cwd(), sandbox.box
    root = Path(os.path.realpath(setup.run.store.paths.root))
    scope = SearchScope(cwd, root, is_marked, None if box is None else box.program)
    tools: list[Tool] = []
    if selection.bash:
        tools.append(
            BashTool(
                cwd=cwd,
                environment=_shell_environment(setup.agent, setup.environment),
                output_dir=setup.run.paths.outputs,
                masker=setup.run.masker,
                spare=marks.shims_on_record(setup.run.store.paths),  # no run ends the shim of another
                box=sandbox.build,
                watch=setup.watch,
            )
        )
    if selection.view or selection.edit:
        tools.append(
            EditorTool(
                cwd=cwd,
                read_only=setup.protected.all,
                lifted=setup.agent.lifted,
                view=selection.view,
                edit=selection.edit,
                watch=setup.watch,
            )
        )
    searches = (GrepTool, selection.grep), (GlobTool, selection.glob), (ListTool, selection.ls)
    return tools + [search(scope) for search, is_selected in searches if is_selected]


def _shell_environment(agent: AgentDefinition, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the shell: the environment of the run without the key of its model.

    An agent that may start others keeps the key, because a `subagent run` in its shell hands the key on. An
    agent whose own `env` sets the key keeps the key too.
    """
    if agent.agents:
        return dict(environment)
    keys = {agent.api_key_env, _AUTH_TOKEN} - agent.env.keys()
    return {name: value for name, value in environment.items() if name not in keys}


def _companions(setup: RunnerSetup) -> list[Tool]:
    """Return the tools that come without being named, less those that the file forbids, by any name."""
    forbidden = {name.strip().lower() for name in setup.agent.disallowed_tools}
    if "askuserquestion" in forbidden:
        forbidden.add(AskParent.name)
    tools: list[Tool] = [
        AskParent(setup.run),
        *([AgentComplete(setup.run.run_id)] if setup.agent.by_contract else []),
    ]
    if setup.delegation is not None:
        tools += [NestedTool(setup.delegation, each) for each in setup.delegation.definitions()]
    return [tool for tool in tools if tool.name not in forbidden]


# -- step 3: the transcript


def _task(agent: AgentDefinition, request: RunRequest, run: WorkerRun, sandbox: Sandbox) -> Task:
    return Task(
        run_id=run.run_id,
        agent_name=agent.name,
        system_prompt=agent.system_prompt,
        prompt=request.prompt,
        cwd=request.cwd,
        inputs=copied_inputs(run.paths),
        continues=request.continues_run_id,
        by_contract=agent.by_contract,
        location="\n".join(filter(None, (sandbox.words, worktree_text(run.meta().worktree)))),
    )


# -- steps 4 and 5: servers and model


async def _listed_tools(
    setup: RunnerSetup, servers: "Servers | None", own: Sequence[Tool], sandbox: Sandbox
) -> Sequence[Tool]:
    """Return the tools of MCP servers, as the extensions of the agent show them.

    Raises:
        RunRefused: `config`; an extension cannot keep what the agent asks for.
    """
    listed = servers.tools if servers is not None else []
    where = extensions.tools_for("codeMode")
    if setup.agent.enabled_code_mode is None or where is None:  # without the extension, the start refuses it
        return listed
    with_programs: Callable[[RunTools], Awaitable[Sequence[Tool]]] = extensions.imported(where)
    return await with_programs(setup.tools(own, listed, sandbox.build))


def _missing(verdict: Verdict, tools: list[Tool], servers: "Servers | None") -> str | None:
    """Return a warning of names in `tools` that no server has; the start has warned of the others."""
    known = {tool.name for tool in tools} | {AskParent.name, *verdict.missing_tools}
    asked = [*verdict.selection.unknown, *(verdict.selection.mcp or [])]
    named = (n for n in asked if n not in known and n.lower() not in ALWAYS)
    unknown = [n for n in named if servers is None or not servers.know(n)]
    return f"No tool is offered under the names {', '.join(unknown)}." if unknown else None


# -- Runs that meet a busy API pause together: a small file of the runs root has the time of the next call.
#
# Waits are measured on the clock of this boot, so that no jump of the wall clock makes a short silence
# long. A file of another boot or host, a torn file, and a number out of bounds count as a missing file.


LONGEST_SECONDS = 0.9 * LONGEST_WAIT_SECONDS
"""No hold is longer, whatever the API or a file asks for: the rest of that wait is for the spread."""
LONGEST_GROWN_SECONDS = 30.0
"""The longest wait that grows by itself, when the API named none."""
LEAST_SPREAD_SECONDS = 0.25
_LONGEST_HOLD = 4_096


class _Hold(Record):
    """No run calls before `until`, in seconds of this boot; the hold was made for so many `seconds`."""

    boot_id: str
    until: float = Field(strict=True, allow_inf_nan=False)
    seconds: float = Field(strict=True, ge=0, le=LONGEST_SECONDS)


class SharedPace:
    """Implements `toolbox.run_context.Pace` for all runs of a root that call one API with one key.

    The file of a hold is named by a digest of root, address and key: runs with other keys are other accounts,
    and no file shows which key it is about.
    """

    def __init__(self, directory: Directory, base_url: str, key: str) -> None:
        """`key` is the key itself, which is never written."""
        self._directory = directory
        account = f"{directory.path}\n{base_url}\n{key}".encode("utf-8", "surrogateescape")
        self._file = directory.entry(f"{hashlib.sha256(account).hexdigest()[:16]}.json")

    def hold(self) -> float:
        """Return the seconds to wait, longer by chance, so that waiting runs do not come all at once."""
        moment = time.monotonic()
        hold = self._read(moment)
        if hold is None or hold.until <= moment:
            return 0.0
        return hold.until - moment + _spread(hold.seconds)

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Hold all runs back. If the API is busy again right after a hold, the next hold is longer."""
        moment = time.monotonic()
        seconds = min(seconds, LONGEST_SECONDS)
        before = self._read(moment)
        if before is not None and before.until <= moment < before.until + 2 * before.seconds and not asked:
            seconds = max(seconds, min(LONGEST_GROWN_SECONDS, 2 * before.seconds))
        until = moment + seconds
        if before is None or before.until < until:
            self._write(_Hold(boot_id=boot_id(), until=until, seconds=seconds))
        else:
            until = before.until
        return until - moment + _spread(seconds)

    def _read(self, moment: float) -> _Hold | None:
        try:
            hold = _Hold.model_validate_json(self._file.read(_LONGEST_HOLD))
        except (OSError, ValidationError):
            return None
        return hold if hold.boot_id == boot_id() and hold.until - moment <= hold.seconds else None

    def _write(self, hold: _Hold) -> None:
        try:
            self._directory.make()
            write_durably(self._file, hold.to_json())
        except (OSError, StorageFailed) as error:
            log(f"The busy API could not be recorded for other runs ({error}); this run continues.")


def _spread(seconds: float) -> float:
    """Return the random part of a wait: the sum stays within the longest wait."""
    most = min(seconds / 2, LONGEST_WAIT_SECONDS - seconds)
    return random.uniform(0, max(LEAST_SPREAD_SECONDS, most))
