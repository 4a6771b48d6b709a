"""Starting a run: everything is checked before anything is made.

Tested in `tests/service/test_start.py` and `tests/end_to_end/`.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from subagent_server.catalog.overrides import overridden
from subagent_server.catalog.redact import redact
from subagent_server.domain import events
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument, SubagentError
from subagent_server.domain.events import RunEvent
from subagent_server.domain.ids import make_run_id
from subagent_server.domain.limits import MAX_LABEL_CHARACTERS, MAX_PROMPT_CHARACTERS, cut
from subagent_server.domain.records import (
    UNTOLD,
    AgentsFrom,
    Failure,
    LaunchInfo,
    RunMeta,
    RunRequest,
    StartedBy,
    Usage,
)
from subagent_server.host import processes
from subagent_server.host.clock import now
from subagent_server.launch import hooks
from subagent_server.launch.launcher import LaunchPackage, Reservation
from subagent_server.service.access import USER, Caller, new_token, token_hash
from subagent_server.service.check_agent import AgentChecker, CheckedAgent
from subagent_server.service.context import Service
from subagent_server.service.given import Given, masked_for_disk
from subagent_server.service.hooks import hooks_for_run
from subagent_server.service.inputs import check_inputs, copy_inputs
from subagent_server.service.nesting import check_may_start, publish_counted
from subagent_server.service.origin import agents_from
from subagent_server.service.places import ParentPlaces, cwd_of_child, cwd_of_user, places_of
from subagent_server.service.scripted import (
    WARNING,
    PlayedScript,
    calling_script,
    is_scripted,
    scripted_service,
)
from subagent_server.service.worktree_start import Workplace, workplace
from subagent_server.store.paths import RunPaths


@dataclass(frozen=True)
class StartOrder:
    """The order to start a run. `inputs` are paths relative to `cwd`, which is relative to the caller's.

    From a run, both have to lie in its own `cwd` (`service/places.py`).

    `overrides` are keys of the agent's file with other values for this run (`catalog/overrides.py`).
    `client` is the name that the client of the caller gives itself. `script` plays the model, of this run and
    of those below.
    """

    agent: str
    prompt: str
    inputs: list[str] = field(default_factory=list)
    cwd: str | None = None
    label: str | None = None
    client: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    script: PlayedScript | None = None


@dataclass(frozen=True)
class Continuation:
    """The continued run, and the warnings for the log of the new run. `before` is its state.

    `stored_agent` says that the caller asked for the definition stored at the start of the old run.
    """

    run_id: str
    warnings: list[str] = field(default_factory=list)
    stored_agent: bool = False
    before: RunMeta | None = None


def start(service: Service, order: StartOrder, caller: Caller = USER) -> RunMeta:
    """Start a run and return its first state; the run is on its way, and nothing here needs to stay alive.

    If the definition asks for something impossible, the run has already failed with `config`.

    Raises:
        UnknownAgent, NotAllowed, NotTrusted, BadArgument: nothing was made.
        StorageFailed, LaunchFailed: the machine refused; nothing half-made is left.
    """
    if not order.prompt.strip():
        raise BadArgument("The prompt is empty: say what the agent shall do.")
    return start_agent(service, service.registry.get(order.agent), order, caller)


def start_agent(
    service: Service,
    agent: AgentDefinition,
    order: StartOrder,
    caller: Caller,
    continuation: Continuation | None = None,
) -> RunMeta:
    """Start a run of this agent, as `start` and `continue_run` do. Raises as they do."""
    parent = check_may_start(service, caller, agent.name)
    agent, doubtful = overridden(agent, order.overrides)
    unscripted, service = service, scripted_service(service, agent, order.script)
    checked = _checked(service, agent, order, continuation)
    places = None if parent is None else places_of(service, parent)
    cwd = _cwd(service, order, checked, places)
    _check_texts(order)
    files = [] if checked.lacks_cwd else check_inputs(order.inputs, cwd, places)
    given = Given(order.prompt, order.label, files, redact(agent))
    masked = masked_for_disk(unscripted, checked.agent, caller, given)
    origin = agents_from(service.settings, checked.agent, cwd)
    scripted = is_scripted(service.settings.environment)
    warnings = [*(continuation.warnings if continuation else []), *doubtful, *checked.missing.values()]
    told, unusable = hooks_for_run(service.settings)
    warnings += [*([WARNING] if scripted else []), *unusable]
    moment = now()
    run_id = make_run_id(moment, os.urandom(6))
    before = continuation.before if continuation else None
    place = workplace(service, checked, cwd, run_id, before, within=None if places is None else places.cwd)
    checked = place.checked
    request = _request(
        origin, masked, place.cwd, parent, continuation, warnings, run_id, moment, scripted=scripted
    )
    token = new_token()
    started_by = parent.started_by if parent is not None else _started_by(caller, order.client)
    meta = _first_state(service, request, token, started_by, place)
    with service.launcher.starting() as starting:
        run = service.store.create(request)
        try:
            copy_inputs(masked.files, run)
            reservation = starting.reserve(run)
        except SubagentError:
            service.store.discard(run, meta.parent_run_id)
            raise
    made = _MadeRun(
        run, meta, checked, reservation, token, place.cwd, told, order.prompt, masked.secrets, order.script
    )
    return _launch(service, made)


def _checked(
    service: Service, agent: AgentDefinition, order: StartOrder, continuation: Continuation | None
) -> CheckedAgent:
    """Return an agent that may be used, as it was checked: the run gets exactly the files read here.

    Raises:
        NotTrusted.
    """
    is_asked_for = continuation is not None and continuation.stored_agent
    checker, elsewhere = AgentChecker(service), order.cwd is not None
    checked = checker.check(agent, elsewhere=elsewhere, is_asked_for=is_asked_for, asks_program=True)
    if "model" in order.overrides:
        checked = checked.with_model_of_caller()
    if checked.doubt is not None:
        raise checked.doubt
    if is_scripted(service.settings.environment):
        return replace(checked, agent=calling_script(checked.agent))
    return checked


@dataclass(frozen=True)
class _MadeRun:
    """A run whose directory is made and whose lock is held, before it is published."""

    paths: RunPaths
    meta: RunMeta
    checked: CheckedAgent
    reservation: Reservation
    token: str
    cwd: Path
    hooks: str
    prompt: str
    secrets: list[str]
    script: PlayedScript | None


def _launch(service: Service, made: _MadeRun) -> RunMeta:
    """Publish the run and hand it to its process; a run that cannot live ends here, with its reason."""
    _publish(service, made)
    end: RunEvent
    checked = made.checked
    if _parent_has_ended(service, made.meta):
        end = events.StopRequested(reason=f"run {made.meta.parent_run_id}, which started it, has ended")
    elif checked.refusals:
        failure = Failure(code="config", message=cut(checked.sentences), hint=checked.remedy)
        end = events.RunFailed(failure=failure)
    else:
        return _hand_over(service, made, _package(service, made))
    try:
        return service.store.update(made.meta.run_id, end, now())
    finally:
        made.reservation.give_up()  # last, or a reader would call the run dead for another reason


def _publish(service: Service, made: _MadeRun) -> None:
    try:
        publish_counted(service, made.meta)
    except SubagentError:
        made.reservation.give_up()
        service.store.discard(made.paths, made.meta.parent_run_id)
        raise
    service.store.reserve(made.paths)


def _hand_over(service: Service, made: _MadeRun, package: LaunchPackage) -> RunMeta:
    """Start the run's process, which lets go of the reservation whether or not it succeeds."""
    try:
        made.reservation.start(package)
    except SubagentError as error:
        failure = Failure(code="launch_failed", message=error.sentence)
        return service.store.update(made.meta.run_id, events.RunFailed(failure=failure), now())
    return made.meta


