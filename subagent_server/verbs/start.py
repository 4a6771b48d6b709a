"""Starting a run: everything is checked before anything is made.

Tested in `tests/verbs/test_start.py` and `tests/end_to_end/`.
"""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from subagent_server.agents.formats import overridden
from subagent_server.agents.variables import redact
from subagent_server.process import cleanup
from subagent_server.process.launcher import LaunchPackage, Reservation
from subagent_server.run import processes
from subagent_server.run.agent_definition import BUILT_IN, AgentDefinition
from subagent_server.run.durable import as_object
from subagent_server.run.errors import BadArgument, SubagentError, shorten
from subagent_server.run.processes import now
from subagent_server.run.records import (
    UNKNOWN_USAGE,
    Failure,
    FlowOptions,
    LaunchInfo,
    RunMeta,
    RunRequest,
    StartedBy,
    Usage,
    Worktree,
)
from subagent_server.run.schemas import first_fault
from subagent_server.run.secrets import Masker
from subagent_server.run.states import MAX_LABEL_CHARACTERS, MAX_PROMPT_CHARACTERS, cut, make_run_id
from subagent_server.run.store import read_worktree
from subagent_server.run.transitions import RunEvent, RunFailed, StopRequested
from subagent_server.settings import Settings
from subagent_server.verbs.access import USER, Caller, new_token, token_hash
from subagent_server.verbs.check_agent import AgentChecker, CheckedAgent, Refusal, takes_budget, unpriced
from subagent_server.verbs.inputs import (
    NAMES_ON_DISK,
    InputFile,
    ParentDirectories,
    check_inputs,
    copy_inputs,
    cwd_of_child,
    cwd_of_user,
    directories_of,
    masked_warnings,
    masker_at_start,
)
from subagent_server.verbs.live_runs import written_directories
from subagent_server.verbs.own_settings import hooks_for_run, launcher_for
from subagent_server.verbs.reconcile import tree_cost
from subagent_server.verbs.run_worktree import new_worktree, worktree_of_previous
from subagent_server.verbs.service import (
    WARNING,
    PlayedScript,
    Service,
    agents_from,
    calling_script,
    is_scripted,
    scripted_service,
)
from subagent_server.verbs.tree_limits import budgets_of, check_may_start, publish_counted
from subagent_server.worktrees.git import GitFailed
from subagent_server.worktrees.store_of_run import NoWorktree

_OF_CALLING_SESSION = frozenset(
    {
        *("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_SESSION_ID"),
        *("CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_CHILD_NOTES_DIR", "CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS"),
        *("CLAUDE_CODE_MESSAGING_SOCKET", "CLAUDE_CODE_MESSAGING_TOKEN"),
    }
)
"""What Claude Code sets for its servers and commands (seen in 2.1.332). A program could write to the session
that has called with it, and another Claude Code takes itself for a part of that session."""


@dataclass(frozen=True)
class StartOrder:
    """The order to start a run. `inputs` are paths relative to `cwd`, which is relative to the caller's.

    From a run, both have to lie in its own `cwd` (`verbs/inputs.py`).

    `contract` is the agent of contracts, whatever file has its name.
    `overrides` are keys of the agent's file with other values for this run (`agents/formats.py`).
    `client` is the name that the client of the caller gives itself. `script` plays the model, of this run and
    of those below. `arguments` are those of a flow, instead of a prompt. `call_id`, `base` (a commit for
    its worktree) and `flow` are of calls that a program makes (`RunRequest`).
    """

    agent: str
    prompt: str
    inputs: list[str] = field(default_factory=list)
    cwd: str | None = None
    label: str | None = None
    client: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    script: PlayedScript | None = None
    arguments: Mapping[str, Any] | None = None
    call_id: str | None = None
    base: str | None = None
    flow: FlowOptions | None = None
    contract: AgentDefinition | None = None


def start(service: Service, order: StartOrder, caller: Caller = USER) -> RunMeta:
    """Start a run and return its first state; the run is on its way, and nothing here needs to stay alive.

    If the definition asks for something impossible, the run has already failed with `config`.

    Raises:
        UnknownAgent, NotAllowed, NotTrusted, BadArgument: nothing was made.
        StorageFailed, LaunchFailed: the machine refused; nothing half-made is left.
    """
    agent = order.contract or service.registry.get(order.agent)
    order = with_arguments(agent, order)
    if not order.prompt.strip():
        raise BadArgument("The prompt is empty: say what the agent should do.")
    return start_agent(service, agent, order, caller)


