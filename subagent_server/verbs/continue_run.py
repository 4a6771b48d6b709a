"""The verb `continue_run`: a new run has the whole conversation of an ended run (SPEC section 6).

Tested in `tests/verbs/test_continued.py` and `tests/end_to_end/test_continuing.py`.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from subagent_server.agents.variables import MissingVariable, expand_definition
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.durable import as_object
from subagent_server.run.errors import (
    BadArgument,
    CallerError,
    SubagentError,
    UnknownAgent,
    choices,
    shorten,
)
from subagent_server.run.locks import exclusive
from subagent_server.run.records import FlowOptions, RunMeta, RunRequest
from subagent_server.run.secrets import MASK
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore, check_not_newer, read_worktree
from subagent_server.verbs.access import USER, Caller, NotAllowed
from subagent_server.verbs.contract_agent import contract_agent
from subagent_server.verbs.inputs import check_is_real, cwd_of_agent
from subagent_server.verbs.reconcile import Observed, observe, tree_is_gone
from subagent_server.verbs.run_worktree import check_not_handed_over, directory_before_worktree, hand_over
from subagent_server.verbs.service import PlayedScript, Service, check_stays_scripted
from subagent_server.verbs.start import StartOrder, start_agent, with_arguments


class AgentGone(CallerError):
    """The agent of a run is not among those here, and the caller did not ask for the stored definition."""

    code = "agent_gone"

    def __init__(self, request: RunRequest) -> None:
        name, file = (shorten(str(request.agent.get(key, "")), 200) for key in ("name", "source"))
        super().__init__(
            f"Agent {name} is not among the agents here, so run {request.run_id} was not continued: put its "
            f"file {file} back, name its directory with --agents, or ask for the definition that the run was "
            "started with by storedAgent: true."
        )


class NotEnded(CallerError):
    """A run that works cannot be continued by another."""

    code = "wrong_state"

    def __init__(self, meta: RunMeta) -> None:
        super().__init__(
            f"Run {meta.run_id} is {meta.status.value}, so it cannot be continued yet: wait for its end with "
            "wait_for_runs, or end it with stop_run."
        )


@dataclass(frozen=True)
class ContinueOrder:
    """The order to continue a run. Without a `prompt` the run continues from the point of the cut.

    `inputs` are paths relative to the old run's directory. Without a `label` the old label is kept. With
    `stored_agent` an agent whose file is gone is taken as stored in the old run. `agent` is a definition to
    use instead of that in its file: what a program's call is known by. The others are as in `StartOrder`.
    """

    run_id: str
    prompt: str | None = None
    inputs: list[str] = field(default_factory=list)
    label: str | None = None
    stored_agent: bool = False
    client: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    script: PlayedScript | None = None
    call_id: str | None = None
    flow: FlowOptions | None = None
    agent: AgentDefinition | None = None


def continue_run(service: Service, order: ContinueOrder, caller: Caller = USER) -> RunMeta:
    """Start a run that continues an ended run, and return its first state.

    The new run has the conversation and the working directory of the old run, the environment and the parent
    of the caller, and the agent as its file is now. If the caller is a run, the new run stays in the caller's
    directory. The new run waits in `ready` until no process of the old run is left. A run may be continued
    several times; the new runs know nothing of each other.

    Raises:
        UnknownRun, InvalidRunId, UnreadableMeta, NewerSchema, NotEnded: the run cannot be continued, or not
            yet.
        NotAllowed, UnknownAgent, AgentGone, NotTrusted, BadArgument: not by this caller, or not so; nothing
            was made either way.
        ForeignRoot: the root does not have our mark.
        StorageFailed, LaunchFailed: the machine refused; nothing half-made is left.
    """
    service.store.paths.check_ours()
    observed = observe(service.store, order.run_id, caller)
    request = service.store.read_request(order.run_id)
    if request.flow is not None and request.flow.dry_run and request.continues_run_id is not None:
        order = replace(order, run_id=request.continues_run_id)  # the run that the dry run has looked at
        observed = observe(service.store, order.run_id, caller)
        request = service.store.read_request(order.run_id)
    prompt = order.prompt if order.prompt and order.prompt.strip() else ""
    is_flow = request.runner == "flow"
    _check_can_be_continued(service, observed, has_task=is_flow or bool(prompt or order.inputs))
    check_stays_scripted(service, request, order.script)
    agent, stored = _agent_now(service, request, order, caller)
    if caller.run_id is None:
        _check_options(order, agent, is_flow=is_flow)
    if request.runner != agent.runner:
        raise BadArgument(
            f"Run {request.run_id} was carried out by the runner {request.runner}, and agent {agent.name} "
            f"has {agent.runner} now, which cannot take its conversation over: start a new run instead."
        )
    if is_flow:
        _check_is_no_call(service.store, observed.meta, caller)
        prompt = _arguments_again(agent, request, prompt)
    directory = directory_before_worktree(observed.meta, request)
    if not Path(directory).is_dir():
        raise BadArgument(
            f"The directory {shorten(directory)} in which run {order.run_id} worked is gone: "
            "make it again, or start a new run."
        )
    check_is_real(directory, order.run_id)
    wanted = StartOrder(
        agent=agent.name,
        prompt=prompt,
        inputs=order.inputs,
        cwd=None if caller.is_child and _is_of_agent_file(service, agent, directory) else directory,
        label=order.label or observed.meta.label,
        client=order.client,
        overrides=order.overrides,
        script=order.script,
        call_id=order.call_id,
        flow=order.flow,
    )
    start = partial(start_agent, service, agent, wanted, caller, observed.meta, stored)
    if is_flow or observed.meta.worktree is not None:
        return _continued_once(service.store, order.run_id, start, is_flow=is_flow)
    return start()


def _check_options(order: ContinueOrder, agent: AgentDefinition, *, is_flow: bool) -> None:
    """Refuse options that this run cannot have. Raises BadArgument."""
    if order.flow is not None and not is_flow:
        raise BadArgument(
            f"Run {order.run_id} is no flow: --dry-run, --fresh and --retry-failed are for flows."
        )
    for name in order.flow.fresh if order.flow is not None else ():
        if name not in agent.agents:
            known = choices("agents", name, sorted(agent.agents))
            raise BadArgument(f"Flow {agent.name} does not call {name}, so it cannot be asked anew: {known}.")


def _check_is_no_call(store: RunStore, meta: RunMeta, caller: Caller) -> None:
    """Refuse a run that a flow called: the flow would not find what this run pays for. Raises BadArgument."""
    if meta.parent_run_id is None or caller.is_child:
        return
    runner = None
    with suppress(SubagentError):  # a parent run that was removed calls nothing any more
        runner = store.read_request(meta.parent_run_id).runner
    if runner == "flow":
        raise BadArgument(
            f"Run {meta.run_id} is a call of the flow {meta.parent_run_id}: continue that one, which then "
            "continues this call."
        )


def _continued_once(store: RunStore, run_id: str, start: Callable[[], RunMeta], *, is_flow: bool) -> RunMeta:
    """Start the one run that continues a flow, or takes a worktree over; a second caller is refused.

    Two continuations would pay for the same calls, because neither has the other's record.

    Raises:
        CallerError: there is one.
        UnreadableMeta: it cannot be found out whether there is one.
    """
    run = store.paths.run(run_id)
    with exclusive(run.tree_lock):
        check_not_handed_over(run_id, read_worktree(run))
        if is_flow and (other := store.continuation_of(run_id)) is not None:
            raise BadArgument(
                f"Run {run_id} was continued by run {other.run_id}, which has all its calls on record: "
                "continue that one."
            )
        meta = start()
        if meta.worktree is not None and meta.worktree.taken_from is not None and not meta.status.is_terminal:
            hand_over(store, meta.worktree.taken_from, meta.run_id)
        return meta


def _arguments_again(agent: AgentDefinition, request: RunRequest, prompt: str) -> str:
    """Return the arguments of a flow that is continued: those of its start. Raises BadArgument."""
    if prompt:
        raise BadArgument("A flow is continued with the arguments that it has: leave the prompt out.")
    if MASK in request.prompt:
        raise BadArgument(
            f"The arguments of run {request.run_id} held a secret, which is not kept: start a new run."
        )
    order = StartOrder(agent=agent.name, prompt="", arguments=arguments_of(request))
    return with_arguments(agent, order).prompt


def arguments_of(request: RunRequest) -> dict[str, object]:
    """Return the arguments of the run of a flow. Raises BadArgument."""
    if (found := as_object(request.prompt)) is None:
        raise BadArgument(f"The arguments of run {request.run_id} cannot be read: start a new run.")
    return found


def _check_can_be_continued(service: Service, observed: Observed, *, has_task: bool) -> None:
    meta = observed.meta
    check_not_newer(meta)
    if not meta.status.is_terminal:
        raise NotEnded(meta)
    if meta.status is Status.COMPLETED and not has_task:
        raise BadArgument(f"Run {meta.run_id} has completed: say in `prompt` what it should do next.")
    gone, launch = tree_is_gone(service.store.paths.run(meta.run_id)), meta.launch
    # If the old run has a heartbeat, this is known within two leases: until then the new run waits.
    if observed.live is None and not gone and (launch is None or launch.lease is None):
        host = launch.host if launch is not None else "another host"
        raise BadArgument(
            f"Run {meta.run_id} was started on {host}, and it cannot be seen here whether its processes are "
            f"gone: continue it there. If {host} is gone for good, `subagent stop --host-gone {meta.run_id}` "
            "says so."
        )


def _agent_now(
    service: Service, request: RunRequest, order: ContinueOrder, caller: Caller
) -> tuple[AgentDefinition, str | None]:
    """Return the agent as its file is now; without a file, and only on request, as stored in the old run.

    In that case a warning comes with it. The agent of a contract has no file and is known here.

    A definition stored in a run directory decides nothing by itself. A run may not ask for the stored
    definition: its agents come from the same directories as all agents of its tree.

    Raises:
        UnknownAgent: there is a file of this name, which cannot be read.
        AgentGone: there is no such file here, and the caller did not ask for the stored definition.
        NotAllowed, BadArgument: a run asked for the stored definition, or the definition cannot be used.
    """
    name = str(request.agent.get("name", ""))
    if order.agent is not None:
        return order.agent, None
    if (contract := _contract(service, request)) is not None:
        return contract, None
    try:
        return service.registry.get(name), None
    except UnknownAgent as error:
        if error.reason is not None:
            raise
        if not order.stored_agent:
            raise AgentGone(request) from error
    if caller.is_child:
        raise NotAllowed(
            f"Agent {shorten(name)} is not among the agents here, and run {caller.run_id}, a subagent, may "
            "not use a stored definition: ask your parent with ask_parent to put the file back."
        )
    try:
        stored = AgentDefinition.model_validate(request.agent)
    except ValidationError as error:
        raise BadArgument(
            f"The definition of agent {shorten(name)} that run {request.run_id} has stored cannot be used: "
            "put the file of the agent back."
        ) from error
    warning = (
        f"Agent {name} is not among the agents here: this run has the definition that run "
        f"{request.run_id} was started with."
    )
    if MASK in stored.model_dump_json():
        warning += f" What was secret in it is {MASK} now, so what needs that may fail."
    return stored, warning


def _contract(service: Service, request: RunRequest) -> AgentDefinition | None:
    """Return the agent of contracts, if the run had it: with the model of this server, else of that run."""
    if request.agent.get("byContract") is not True:
        return None
    return contract_agent(service.settings.contract_model or str(request.agent.get("model", "")))


def _is_of_agent_file(service: Service, agent: AgentDefinition, directory: str) -> bool:
    """Whether the agent file chose the run's directory: a continuation by a run then works there too."""
    with suppress(BadArgument, MissingVariable):  # the directory of the file is gone, or not known
        return cwd_of_agent(service, expand_definition(agent, service.settings.environment)) == Path(
            directory
        )
    return False


