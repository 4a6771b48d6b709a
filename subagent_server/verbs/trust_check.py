"""Trust: which agents, and MCP servers that they name, may be used.

They may if a person named them, or if they are in the user's own configuration. They also may if their
directory is trusted and their programs are unchanged since then (SPEC section 13).

Tested in `tests/agents/test_trust.py`, `tests/cli/test_trust.py` and `tests/end_to_end/test_trust.py`.
"""

import errno
import hashlib
import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from subagent_server import extensions
from subagent_server.agents.discover import discover
from subagent_server.agents.named_servers import (
    PROJECT_FILE,
    FoundServer,
    ServerFiles,
    find_named_servers,
    served_below,
    usable_servers,
    with_servers,
)
from subagent_server.agents.variables import redact
from subagent_server.agents.yaml_reader import shown, why
from subagent_server.run import durable, locks
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.errors import (
    BadArgument,
    CallerError,
    HostError,
    StorageFailed,
    SubagentError,
    shorten,
    storing,
)
from subagent_server.run.executed_files import found_above
from subagent_server.run.files import PrivateDirectory
from subagent_server.run.paths import RootDirectory
from subagent_server.run.processes import now
from subagent_server.run.records import Moment, Record
from subagent_server.run.states import is_run_id
from subagent_server.run.store import RunStore
from subagent_server.settings import DEFAULT_AGENT_DIRECTORIES, Settings
from subagent_server.verbs.service import Service

# -- Pins: the programs that an agent or a server would start, and the addresses it would send a key to.
#
# The prompt and the tools of a trusted agent may change at any time. A changed pin asks the user once. So
# each pin is kept as a hash, with a text to show in which secrets are masked.


MAX_KEPT = 2000
"""Characters of a value that are kept to be shown when it has changed: a question shows all of it."""


class Pin(Record):
    """One value as it was when the user trusted it."""

    hash: str
    shown: str


Pins = dict[str, Pin]
"""The values of one agent or server, by their keys."""

# Of `sandbox` every value: without `bwrap`, an external program has no box, and a shell may have none.
_PLAIN = ("runner", "command", "args", "baseUrl", "apiKeyEnv", "programHash", "sandbox")
_PINNED = (
    *("name", "runner", "command", "args", "env", "base_url", "api_key_env", "code_mode", "mcp_servers"),
    *("sandbox", "sandbox_read", "sandbox_write", "hooks", "placement", "program_hash"),
)
"""The fields that pins are taken from: masking all of an agent, its prompt too, takes much longer."""
_USUAL = AgentDefinition(name="").model_dump(mode="json")
_SERVER_PLAIN = ("type", "command", "args", "url", "sandbox", "network", "sandboxRead", "sandboxWrite")
_USUAL_SERVER = ServerDefinition().model_dump(mode="json")


def pins_of_agent(agent: AgentDefinition, project: Path) -> Pins:
    """Return the pins of an agent that comes with the directory `project`."""
    narrow = AgentDefinition(**{field: getattr(agent, field) for field in _PINNED})
    paths = dict(_paths_outside(agent, project))
    return _pinned(
        {**dict(_values(narrow.model_dump(mode="json"))), **paths},
        {**dict(_values(redact(narrow))), **paths},
    )


def pins_of_server(name: str, server: ServerDefinition) -> Pins:
    """Return the pins of a server that a file of a project defines."""
    alone = AgentDefinition(name="", mcp_servers={name: server})
    whole, masked = alone.model_dump(mode="json"), redact(alone)
    return _pinned(
        dict(_server_values(whole["mcpServers"][name])), dict(_server_values(masked["mcpServers"][name]))
    )


def pins_of_reach(reach: Mapping[str, list[str]]) -> Pins:
    """Return the pins of another file of a project: its commands, and paths outside of the project."""
    return _pinned(reach, reach)


def kept(pins: Pins) -> Pins:
    """Return pins as they are stored, with long texts cut."""
    shorter = {
        key: f"{pin.shown[:MAX_KEPT]}… ({len(pin.shown) - MAX_KEPT:,} more characters)"
        for key, pin in pins.items()
        if len(pin.shown) > MAX_KEPT
    }
    return {key: pin.model_copy(update={"shown": shorter.get(key, pin.shown)}) for key, pin in pins.items()}


