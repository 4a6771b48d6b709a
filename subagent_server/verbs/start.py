"""Starting a run: everything is checked before anything is made.

Tested in `tests/service/test_start.py` and `tests/end_to_end/`.
"""

import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from subagent_server.agents.expand import overridden
from subagent_server.agents.redact import redact
from subagent_server.process import cleanup
from subagent_server.process.cleanup import VARIABLE
from subagent_server.process.launcher import LaunchPackage, Reservation
from subagent_server.run import processes, transitions
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, SubagentError, shorten
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.paths import RunPaths
from subagent_server.run.processes import now
from subagent_server.run.records import (
    UNTOLD,
    AgentsFrom,
    Failure,
    LaunchInfo,
    RunMeta,
    RunRequest,
    StartedBy,
    Usage,
    Worktree,
)
from subagent_server.run.states import MAX_LABEL_CHARACTERS, MAX_PROMPT_CHARACTERS, cut, make_run_id
from subagent_server.run.store import read_worktree
from subagent_server.run.transitions import RunEvent
from subagent_server.settings import Settings
from subagent_server.verbs.access import USER, Caller, new_token, token_hash
from subagent_server.verbs.check_agent import AgentChecker, CheckedAgent, Refusal
from subagent_server.verbs.context import Service, agents_from
from subagent_server.verbs.inputs import (
    Given,
    ParentPlaces,
    check_inputs,
    copy_inputs,
    cwd_of_child,
    cwd_of_user,
    masked_for_disk,
    places_of,
)
from subagent_server.verbs.left_behind import check_not_handed_over, worktree_of
from subagent_server.verbs.live_runs import host_program
from subagent_server.verbs.scripts import WARNING, PlayedScript, calling_script, is_scripted, scripted_service
from subagent_server.verbs.tree_limits import check_may_start, publish_counted
from subagent_server.worktrees.git import GitFailed
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.store_of_run import (
    BRANCHES,
    NoWorktree,
    find_repository,
    repository_of,
    store_of,
)

# -- The place where a new run works: the directory as it is, or a worktree that is made for the run.
#
# Here it is only decided, in a few milliseconds; the worker makes it (`worker/own_places.py`).


@dataclass(frozen=True)
class Workplace:
    """The working directory of a run, its worktree if it gets one, and its agent with all refusals."""

    cwd: Path
    worktree: Worktree | None
    checked: CheckedAgent


def workplace(
    service: Service,
    checked: CheckedAgent,
    cwd: Path,
    run_id: str,
    before: RunMeta | None,
    *,
    within: Path | None,
) -> Workplace:
    """Return where a run works whose caller named `cwd`; `before` is the run that it continues.

    `within` is the directory of the run that starts it, which could have written what is there.
    """
    worktree = None if before is None else before.worktree
    if before is not None and worktree is not None:
        state = read_worktree(service.store.paths.run(before.run_id))
        is_there = state is None or state.phase not in ("removing", "removed")
        worktree = worktree.model_copy(update={"taken_from": before.run_id if is_there else None})
    elif checked.agent.isolation != "worktree" or checked.refusals:
        return Workplace(cwd, None, checked)
    else:
        try:
            worktree = _planned(service, checked, cwd, run_id, within)
        except (NoWorktree, GitFailed) as error:
            refusal = Refusal(error.sentence, "isolation", in_file=False)
            return Workplace(cwd, None, replace(checked, refusals=[*checked.refusals, refusal]))
    return Workplace(Path(worktree.path, worktree.prefix), worktree, checked)


def place_of(meta: RunMeta, request: RunRequest) -> str:
    """Return the directory that a run was started for: the origin of its worktree, if it has one."""
    worktree = meta.worktree
    return request.cwd if worktree is None else str(Path(worktree.origin, worktree.prefix))


def check_can_take_over(service: Service, meta: RunMeta) -> None:
    """Refuse to continue a run whose worktree another run has taken over already.

    Raises:
        CallerError, UnreadableMeta.
    """
    if meta.worktree is not None:
        check_not_handed_over(meta.run_id, read_worktree(service.store.paths.run(meta.run_id)))