def with_arguments(agent: AgentDefinition, order: StartOrder) -> StartOrder:
    """Return the order for a flow with its arguments as JSON instead of the prompt; any other as it is.

    A flow that has a parameter `prompt` takes a text for it; another one takes a text as JSON.

    Raises:
        BadArgument: they do not fit the parameters of the flow, or the agent is none.
    """
    if agent.runner != "flow":
        if order.arguments is not None:
            names = shorten(", ".join(order.arguments))
            raise BadArgument(
                f"Agent {agent.name} is no flow: it takes a prompt, and no arguments ({names})."
            )
        return order
    values = dict(order.arguments or {})
    if not isinstance(agent.input_schema, dict):  # the fault of its file is why its run will be refused
        return replace(order, prompt=json.dumps(values))  # a continuation of that run needs them
    parameters = cast("dict[str, Any]", agent.input_schema["properties"])
    if order.prompt.strip():
        text = {"prompt": order.prompt} if "prompt" in parameters else _as_object(order.prompt)
        values = text | values
    problem = first_fault(values, agent.input_schema)
    if problem is None:
        try:
            return replace(
                order, prompt=json.dumps(values, ensure_ascii=False, sort_keys=True, allow_nan=False)
            )
        except ValueError:  # Infinity, or NaN
            problem = "a number that JSON does not have"
    names = ", ".join(parameters) or "none"
    raise BadArgument(f"The arguments of {agent.name} do not fit ({problem}): it takes {names}.")


def _as_object(text: str) -> dict[str, Any]:
    if (found := as_object(text)) is not None:
        return found
    raise BadArgument("A flow takes arguments instead of a prompt: give them by name, or as a JSON object.")


def start_agent(
    service: Service,
    agent: AgentDefinition,
    order: StartOrder,
    caller: Caller,
    previous: RunMeta | None = None,
    stored: str | None = None,
) -> RunMeta:
    """Start a run of this agent, as `start` and `continue_run` do. Raises as they do.

    `previous` is the run that this one continues. `stored` is set if the caller asked for the definition
    that the previous run has stored, which needs no trust then: a warning for the log.
    """
    # 1. Who asks, and may it start this agent?
    parent = check_may_start(service, caller, agent)
    directories = None if parent is None else directories_of(service, parent)
    # 2. The one judge reads each file once: the run gets exactly what was checked.
    agent, doubts = overridden(agent, order.overrides)
    played = scripted_service(service, agent, order.script)
    checked = _checked(played, agent, order, parent, needs_no_trust=stored is not None)
    if not is_scripted(service.settings.environment):  # else its model is on the loopback of this machine
        launcher = launcher_for(service.settings, checked.agent.placement, service.launcher)
        service = replace(service, launcher=launcher)
    # 3. The task: directory, prompt and files.
    cwd = _cwd(service, order, checked, directories)
    AgentChecker(service).check_followed(checked.agent, cwd)
    check_texts(order)
    written = written_directories(replace(service.settings, cwd=cwd)) if order.inputs else []
    files = [] if checked.lacks_cwd else check_inputs(order.inputs, cwd, directories, written)
    # 4. No secret reaches the disk: the worker gets the definition and the prompt through memory. The secrets
    # are those of the caller's environment, not of the script's.
    masker = masker_at_start(service, checked.agent, caller)
    prompt, masked_files = masker.text(order.prompt), [file.masked(masker) for file in files]
    masked = [new.path for new, old in zip(masked_files, files, strict=True) if new != old]
    hooks, unusable_hooks = hooks_for_run(service.settings)
    warnings = [
        *([] if stored is None else [stored]),
        *doubts,
        *checked.missing.values(),
        *([WARNING] if is_scripted(played.settings.environment) else []),
        *unusable_hooks,
        *masked_warnings(masked, is_prompt_masked=prompt != order.prompt),
    ]
    # 5. Its worktree, if it gets one, is planned here; the worker makes it.
    moment, token = now(), new_token()
    run_id = make_run_id(moment, os.urandom(6))
    checked, worktree = _with_worktree(service, checked, order, cwd, run_id, previous)
    if worktree is not None:
        cwd = Path(worktree.path, worktree.prefix)
    # 6. The records: what was asked, and the first state.
    definition = redact(agent)
    request = RunRequest(
        run_id=run_id,
        agent=masker.data(definition) | {key: definition[key] for key in NAMES_ON_DISK if key in definition},
        prompt=prompt,
        inputs=[str(file.path) for file in files],
        cwd=str(cwd),
        label=None if order.label is None else masker.text(order.label),
        continues_run_id=None if previous is None else previous.run_id,
        parent_run_id=None if parent is None else parent.run_id,
        root_run_id=run_id if parent is None else parent.root_run_id,
        depth=0 if parent is None else parent.depth + 1,
        agents_from=agents_from(service.settings, checked.agent),
        created_at=moment,
        warnings=warnings,
        scripted=is_scripted(played.settings.environment) or None,
        call_id=order.call_id,
        flow=order.flow,
    )
    started_by = _started_by(caller, order.client) if parent is None else parent.started_by
    meta = _first_state(service, request, token, started_by, worktree)
    # 7. From here on something is made: the run, with its lock held.
    reservation = _publish(service, checked.agent, request, meta, masked_files)
    # 8. What cannot live ends with its reason. The lock is released last, or a reader would call the run dead
    # for another one.
    with ExitStack() as held:
        held.callback(reservation.give_up)
        if (end := _end_at_once(service, meta, checked)) is not None:
            return service.store.update(run_id, end, now())
        held.pop_all()
    # 9. The process takes the lock over, or lets go of it.
    environment = _environment(played.settings, checked.agent, run_id, token, cwd, hooks)
    try:
        reservation.start(_package(service, checked.agent, order, request, environment, masker))
    except SubagentError as error:
        failure = Failure(code="launch_failed", message=error.sentence)
        return service.store.update(run_id, RunFailed(failure=failure), now())
    return meta


