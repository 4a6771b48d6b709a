"""The trust check: decides whether an agent, and the MCP servers that it names, may be used.

They may if a person named them, or if they are in the user's own configuration. They also may if their
directory is trusted and their programs are unchanged since then (SPEC section 13).

Tested in `tests/cli/test_trust.py` and `tests/end_to_end/test_trust.py`.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from subagent_server import extensions
from subagent_server.agents.discover import discover
from subagent_server.agents.mcp_json import (
    PROJECT_FILE,
    FoundServer,
    ServerFiles,
    find_named_servers,
    usable_servers,
    with_servers,
)
from subagent_server.agents.trust_list import (
    Pins,
    TrustFile,
    differences,
    forget_project,
    pins_of_agent,
    pins_of_reach,
    pins_of_server,
    read_trust_file,
    real_path,
    trust_project,
)
from subagent_server.agents.yaml_reader import shown
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, CallerError, StorageFailed, SubagentError, shorten
from subagent_server.run.paths import RootDirectory
from subagent_server.run.processes import now
from subagent_server.run.states import is_run_id
from subagent_server.run.store import RunStore
from subagent_server.settings import DEFAULT_AGENT_DIRECTORIES, Settings
from subagent_server.verbs.served_agents import served_below
from subagent_server.verbs.service import Service

_USERS_AGENTS = Path(".claude", "agents")
_MOST_SHOWN = 40_000
"""Characters that a question may have: it is shown whole, or not asked."""
_MAX_KEYS = 5
_MAX_NAME = 150


class NotTrusted(CallerError):
    """An agent or a server comes with an untrusted directory, or has changed since the trust was given."""

    code = "not_trusted"

    def __init__(self, what: str, project: Path, changed: list[str], trouble: str | None) -> None:
        command = f"subagent trust {shlex.quote(shown(project))}"
        what = what if what.isprintable() and len(what) <= _MAX_NAME else shorten(what)
        if changed:
            keys = ", ".join(shorten(key) for key in changed[:_MAX_KEYS])
            more = f" and {len(changed) - _MAX_KEYS} more" if len(changed) > _MAX_KEYS else ""
            why = f"what {what} starts or sends has changed since you trusted it ({keys}{more})"
            todo = f"`{command}` shows the difference and trusts it"
        else:
            why = f"{what} comes with {shown(project)}, which is not trusted"
            todo = f"look at what is there, then `{command}` trusts it"
        self.remark = f"{why}: {todo} (--trust does so for one command).{f' {trouble}' if trouble else ''}"
        """The same for lists, where nothing was to be started."""
        self.project = project
        super().__init__(f"Nothing was started, because {self.remark}")


@dataclass(frozen=True)
class Coverage:
    """The present extent of trust in a directory: its agents by name, and its pins by their subject."""

    project: Path
    agents: list[str]
    pins: dict[str, Pins]
    changes: list[str]
    """What would be trusted that is not yet, a line each."""
    is_trusted: bool
    """Whether the directory is trusted, with or without these changes."""
    too_much: str | None = None
    """Why nobody can be asked, if the changes are more than a person can be shown."""

    @property
    def is_new(self) -> bool:
        """Whether to trust it would change anything."""
        return not self.is_trusted or bool(self.changes)


class TrustCheck:
    """Says whether the agents of a service may be used. It reads each file once."""

    def __init__(self, service: Service) -> None:
        self._settings = service.settings
        self._registry = service.registry
        self._server_files = ServerFiles()

    @cached_property
    def trusted(self) -> TrustFile:
        """The trusted directories and their pins, as the user's file has them."""
        return read_trust_file(self._settings.trust_file)

    def doubt(self, agent: AgentDefinition) -> NotTrusted | None:
        """Return why an agent may not be used, or None. Its named servers are judged at the start."""
        project = self._settings.project
        if project is None or self._registry.is_named(agent) or self._needs_none(agent):
            return None
        real = real_path(project)
        return self._compared(f"agent {agent.name}", real, pins_of_agent(agent, real))

    def doubt_of_served(self, agent: AgentDefinition, above: AgentDefinition) -> NotTrusted | None:
        """Return why an agent may not be used that the file of `above` names as an MCP server, or None.

        A file that a person named speaks for the files that it names; in a run nobody has named any.
        """
        project = self._settings.project
        is_named = self._registry.is_named(above) and not self._settings.is_of_a_run
        if project is None or is_named or self._needs_none(above):
            return None
        real = real_path(project)
        return self._compared(_subject_of_served(agent, real), real, pins_of_agent(agent, real))

    def _needs_none(self, agent: AgentDefinition) -> bool:
        """Whether an agent needs no trust: all is trusted, it has no file, or it is one of the user's own."""
        home = self._settings.home
        if self._settings.trusts_all or agent.source is None:
            return True
        return home is not None and real_path(agent.source).is_relative_to(real_path(home / _USERS_AGENTS))

    def check(self, agent: AgentDefinition) -> None:
        """Refuse an agent that may not be used.

        Raises:
            NotTrusted.
        """
        if (doubt := self.doubt(agent)) is not None:
            raise doubt

    def equipped(self, agent: AgentDefinition) -> AgentDefinition:
        """Return an agent with its named servers, each of which may be used.

        Raises:
            NotTrusted.
            UnknownServer, AgentFileError: a server cannot be found or understood.
        """
        settings = self._settings
        environment = {**settings.environment, "HOME": str(settings.home or "")}
        found = find_named_servers(agent, settings.cwd, environment, self._server_files)
        for server in found:
            self._check_server(server)
        return with_servers(agent, found)

    def check_reach(self, what: str, project: Path, reach: Mapping[str, list[str]]) -> None:
        """Refuse a file of a project that runs commands, or reaches out of the project, without trust.

        Raises:
            NotTrusted.
        """
        if not reach or self._settings.trusts_all:
            return
        if (doubt := self._compared(what, project, pins_of_reach(reach))) is not None:
            raise doubt

    def _check_server(self, server: FoundServer) -> None:
        settings = self._settings
        is_named = settings.project is None and any(
            map(server.path.is_relative_to, settings.agent_directories)
        )
        if server.is_users or settings.trusts_all or is_named:
            return
        real = real_path(server.path.parent)
        pins = pins_of_server(server.name, server.definition)
        doubt = self._compared(f"server {server.name} of {PROJECT_FILE}", real, pins)
        if doubt is not None:
            raise doubt

    def _compared(self, what: str, project: Path, pins: Pins) -> NotTrusted | None:
        trouble = self.trusted.trouble or _brought_along(self._settings, project)
        known = None if trouble else self.trusted.projects.get(str(project))
        if known is None:
            return NotTrusted(what, project, [], trouble)
        before = known.pins.get(what, {})
        changed = sorted(
            key for key, pin in pins.items() if (b := before.get(key)) is None or b.hash != pin.hash
        )
        changed += sorted(before.keys() - pins.keys()) if pins else []
        return NotTrusted(what, project, changed, None) if changed else None