def differences(what: str, before: Mapping[str, Pin], after: Mapping[str, Pin]) -> list[str]:
    """Return the changes from `before` to `after`, a line each; `what` names the owner of the values."""
    lines: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is not None and new is not None and old.hash == new.hash:
            continue
        if old is not None and new is not None and old.shown == new.shown:
            lines.append(f"~ {what}: {key}: {new.shown} (what is hidden here has changed)")
            continue
        lines += [] if old is None else [f"- {what}: {key}: {old.shown}"]
        lines += [] if new is None else [f"+ {what}: {key}: {new.shown}"]
    return lines


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield from ((key, data[key]) for key in _PLAIN if data[key] != _USUAL[key])
    yield from ((f"env.{name}", value) for name, value in data["env"].items())
    yield from ((key, data[key]) for key in ("sandboxRead", "sandboxWrite") if data[key])
    placement = data["placement"] or {}
    yield from ((f"placement.{key}", value) for key, value in placement.items() if value is not None)
    yield from ((f"hooks.{event}", commands) for event, commands in data["hooks"].items())
    if data["codeMode"] and data["codeMode"]["python"]:
        yield "codeMode.python", data["codeMode"]["python"]
    for name, server in data["mcpServers"].items():
        yield from ((f"mcpServers.{name}.{key}", value) for key, value in _server_values(server))