# -- The order to start the task of a run once more, as a new run.
#
# Tested in `tests/cli/test_rerun.py`.


def order_of(
    service: Service,
    run_id: str,
    caller: Caller,
    *,
    cwd: str | None = None,
    script: PlayedScript | None = None,
) -> StartOrder:
    """Return the order that run `run_id` was started by, for the agent as its file is now.

    `cwd` replaces the directory on record, as of a moved project. `script` plays its model.

    What is read is data of the run directory: it names an agent of the caller, whom a start judges as ever.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        ForeignRoot: the root does not have our mark.
        UnknownAgent: its file is not here, or cannot be read.
        BadArgument: the prompt is not kept whole, the run was a dry run, or a script has played it and none
            plays the next.
    """
    service.store.paths.check_ours()
    meta = observe(service.store, run_id, caller).meta
    request = service.store.read_request(run_id)
    check_stays_scripted(service, request, script)
    if MASK in request.prompt:
        raise BadArgument(
            f"The prompt of run {run_id} held a secret, which is not kept: start a new run with "
            "the whole prompt."
        )
    only_looks = request.flow is not None and request.flow.dry_run  # it would pay for its calls once more
    if only_looks or not request.prompt.strip():
        why = "is a dry run" if only_looks else "has no prompt of its own, because it continued another run"
        raise BadArgument(f"Run {run_id} {why}: rerun run {request.continues_run_id}, or start a new one.")
    if cwd is None:
        cwd = directory_before_worktree(meta, request)
        check_is_real(cwd, run_id)
    contract = _contract(service, request)
    if contract is None:
        try:
            service.registry.get(meta.agent_name)
        except UnknownAgent as error:
            if error.reason is not None or not (file := str(request.agent.get("source", ""))):
                raise
            why = f"run {run_id} had it from {shorten(file, 200)}: name its directory with --agents"
            raise UnknownAgent(meta.agent_name, error.known, why) from error
    is_flow = request.runner == "flow"
    return StartOrder(
        agent=meta.agent_name,
        prompt="" if is_flow else request.prompt,
        arguments=arguments_of(request) if is_flow else None,
        inputs=list(request.inputs),
        cwd=cwd,
        label=request.label,
        contract=contract,
        script=script,
    )
