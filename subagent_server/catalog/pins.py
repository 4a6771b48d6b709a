"""Pins: the programs that an agent or a server would start, and the places it would send a key to.

The prompt and the tools of a trusted agent may change at any time. A changed pin asks the user once. So each
pin is kept as a hash, with a text to show in which secrets are masked.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from subagent_server.catalog.redact import redact
from subagent_server.domain.definitions import AgentDefinition, ServerDefinition
from subagent_server.domain.records import Record

MAX_KEPT = 2000
"""Characters of a value that are kept to be shown when it has changed: a question shows all of it."""


class Pin(Record):
    """One value as it was when the user trusted it."""

    hash: str
    shown: str


Pins = dict[str, Pin]
"""The values of one agent or server, by their keys."""

_PLAIN = ("runner", "command", "args", "baseUrl", "apiKeyEnv")
_PINNED = (
    *("name", "runner", "command", "args", "env", "base_url", "api_key_env", "code_mode", "mcp_servers"),
    *("sandbox", "sandbox_read", "sandbox_write", "hooks"),
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
    return {key: pin.model_copy(update={"shown": _cut(pin.shown)}) for key, pin in pins.items()}


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
    return {key: Pin(hash=_hash(value), shown=_shown(masked[key])) for key, value in values.items()}


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_KEPT else f"{text[:MAX_KEPT]}… ({len(text) - MAX_KEPT:,} more characters)"