def _checked(
    service: Service,
    agent: AgentDefinition,
    order: StartOrder,
    parent: RunMeta | None,
    *,
    needs_no_trust: bool,
) -> CheckedAgent:
    """Return what a start gets of an agent. Raises NotTrusted."""
    checked = AgentChecker(service).check(
        agent, elsewhere=order.cwd is not None, is_asked_for=needs_no_trust, asks_program=True
    )
    if checked.doubt is not None:
        raise checked.doubt
    for each in checked.refusals:
        if (each.key or "").rpartition(".")[2] in order.overrides:  # an option of this start, not the file
            raise BadArgument(each.sentence)
    if is_scripted(service.settings.environment):
        return replace(checked, agent=calling_script(checked.agent))
    budgets = [] if parent is None else budgets_of(service.store, parent)
    if budgets:  # what a run below costs has to be known, or it bounds nothing
        more = unpriced(checked.agent, budgets[0].run_id)
        checked = replace(checked, refusals=[*checked.refusals, *more])
        if takes_budget(checked.agent):  # it reports only at its end what its model has cost
            left = min(each.usd - tree_cost(service.store, each.run_id) for each in budgets)
            checked = replace(checked, agent=checked.agent.bounded(max(left, Decimal(0))))
    return checked


def _with_worktree(
    service: Service,
    checked: CheckedAgent,
    order: StartOrder,
    cwd: Path,
    run_id: str,
    previous: RunMeta | None,
) -> tuple[CheckedAgent, Worktree | None]:
    """Return the agent, refused if it can get no worktree, and the worktree in which the run will work."""
    base = order.base if previous is None else None
    if previous is not None and previous.worktree is not None:
        if order.flow is None or not order.flow.dry_run:
            return checked, worktree_of_previous(service.store, previous)
        # A dry run looks at what the flow has left, which stays with the run that will be continued.
        state = read_worktree(service.store.paths.run(previous.run_id))
        base = (None if state is None else state.tip) or previous.worktree.base
    if checked.agent.isolation != "worktree" or checked.refusals:
        return checked, None
    try:
        worktree = new_worktree(service, checked.agent, cwd, run_id)
    except (NoWorktree, GitFailed) as error:
        refusal = Refusal(error.sentence, "isolation", in_file=False)
        return replace(checked, refusals=[*checked.refusals, refusal]), None
    if base is not None:
        worktree = worktree.model_copy(update={"base": base})
    return checked, worktree


def _cwd(
    service: Service, order: StartOrder, checked: CheckedAgent, directories: ParentDirectories | None
) -> Path:
    """Return the run's directory, a real path: as ordered, else as its agent file sets, else the caller's.

    With a parent it lies in the parent's own directory, unless the agent file sets another one: its author
    decides. If the directory of the file is not there, the run is refused for it.
    """
    if order.cwd is not None and ("\0" in order.cwd or not order.cwd):
        raise BadArgument("cwd is empty or holds a NUL byte: name a directory.")
    if checked.cwd is not None or directories is None:
        return Path(os.path.realpath(checked.cwd or cwd_of_user(service, order.cwd)))
    return cwd_of_child(service, order.cwd, directories)


def check_texts(order: StartOrder) -> None:
    """Refuse a prompt or a label that is too long. Raises BadArgument."""
    if len(order.prompt) > MAX_PROMPT_CHARACTERS:
        raise BadArgument(
            f"The prompt has {len(order.prompt):,} characters, more than {MAX_PROMPT_CHARACTERS:,}: "
            "put the material into files and name them in `inputs`."
        )
    if order.label is not None and len(order.label) > MAX_LABEL_CHARACTERS:
        raise BadArgument(f"The label has more than {MAX_LABEL_CHARACTERS} characters: shorten it.")