def coverage(settings: Settings, directory: Path, *, leave_out: str | None = None) -> Coverage:
    """Return the extent of trust in a directory, and the new part; `leave_out` names a server.

    Raises:
        BadArgument: the path is not a directory, or the trust file would lie inside.
    """
    project = real_path(settings.cwd / directory)
    if not project.is_dir():
        raise BadArgument(f"{shorten(str(directory))} is not a directory: name one that exists.")
    trusted = read_trust_file(settings.trust_file)
    if (trouble := trusted.trouble or _brought_along(settings, project)) is not None:
        raise BadArgument(trouble)
    agents = discover(
        [place for name in DEFAULT_AGENT_DIRECTORIES if (place := project / name).is_dir()]
    ).agents
    servers = usable_servers(project / PROJECT_FILE)
    pins: dict[str, Pins] = {
        **{f"agent {name}": pins_of_agent(agent, project) for name, agent in agents.items()},
        **{
            _subject_of_served(agent, project): pins_of_agent(agent, project)
            for agent in served_below(agents, settings.environment.get("PATH"), project)
        },
        **{
            f"server {name} of {PROJECT_FILE}": pins_of_server(name, server)
            for name, server in servers.items()
            if name != leave_out
        },
        **{
            what: pins_of_reach(reach)
            for where in extensions.reaches()
            for what, reach in extensions.imported(where)(project)
        },
    }
    known = trusted.projects.get(str(project))
    before = known.pins if known else {}
    changes = [
        line for what, each in pins.items() if each for line in differences(what, before.get(what, {}), each)
    ]
    files = {f"agent {name}": agent.source for name, agent in agents.items() if agent.source is not None}
    too_much = None
    if sum(map(len, [*agents, *changes])) > _MOST_SHOWN:
        too_much = _too_much(project, pins, files)
    return Coverage(project, list(agents), pins, changes, known is not None, too_much)