def _server_values(server: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield from ((key, server[key]) for key in _SERVER_PLAIN if server[key] != _USUAL_SERVER[key])
    for group in ("env", "headers"):
        yield from ((f"{group}.{name}", value) for name, value in server[group].items())


def _paths_outside(agent: AgentDefinition, project: Path) -> Iterator[tuple[str, object]]:
    """Yield the paths of an agent that do not lie in the project, links resolved."""
    top = os.path.realpath(project)
    for key, path in agent.read_from.items():
        if not path.is_relative_to(top):
            yield key, str(path)
    if agent.source is not None and not (real := Path(os.path.realpath(agent.source))).is_relative_to(top):
        yield "file", str(real)
    if agent.cwd is not None:
        directory = _directory(agent.cwd, project)
        if directory is None or not directory.is_relative_to(top):
            yield "cwd", agent.cwd if directory is None else str(directory)


def _directory(text: str, project: Path) -> Path | None:
    """Return the directory of `cwd`; None if only the start of a run knows."""
    if "${" in text:
        return None
    try:
        return Path(os.path.realpath(project / Path(text).expanduser()))
    except (RuntimeError, ValueError):  # the home of nobody, a NUL
        return None


def _pinned(values: Mapping[str, object], masked: Mapping[str, object]) -> Pins:
    pins: Pins = {}
    for key, value in values.items():
        text = masked[key] if isinstance(masked[key], str) else json.dumps(masked[key], ensure_ascii=False)
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        pins[key] = Pin(hash=digest, shown=str(text))
    return pins


# -- The file `trust.json` of the user: the trusted directories, with the pins at the time of trust.
#
# The file is this user's alone (0600 in a directory of 0700), is opened without following links or waiting,
# and is read with a bound. If the file is not as it should be, nothing is trusted, and a sentence is why.


MAX_BYTES = 8 << 20
_LOCK = "trust.lock"


class TrustNotKept(HostError):
    """The file of trusted directories cannot be changed."""

    code = "trust_not_kept"


class Project(Record):
    """A trusted directory: the moment, and the pins of its agents and servers by their names."""

    trusted_at: Moment
    pins: dict[str, Pins] = Field(default_factory=dict)


class TrustFile(Record):
    """The trusted directories by their real paths; `trouble` is why the file could not be used."""

    version: Literal[1] = 1
    projects: dict[str, Project] = Field(default_factory=dict)
    trouble: str | None = Field(default=None, exclude=True)


_OPEN_TO_OTHERS = "its directory is another user's, or others may enter it, which `chmod 700` fixes"


def real_path(directory: Path) -> Path:
    """Return the path that trust in a directory belongs to."""
    return Path(os.path.realpath(directory))


def read_trust_file(path: Path | None) -> TrustFile:
    """Return the user's trust; with an unusable file nothing is trusted, and `trouble` has the reason."""
    if path is None:
        return TrustFile(trouble="Nothing is trusted, because HOME names no directory: set it.")
    try:
        data = json.loads(PrivateDirectory(path.parent, make=False).entry(path.name).read(MAX_BYTES))
        return TrustFile.model_validate(data | {"trouble": None})
    except FileNotFoundError:
        return TrustFile()
    except OSError as error:
        reason = _reason(error)
    except (ValueError, TypeError, RecursionError):
        reason = "its content has another form than this version writes"
    return TrustFile(trouble=f"{shown(path)} cannot be used ({reason}): fix or remove it, then trust again.")


@contextmanager
def _changing(path: Path | None) -> Iterator[dict[str, Project]]:
    """Yield the projects to change, and write them afterwards, in one hold of a lock."""
    if path is None:
        raise TrustNotKept("Trust cannot be kept, because HOME names no directory: set it.")
    directory = PrivateDirectory(path.parent)
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locks.exclusive(directory.entry(_LOCK)):
            trusted = read_trust_file(path)
            if trusted.trouble is not None:
                raise TrustNotKept(trusted.trouble)
            projects = dict(trusted.projects)
            yield projects
            data = TrustFile(projects=projects).to_json()
            if len(data) > MAX_BYTES:
                most = f"{MAX_BYTES >> 20} MiB"
                raise TrustNotKept(f"{shown(path)} would be larger than {most}: trust smaller directories.")
            durable.write_durably(directory.entry(path.name), data)
    except OSError as error:
        raise _not_kept(path, error) from error
    except StorageFailed as error:
        cause = error.__cause__
        raise (_not_kept(path, cause) if isinstance(cause, OSError) else error) from error


def _not_kept(path: Path, error: OSError) -> TrustNotKept:
    return TrustNotKept(f"{shown(path)} cannot be written ({_reason(error)}): fix that, then try again.")


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a link"
    return why(error) if error.errno else _OPEN_TO_OTHERS


# -- The check: decides whether an agent, and the MCP servers that it names, may be used.


_USERS_AGENTS = Path(".claude", "agents")
_MOST_SHOWN = 40_000
"""Characters that a question may have: it is shown whole, or not asked."""
_MAX_KEYS = 5
_MAX_NAME = 150


class NotTrusted(CallerError):
    """An agent or a server comes with an untrusted directory, or has changed since it was trusted."""

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
        self.why = why
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
    """Decides whether the agents of a service may be used. It reads each file once."""

    def __init__(self, service: Service) -> None:
        self._settings = service.settings
        self._registry = service.registry
        self._server_files = ServerFiles()

    @cached_property
    def trusted(self) -> TrustFile:
        """The trusted directories and their pins, as the user's file has them."""
        return read_trust_file(self._settings.trust_file)

    def doubt(self, agent: AgentDefinition, above: AgentDefinition | None = None) -> NotTrusted | None:
        """Return why an agent may not be used, or None. Its named servers are judged at the start.

        The file of `above` names it as an MCP server. A file that a person named speaks for the files that it
        names; in a run nobody has named any.
        """
        project, home, judged = self._settings.project, self._settings.home, above or agent
        is_named = self._registry.is_named(judged) and (above is None or not self._settings.is_of_a_run)
        if project is None or is_named or self._settings.trusts_all or judged.source is None:
            return None
        if home is not None and real_path(judged.source).is_relative_to(real_path(home / _USERS_AGENTS)):
            return None
        real = real_path(project)
        what = f"agent {agent.name}" if above is None else _subject_of_served(agent, real)
        return self._compared(what, real, pins_of_agent(agent, real))

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
        if reach and not self._settings.trusts_all:
            self._check_compared(what, project, pins_of_reach(reach))

    def check_followed(self, names: Sequence[str], cwd: Path) -> None:
        """Refuse a program that follows these names in a directory, or above it, without trust in that one.

        Raises:
            NotTrusted.
        """
        if self._settings.trusts_all:
            return
        for directory, name in found_above(names, cwd, self._settings.home):
            self._check_compared(f"{name}, which its program follows,", directory, {})

    def _check_server(self, server: FoundServer) -> None:
        settings = self._settings
        is_named = settings.project is None and any(
            map(server.path.is_relative_to, settings.agent_directories)
        )
        if server.is_users or settings.trusts_all or is_named:
            return
        real = real_path(server.path.parent)
        pins = pins_of_server(server.name, server.definition)
        self._check_compared(f"server {server.name} of {PROJECT_FILE}", real, pins)

    def _check_compared(self, what: str, project: Path, pins: Pins) -> None:
        if (doubt := self._compared(what, project, pins)) is not None:
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
        changed += sorted(before.keys() - pins.keys())
        return NotTrusted(what, project, changed, None) if changed else None


def coverage(settings: Settings, directory: Path, *, leave_out: str | None = None) -> Coverage:
    """Return the extent of trust in a directory, and the new part; `leave_out` names a server.

    Raises:
        BadArgument: the path is not a directory, has no name for JSON, or the trust file would lie inside.
    """
    project = real_path(settings.cwd / directory)
    if not project.is_dir():
        raise BadArgument(f"{shorten(str(directory))} is not a directory: name one that exists.")
    if shown(project) != str(project):  # the file of trust is JSON, and would name another one
        raise BadArgument(f"{shown(project)} cannot be trusted, because its name is not UTF-8: rename it.")
    trusted = read_trust_file(settings.trust_file)
    if (trouble := trusted.trouble or _brought_along(settings, project)) is not None:
        raise BadArgument(trouble)
    agents = discover(
        [path for name in DEFAULT_AGENT_DIRECTORIES if (path := project / name).is_dir()]
    ).agents
    servers = usable_servers(project / PROJECT_FILE)
    pins = {f"agent {name}": pins_of_agent(agent, project) for name, agent in agents.items()}
    pins |= {
        _subject_of_served(agent, project): pins_of_agent(agent, project)
        for agent in served_below(agents, settings.environment, project)
    }
    pins |= {
        f"server {name} of {PROJECT_FILE}": pins_of_server(name, server)
        for name, server in servers.items()
        if name != leave_out
    }
    for where in extensions.reaches():
        pins |= {what: pins_of_reach(reach) for what, reach in extensions.imported(where)(project)}
    known = trusted.projects.get(str(project))
    before = known.pins if known else {}
    changes = [line for what, each in pins.items() for line in differences(what, before.get(what, {}), each)]
    too_much = None
    if sum(map(len, [*agents, *changes])) > _MOST_SHOWN:
        too_much = (
            f"There is more to trust in {shown(project)} than a question can show whole: look at its agents, "
            f"evaluations and {PROJECT_FILE}, then "
            f"`subagent trust --yes {shlex.quote(shown(project))}` trusts it."
        )
    return Coverage(project, list(agents), pins, changes, known is not None, too_much)


def _subject_of_served(agent: AgentDefinition, project: Path) -> str:
    source = agent.source
    inside = source is not None and source.is_relative_to(project)
    return f"agent {agent.name} of {source.relative_to(project) if source and inside else source}"


def trust(settings: Settings, covered: Coverage) -> None:
    """Trust a directory with the contents shown; pins of agents that are not there now are kept.

    Raises:
        BadArgument: a run asks.
        TrustNotKept: the file cannot be written.
    """
    check_may_trust(settings)
    with _changing(settings.trust_file) as projects:
        before = projects.get(str(covered.project))
        known = before.pins if before else {}
        new = {what: kept(each) for what, each in covered.pins.items() if each or what in known}
        projects[str(covered.project)] = Project(trusted_at=now(), pins={**known, **new})


def forget(settings: Settings, project: Path) -> bool:
    """Trust a directory, by its real path, no more; False if it was not trusted. Raises as `trust` does."""
    check_may_trust(settings)
    with _changing(settings.trust_file) as projects:
        return projects.pop(str(project), None) is not None


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
        "let XDG_CONFIG_HOME name a directory outside."
    )


# -- Take over a runs root that has no mark: list its content first, then mark it as the user's.
#
# A root of an earlier version, a copy, or a root brought by a CI job becomes the user's in this way: only
# the user can decide this (SPEC section 13).


_OURS = frozenset(
    {".changes", ".unseen", ".slots", ".removed", ".backoff", ".gitignore", ".root", "README.md"}
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
    with storing(path):
        RootDirectory(path).adopt()
    RunStore(path).make_root()