def _planned(
    service: Service, checked: CheckedAgent, cwd: Path, run_id: str, within: Path | None
) -> Worktree:
    """Return the worktree that a run is to have. Raises NoWorktree, GitFailed."""
    settings = service.settings
    if settings.state_directory is None:
        raise NoWorktree("isolation: worktree cannot be kept, because there is no home: set HOME.")
    real = Path(os.path.realpath(cwd))
    places = Path(os.path.realpath(settings.state_directory)) / "worktrees"
    names = {
        "path": str(places / run_id),
        "branch": f"{BRANCHES}/{checked.agent.tool_name.removeprefix('run_')}-{run_id.rpartition('-')[2]}",
    }
    if real.is_relative_to(places):
        return _of_run(service, real, places, names)
    found = find_repository(settings.environment, real, within=within)
    if places.is_relative_to(found.top):
        raise NoWorktree(
            f"isolation: worktree cannot be kept, because worktrees are made in {places}, which lies "
            f"in the repository {found.top} itself: set XDG_STATE_HOME to another place."
        )
    common, prefix = str(found.common), found.prefix
    return Worktree(**names, base=found.head, origin=str(found.top), prefix=prefix, repository=common)


def _of_run(service: Service, real: Path, places: Path, names: dict[str, str]) -> Worktree:
    """Return the worktree of a run that begins where another run is: in the worktree of that one."""
    owner, *parts = real.relative_to(places).parts or ("",)
    above, state = worktree_of(service.store, owner)
    if above is None or state is None or above.path != str(places / owner):
        raise NoWorktree(
            f"isolation: worktree cannot be kept in {real}, which is no worktree of a run of this root."
        )
    git = repository_of(above, os.environ)
    if not store_of(above).is_dir():
        raise NoWorktree(
            f"isolation: worktree cannot be kept in {real}: it is of an earlier version, so merge it first."
        )
    head = Reader(git, above, state, os.environ).head().tip
    prefix = "/".join(parts)
    return Worktree(**names, base=head, origin=above.path, prefix=prefix, repository=above.repository)


# -- Reading the hooks of the user: `hooks.json` beside the file of trusted directories, never in a
# repository.
#
# Tested in `tests/cli/test_hooks.py`.


EVENTS = ("onQuestion", "onEnd")
MAX_BYTES = 64 << 10
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMUX"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)
"""The variables of the starter that a hook gets: no key, and nothing that an agent file sets."""


class _Odd(Exception):
    """Why a file of hooks is not used."""


def hooks_for_run(settings: Settings) -> tuple[str, list[str]]:
    """Return what a run is given of the hooks, and a warning if the file of the user cannot be used.

    A run hands on what it was given itself.
    """
    if settings.is_of_a_run:
        return settings.environment.get(VARIABLE, ""), []
    if settings.trust_file is None:
        return "", []
    path = settings.trust_file.with_name("hooks.json")
    try:
        hooks = _commands(_content(path), settings)
    except FileNotFoundError:
        return "", []
    except (OSError, ValueError, _Odd) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return "", [f"No hook is called, because {shorten(str(path), 200)} is not used ({why}): mend it."]
    environment = {name: settings.environment[name] for name in _PASSED_ON if name in settings.environment}
    return (json.dumps({**hooks, "environment": environment}) if hooks else ""), []


def _content(path: Path) -> Any:
    """Return the JSON of a file that only this user can have written. Raises OSError, ValueError, _Odd."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
            raise _Odd("it is not a regular file of yours")
        if stat.S_IMODE(facts.st_mode) & 0o022:
            raise _Odd("others may write it")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _Odd(f"it is larger than {MAX_BYTES >> 10} KiB")
    return json.loads(data)


def _commands(content: Any, settings: Settings) -> dict[str, list[str]]:
    """Return the command of each event, its program by its path. Raises _Odd, ValueError."""
    if not isinstance(content, dict) or not set(content) <= set(EVENTS):
        raise _Odd(f"it must be an object with {' and '.join(EVENTS)}")
    commands: dict[str, list[str]] = {}
    for event, given in content.items():
        words = shlex.split(given) if isinstance(given, str) else given
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise _Odd(f"{event} must be a command: a text, or a list of its words")
        try:
            program = host_program(settings, words[0])
        except NoHostProgram as error:
            raise _Odd(f"the program {shorten(words[0])} of {event} cannot be used: {error.why}") from error
        commands[event] = [str(program), *words[1:]]
    return commands


@dataclass(frozen=True)
class StartOrder:
    """The order to start a run. `inputs` are paths relative to `cwd`, which is relative to the caller's.

    From a run, both have to lie in its own `cwd` (`verbs/inputs.py`).

    `overrides` are keys of the agent's file with other values for this run (`agents/expand.py`).
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
        end = transitions.StopRequested(reason=f"run {made.meta.parent_run_id}, which started it, has ended")
    elif checked.refusals:
        failure = Failure(code="config", message=cut(checked.sentences), hint=checked.remedy)
        end = transitions.RunFailed(failure=failure)
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
        return service.store.update(made.meta.run_id, transitions.RunFailed(failure=failure), now())
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
        cleanup.VARIABLE: made.hooks,
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