def _started_by(caller: Caller, client: str | None) -> StartedBy | None:
    if caller.process is None:
        return None
    name = None if client is None else cut(client, MAX_LABEL_CHARACTERS)
    return StartedBy(client=name, parent=caller.parent, **asdict(caller.process))


def _first_state(
    service: Service,
    request: RunRequest,
    token: str,
    started_by: StartedBy | None,
    worktree: Worktree | None,
) -> RunMeta:
    # a program need not report what it uses: an unknown number is not 0
    usage = Usage() if request.runner in BUILT_IN else UNKNOWN_USAGE
    # a run that a run on a node starts there is read from elsewhere as that one is
    is_read_elsewhere = service.launcher.kind != "local" or processes.NODE in os.environ
    return RunMeta(
        run_id=request.run_id,
        agent_name=str(request.agent["name"]),
        label=request.label,
        continues_run_id=request.continues_run_id,
        parent_run_id=request.parent_run_id,
        root_run_id=request.root_run_id,
        depth=request.depth,
        started_by=started_by,
        usage=usage,
        with_descendants=usage,
        worktree=worktree,
        created_at=request.created_at,
        launch=LaunchInfo(
            kind=service.launcher.kind,
            host=service.launcher.host,
            boot_id=processes.boot_id(),
            lease=service.settings.lease if is_read_elsewhere else None,
        ),
        child_token_hash=token_hash(token),
    )


def _publish(
    service: Service, agent: AgentDefinition, request: RunRequest, meta: RunMeta, files: list[InputFile]
) -> Reservation:
    """Make a run whole, or nothing of it."""
    with service.launcher.starting() as starting:  # a process gets ready while the run is made
        run = service.store.create(request)
        reservation: Reservation | None = None
        try:
            copy_inputs(files, run)
            service.store.mark_continuation(request)
            # The lock before the state: a `ready` run whose lock is free is dead, with proof.
            reservation = starting.reserve(run)
            publish_counted(service, meta, agent)
        except SubagentError:
            if reservation is not None:
                reservation.give_up()
            service.store.discard(run, meta.parent_run_id)
            raise
    service.store.reserve(run)
    return reservation


def _end_at_once(service: Service, meta: RunMeta, checked: CheckedAgent) -> RunEvent | None:
    """Return the end of a run that cannot live. Called when the run is published.

    An end of the parent is written before it looks for its children: looked at later, it is not missed.
    """
    parent = meta.parent_run_id
    if parent is not None and service.store.read(parent).status.is_terminal:
        return StopRequested(reason=f"run {parent}, which started it, has ended")
    if not checked.refusals:
        return None
    return RunFailed(failure=Failure(code="config", message=cut(checked.sentences)))


def _environment(
    settings: Settings, agent: AgentDefinition, run_id: str, token: str, cwd: Path, hooks: str
) -> dict[str, str]:
    inherited = {name: text for name, text in settings.environment.items() if name not in _OF_CALLING_SESSION}
    return {
        **inherited,
        **agent.env,
        "SUBAGENT_RUN_ID": run_id,
        "SUBAGENT_RUN_TOKEN": token,
        "SUBAGENT_RUNS": str(settings.runs_root),
        "SUBAGENT_AGENTS": os.pathsep.join(str(path) for path in settings.agent_directories),
        "PWD": str(cwd),
        cleanup.VARIABLE: hooks,
    }


def _package(
    service: Service,
    agent: AgentDefinition,
    order: StartOrder,
    request: RunRequest,
    environment: dict[str, str],
    masker: Masker,
) -> LaunchPackage:
    """Return what reaches the worker through memory: with secrets, as the caller wrote it."""
    return LaunchPackage(
        definition=_dumped(agent),
        environment=environment,
        cwd=request.cwd,
        prompt=order.prompt,
        secrets=sorted(masker.values),
        slots=_slots(service, agent),
        after=request.continues_run_id,
        script=None if order.script is None else asdict(order.script),
    )


def _slots(service: Service, agent: AgentDefinition) -> dict[str, int]:
    """The agent's slots before the root's: a run that waits for its agent's slot holds up no other run."""
    own = {f"agent-{agent.tool_name}": agent.max_concurrent} if agent.max_concurrent else {}
    is_queue = service.launcher.kind == "slurm" and not service.settings.has_max_runs
    return own if is_queue else {**own, "root": service.settings.max_runs}


def _dumped(agent: AgentDefinition) -> dict[str, Any]:
    verdict = agent.verdict and agent.verdict.model_dump(mode="json")
    served = {
        name: {"entry": each.entry.model_dump(mode="json"), "agent": _dumped(each.agent)}
        for name, each in agent.served.items()
    }
    return {**agent.model_dump(mode="json", exclude_none=True), "verdict": verdict, "served": served}