def _parent_has_ended(service: Service, meta: RunMeta) -> bool:
    """Look after the publishing: an end of the parent is written before it looks for its children."""
    return meta.parent_run_id is not None and service.store.read(meta.parent_run_id).status.is_terminal


def _cwd(service: Service, order: StartOrder, checked: CheckedAgent, places: ParentPlaces | None) -> Path:
    """Return the run's directory: as ordered, else as its agent file says, else the caller's.

    With a parent this is a real path in the parent's own directory, unless the agent file says otherwise: its
    author's word holds. If the directory of the file is not there, the run is refused for it.
    """
    if order.cwd is not None and ("\0" in order.cwd or not order.cwd):
        raise BadArgument("cwd is empty or holds a NUL byte: name a directory.")
    if checked.cwd is not None:
        return checked.cwd if places is None else Path(os.path.realpath(checked.cwd))
    return cwd_of_user(service, order.cwd) if places is None else cwd_of_child(service, order.cwd, places)


def _check_texts(order: StartOrder) -> None:
    if len(order.prompt) > MAX_PROMPT_CHARACTERS:
        raise BadArgument(
            f"The prompt has {len(order.prompt):,} characters, more than {MAX_PROMPT_CHARACTERS:,}: "
            "put the material into files and name them in `inputs`."
        )
    if order.label is not None and len(order.label) > MAX_LABEL_CHARACTERS:
        raise BadArgument(f"The label has more than {MAX_LABEL_CHARACTERS} characters: shorten it.")


