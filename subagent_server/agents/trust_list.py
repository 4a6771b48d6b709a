"""The file `trust.json` of the user: the trusted directories, with the pins at the time of trust.

The file is this user's alone (0600 in a directory of 0700), is opened without following links or waiting, and
is read with a bound. If the file is not as it should be, nothing is trusted, and a sentence says why.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from subagent_server.agents.redact import redact
from subagent_server.agents.yaml_reader import shown, why
from subagent_server.run import durable, locks
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.errors import HostError, StorageFailed
from subagent_server.run.files import PrivateDirectory
from subagent_server.run.records import Moment, Record

# -- Pins: the programs that an agent or a server would start, and the places it would send a key to.
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

_PLAIN = ("runner", "command", "args", "baseUrl", "apiKeyEnv", "programHash")
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
    places = dict(_places_outside(agent, project))
    return _pinned(
        {**dict(_values(narrow.model_dump(mode="json"))), **places},
        {**dict(_values(redact(narrow))), **places},
    )


def pins_of_server(name: str, server: ServerDefinition) -> Pins:
    """Return the pins of a server that a file of a project defines."""
    alone = AgentDefinition(name="", mcp_servers={name: server})
    whole, masked = alone.model_dump(mode="json"), redact(alone)
    return _pinned(
        dict(_server_values(whole["mcpServers"][name])), dict(_server_values(masked["mcpServers"][name]))
    )


def pins_of_reach(reach: Mapping[str, list[str]]) -> Pins:
    """Return the pins of another file of a project: its commands, and places outside of the project."""
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
    if data["sandbox"] == "none":
        yield "sandbox", "none"
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


def _places_outside(agent: AgentDefinition, project: Path) -> Iterator[tuple[str, object]]:
    """Yield the places of an agent that do not lie in the project, links resolved."""
    top = os.path.realpath(project)
    for key, path in agent.read_from.items():
        if not path.is_relative_to(top):
            yield key, str(path)
    if agent.source is not None and not (real := Path(os.path.realpath(agent.source))).is_relative_to(top):
        yield "file", str(real)
    if agent.cwd is not None:
        place = _directory(agent.cwd, project)
        if place is None or not place.is_relative_to(top):
            yield "cwd", agent.cwd if place is None else str(place)


def _directory(text: str, project: Path) -> Path | None:
    """Return the directory of `cwd`; None if only the start of a run can say."""
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
    """The trusted directories by their real paths; `trouble` says why the file could not be used."""

    version: Literal[1] = 1
    projects: dict[str, Project] = Field(default_factory=dict)
    trouble: str | None = Field(default=None, exclude=True)


_OPEN_TO_OTHERS = "its directory is another user's, or others may enter it, which `chmod 700` fixes"


class _NotUsable(Exception):
    """The file of trusted directories cannot be used, for this reason."""


def real_path(directory: Path) -> Path:
    """Return the path that trust in a directory belongs to."""
    return Path(os.path.realpath(directory))


def read_trust_file(path: Path | None) -> TrustFile:
    """Return the user's trust; with an unusable file nothing is trusted, and `trouble` has the reason."""
    if path is None:
        return TrustFile(trouble="Nothing is trusted, because HOME names no directory: set it.")
    try:
        return _parsed(PrivateDirectory(path.parent, make=False).entry(path.name).read(MAX_BYTES))
    except FileNotFoundError:
        return TrustFile()
    except OSError as error:
        reason = _reason(error)
    except _NotUsable as error:
        reason = str(error)
    return TrustFile(trouble=f"{shown(path)} cannot be used ({reason}): fix or remove it, then trust again.")


def trust_project(path: Path | None, project: Path, pins: Mapping[str, Pins], moment: datetime) -> None:
    """Trust a directory, with these pins; pins of agents that are not there now are kept.

    Raises:
        TrustNotKept.
    """
    with _changing(path) as projects:
        before = projects.get(str(project))
        known = before.pins if before else {}
        stored = {**known, **{what: kept(each) for what, each in pins.items() if each}}
        projects[str(project)] = Project(trusted_at=moment, pins=stored)


def forget_project(path: Path | None, project: Path) -> bool:
    """Trust a directory no more; False if it was not trusted.

    Raises:
        TrustNotKept.
    """
    with _changing(path) as projects:
        return projects.pop(str(project), None) is not None


@contextmanager
def _changing(path: Path | None) -> Iterator[dict[str, Project]]:
    """Give the projects to change, and write them afterwards, in one hold of a lock."""
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


def _parsed(data: bytes) -> TrustFile:
    try:
        return TrustFile.model_validate(json.loads(data) | {"trouble": None})
    except (ValueError, TypeError, RecursionError, ValidationError) as error:
        raise _NotUsable("its content has another form than this version writes") from error