def _subject_of_served(agent: AgentDefinition, project: Path) -> str:
    source = agent.source
    inside = source is not None and source.is_relative_to(project)
    return f"agent {agent.name} of {source.relative_to(project) if source and inside else source}"


def _too_much(project: Path, pins: dict[str, Pins], files: dict[str, Path]) -> str:
    """Return the sentence that names the largest value of all."""
    sizes = [(len(pin.shown), key, what) for what, each in pins.items() for key, pin in each.items()]
    size, key, what = max(sizes, default=(0, "description", "its agents"))
    place = shown(files.get(what, project / PROJECT_FILE)) if not what.startswith("evaluation") else what
    return (
        f"There is more to trust in {shown(project)} than a question can show whole; the largest is "
        f"{shorten(key)} of {shorten(what)}, with {size:,} characters: look at {place}, then "
        f"`subagent trust --yes {shlex.quote(shown(project))}` trusts it."
    )


def trust(settings: Settings, covered: Coverage) -> None:
    """Trust a directory with the contents shown.

    Raises:
        BadArgument: a run asks.
        TrustNotKept: the file cannot be written.
    """
    check_may_trust(settings)
    trust_project(settings.trust_file, covered.project, covered.pins, now())


def forget(settings: Settings, directory: Path) -> bool:
    """Trust a directory no more; False if it was not trusted. Raises as `trust` does."""
    check_may_trust(settings)
    return forget_project(settings.trust_file, real_path(settings.cwd / directory))


def check_may_trust(settings: Settings) -> None:
    """Refuse a run: trust is the word of a person.

    Raises:
        BadArgument.
    """
    if settings.is_of_a_run:
        raise BadArgument("A run cannot trust a directory: ask your parent with ask_parent.")


def _brought_along(settings: Settings, project: Path) -> str | None:
    """Return why the user's word is not believed, if a project may have brought the word along."""
    # By XDG_CONFIG_HOME=$PWD/... a project would trust itself; a home that is a repository is the user's own.
    if settings.trust_file is None or not real_path(settings.trust_file).is_relative_to(project):
        return None
    if settings.home is not None and real_path(settings.home).is_relative_to(project):
        return None
    return (
        f"{shown(settings.trust_file)} lies inside the directory that it would trust, so it is not believed: "
        "let XDG_CONFIG_HOME name a place outside."
    )


# -- Take over a runs root that has no mark: list its content first, then mark it as the user's.
#
# A root of an earlier version, a copy, or a root brought by a CI job becomes the user's in this way: only
# the user can decide this (SPEC section 13).


_OURS = frozenset(
    {".changes", ".unseen", ".slots", ".index", ".removed", ".backoff", ".gitignore", ".root", "README.md"}
)


@dataclass(frozen=True)
class Inventory:
    """The contents of a runs root: how many runs of each status, and the names that belong to no run.

    `unreadable` are directories named like runs, but without a readable state.
    """

    path: Path
    is_ours: bool
    statuses: Mapping[str, int]
    unreadable: int
    others: tuple[str, ...]

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return sum(self.statuses.values()) + self.unreadable


def take_inventory(path: Path) -> Inventory:
    """Return what is in the runs root at `path`. Nothing is changed.

    Raises:
        BadArgument: there is no directory.
    """
    store = RunStore(path)
    directory = store.paths.open()
    try:
        names = sorted(directory.names())
    except OSError as error:
        raise BadArgument(
            f"{path} cannot be looked into ({error.strerror or error}): name the directory with the runs."
        ) from error
    statuses: Counter[str] = Counter()
    unreadable = 0
    for name in filter(is_run_id, names):
        try:
            statuses[store.read(name).status.value] += 1
        except SubagentError:
            unreadable += 1
    others = tuple(name for name in names if not is_run_id(name) and name not in _OURS)
    return Inventory(path, directory.forbidden is None, dict(statuses), unreadable, others)


def adopt(path: Path) -> None:
    """Mark the runs root at `path` as ours, and close it to others.

    Raises:
        UnsafeRoot: the root belongs to another user, or other users can still write to the root.
        StorageFailed: the mark cannot be written.
    """
    try:
        RootDirectory(path).adopt()
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
    RunStore(path).make_root()