def _request(
    origin: AgentsFrom,
    given: Given,
    cwd: Path,
    parent: RunMeta | None,
    continuation: Continuation | None,
    warnings: list[str],
    run_id: str,
    moment: datetime,
    *,
    scripted: bool,
) -> RunRequest:
    return RunRequest(
        run_id=run_id,
        agent=given.agent,
        prompt=given.prompt,
        inputs=[str(file.path) for file in given.files],
        cwd=str(cwd),
        label=given.label,
        continues_run_id=continuation.run_id if continuation else None,
        parent_run_id=parent.run_id if parent else None,
        root_run_id=parent.root_run_id if parent else run_id,
        depth=parent.depth + 1 if parent else 0,
        agents_from=origin,
        created_at=moment,
        warnings=[*warnings, *given.warnings],
        scripted=scripted or None,
    )


def _started_by(caller: Caller, client: str | None) -> StartedBy | None:
    process = caller.process
    if process is None:
        return None
    name = None if client is None else cut(client, MAX_LABEL_CHARACTERS)
    return StartedBy(client=name, parent=caller.parent, **asdict(process))


def _first_state(
    service: Service, request: RunRequest, token: str, started_by: StartedBy | None, place: Workplace
) -> RunMeta:
    # a program need not say what it uses: an unknown figure is not 0
    usage = Usage() if request.agent.get("runner", "messages") == "messages" else UNTOLD
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
        worktree=place.worktree,
        created_at=request.created_at,
        launch=LaunchInfo(
            kind=service.launcher.kind, host=processes.host_name(), boot_id=processes.boot_id()
        ),
        child_token_hash=token_hash(token),
    )


def _package(service: Service, made: _MadeRun) -> LaunchPackage:
    agent, meta = made.checked.agent, made.meta
    environment = {
        **service.settings.environment,
        **agent.env,
        "SUBAGENT_RUN_ID": meta.run_id,
        "SUBAGENT_RUN_TOKEN": made.token,
        "SUBAGENT_RUNS": str(service.settings.runs_root),
        "SUBAGENT_AGENTS": os.pathsep.join(str(path) for path in service.settings.agent_directories),
        "PWD": str(made.cwd),
        hooks.VARIABLE: made.hooks,
    }
    return LaunchPackage(
        definition=_dumped(agent),
        environment=environment,
        token=made.token,
        cwd=str(made.cwd) if meta.parent_run_id else os.path.realpath(made.cwd),  # real since it was checked
        prompt=made.prompt,
        secrets=made.secrets,
        slots=_slots(service, agent),
        after=meta.continues_run_id,
        script=asdict(made.script) if made.script is not None else None,
    )


def _slots(service: Service, agent: AgentDefinition) -> dict[str, int]:
    """The agent's slots before the root's: a run waiting for its own kind holds up no other run."""
    own = {f"agent-{agent.tool_name}": agent.max_concurrent} if agent.max_concurrent else {}
    return {**own, "root": service.settings.max_runs}


def _dumped(agent: AgentDefinition) -> dict[str, Any]:
    verdict = agent.verdict and agent.verdict.model_dump(mode="json")
    return {**agent.model_dump(mode="json", exclude_none=True), "verdict": verdict}
