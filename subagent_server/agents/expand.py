"""`${VAR}` in agent files: left as it is until a run starts, then taken from the run's environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subagent_server.agents.agent_file import Origin, read_definition
from subagent_server.agents.yaml_reader import Block, Notes, Plain, is_null
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.errors import BadArgument, CallerError

REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
"""`${VAR}`, `${VAR:-text where it is unset}`, and `$${` for a literal `${`."""
_MOST_MISSING = 10


class MissingVariable(CallerError):
    """A definition refers to a variable that is not set."""

    code = "missing_variable"

    def __init__(self, variable: str, where: str = "") -> None:
        place = f" for {where}" if where else ""
        super().__init__(
            f"The environment variable {variable} is not set{place}: set it where the server starts."
        )
        self.variable = variable
        self.where = where


def expand(value: str, environment: Mapping[str, str], where: str = "") -> str:
    """Return `value` with every `${VAR}` replaced from `environment`; `where` goes into the error.

    Anything else with a dollar sign (`$HOME`, `${x%.py}`) stays: it is for a shell to read.

    Raises:
        MissingVariable: a variable is not set and has no default.
    """

    def replacement(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            return "${"
        found = environment.get(name)
        if found is None or (default is not None and not found):
            found = default
        if found is None:
            raise MissingVariable(name, where)
        return found

    return REFERENCE.sub(replacement, value)


def expand_definition(definition: AgentDefinition, environment: Mapping[str, str]) -> AgentDefinition:
    """Return `definition` ready for a run: variables replaced in `env`, programs, URLs and servers.

    The agent's own `env` is read against `environment`; everything else sees both. Prompts, descriptions and
    schemas are literal.

    Raises:
        MissingVariable: a variable is not set; the error names it and the field.
    """
    env = _expand_all(definition.env, environment, "env")
    both = {**environment, **env}
    return definition.model_copy(
        update={
            "env": env,
            "cwd": _expand_some(definition.cwd, both, "cwd"),
            "base_url": _expand_some(definition.base_url, both, "baseUrl"),
            "command": _expand_some(definition.command, both, "command"),
            "args": [expand(arg, both, "args") for arg in definition.args],
            "mcp_servers": {
                name: expand_server(server, both, f"mcpServers.{name}")
                for name, server in definition.mcp_servers.items()
            },
        }
    )


@dataclass(frozen=True)
class Expanded:
    """A definition with its variables replaced as far as they are set; the others stay as they are."""

    definition: AgentDefinition
    missing: list[MissingVariable]


def expand_as_far_as_set(definition: AgentDefinition, environment: Mapping[str, str]) -> Expanded:
    """Return the definition expanded as far as possible, and each variable that is not set.

    After ten missing variables the rest is not looked at, and the definition is returned as it was.
    """
    known, missing = dict(environment), list[MissingVariable]()
    while len(missing) < _MOST_MISSING:
        try:
            return Expanded(expand_definition(definition, known), missing)
        except MissingVariable as error:
            missing.append(error)
            # The variable stands for itself from now on, so that the next round comes to the next one.
            known[error.variable] = f"${{{error.variable}}}"
    return Expanded(definition, missing)


def expand_server(server: ServerDefinition, environment: Mapping[str, str], where: str) -> ServerDefinition:
    """Return `server` with variables replaced in its command, arguments, environment, URL and headers.

    Raises:
        MissingVariable: a variable is not set.
    """
    return server.model_copy(
        update={
            "command": _expand_some(server.command, environment, f"{where}.command"),
            "args": [expand(arg, environment, f"{where}.args") for arg in server.args],
            "env": _expand_all(server.env, environment, f"{where}.env"),
            "url": _expand_some(server.url, environment, f"{where}.url"),
            "headers": _expand_all(server.headers, environment, f"{where}.headers"),
        }
    )


def _expand_some(value: str | None, environment: Mapping[str, str], where: str) -> str | None:
    return None if value is None else expand(value, environment, where)


def _expand_all(values: Mapping[str, str], environment: Mapping[str, str], where: str) -> dict[str, str]:
    return {key: expand(value, environment, f"{where}.{key}") for key, value in values.items()}


# -- Keys of an agent file that a caller gives for one run, checked as the file's own are.


OVERRIDES = ("model", "effort", "maxTurns", "timeoutSeconds", "budgetUsd")
"""The keys that a caller may give: none of them starts a program or sends a key elsewhere."""


def overridden(agent: AgentDefinition, given: Mapping[str, str]) -> tuple[AgentDefinition, list[str]]:
    """Return the agent with the values of `given` in place of those of its file, and warnings about them.

    Raises:
        BadArgument: a key may not be given, or its value is wrong.
    """
    if not given:
        return agent, []
    if unknown := sorted(set(given) - set(OVERRIDES)):
        raise BadArgument(f"{unknown[0]} cannot be given for one run: only {', '.join(OVERRIDES)} can.")
    if empty := [key for key, value in given.items() if is_null(Plain(value.strip()))]:
        raise BadArgument(f"{empty[0]} is empty: give a value, or leave it out.")
    found, notes = _read(agent.runner, given)
    if faults := notes.reasons("fault"):
        raise BadArgument(f"{'; '.join(faults)}: give another value.")
    changes: dict[str, object] = {name: getattr(found, name) for name in ("model", "effort") if name in given}
    if "model" in given:
        changes["other_models"] = []
    limits = {name: getattr(found.limits, name) for name in found.limits.model_fields_set}
    changes["limits"] = agent.limits.model_copy(update=limits)
    warnings = [f"{warning}." for warning in notes.reasons("warning") if warning.startswith("model ")]
    return agent.model_copy(update=changes), warnings


def fault_of(key: str, value: str) -> str | None:
    """Return what is wrong with the value of a key, as words that go after its name, or None."""
    if is_null(Plain(value.strip())):
        return "is empty"
    _, notes = _read("messages", {key: value})
    faults = notes.reasons("fault")
    return faults[0].partition(" ")[2] if faults else None


def _read(runner: str, given: Mapping[str, str]) -> tuple[AgentDefinition, Notes]:
    block, notes = Block(), Notes()
    for line, (key, value) in enumerate({"runner": runner, **given}.items(), start=1):
        block.put(key, Plain(value), line)
    return read_definition(block, Origin(Path(), "override"), notes), notes
