"""The MCP servers that a `subagent mcp` verb names, and the environment they are started with."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click

from subagent_server.catalog.hidden import hidden_values
from subagent_server.catalog.loading import load_file
from subagent_server.catalog.named_servers import read_server_file, with_named_servers
from subagent_server.catalog.problems import AgentFileError, NotAnAgent
from subagent_server.catalog.variables import expand_definition
from subagent_server.cli.console.session import Session
from subagent_server.domain.definitions import AgentDefinition, ServerDefinition
from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.service.trusting import TrustCheck


@dataclass(frozen=True)
class Chosen:
    """A server with its variables expanded, ready to connect. `secrets` are masked on a terminal."""

    name: str
    definition: ServerDefinition
    environment: Mapping[str, str]
    cwd: Path
    secrets: frozenset[str]


@dataclass(frozen=True)
class ReadyServers:
    """Servers with their variables expanded, by name. `secrets` are masked on a terminal."""

    servers: Mapping[str, ServerDefinition]
    environment: Mapping[str, str]
    cwd: Path
    secrets: frozenset[str]


def all_servers(session: Session, agent: str | None, config: Path | None) -> dict[str, ServerDefinition]:
    """Return the servers of an agent or a file, as the file writes them.

    Raises:
        click.UsageError: neither or both are given.
        UnknownAgent, AgentFileError, UnknownServer: they cannot be read.
    """
    return _definition(session, agent, config, trust_check=None).mcp_servers


def one_server(session: Session, name: str, agent: str | None, config: Path | None) -> Chosen:
    """Return one server, ready to be connected.

    Raises:
        As `all_servers`; NotTrusted, BadArgument, MissingVariable.
    """
    whole = _definition(session, agent, config, TrustCheck(session.service))
    server = whole.mcp_servers.get(name)
    if server is None:
        known = ", ".join(whole.mcp_servers) or "none"
        near = get_close_matches(name, whole.mcp_servers, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadArgument(f"There is no MCP server {shorten(name)}{hint}: the servers here are {known}.")
    ready = _ready(session, whole, {name: server})
    return Chosen(name, ready.servers[name], ready.environment, ready.cwd, ready.secrets)


def agent_with_servers(session: Session, agent: str) -> tuple[AgentDefinition, ReadyServers]:
    """Return an agent with all its servers, ready to be connected. Raises as `one_server`."""
    whole = _definition(session, agent, None, TrustCheck(session.service))
    return whole, _ready(session, whole, whole.mcp_servers)


def _ready(session: Session, whole: AgentDefinition, servers: Mapping[str, ServerDefinition]) -> ReadyServers:
    environment = session.settings.environment
    alone = AgentDefinition(name=whole.name, env=whole.env, cwd=whole.cwd, mcp_servers=dict(servers))
    ready = expand_definition(alone, environment)
    cwd = session.settings.cwd / Path(ready.cwd).expanduser() if ready.cwd else session.settings.cwd
    secrets = frozenset(hidden_values(ready))
    return ReadyServers(ready.mcp_servers, {**environment, **ready.env}, cwd, secrets)


def _definition(
    session: Session, agent: str | None, config: Path | None, trust_check: TrustCheck | None
) -> AgentDefinition:
    """Return the definition with the servers; a `trust_check` is for servers that will be connected."""
    if (agent is None) == (config is None):
        raise click.UsageError("say whose servers: --agent NAME or --config FILE.")
    if agent is not None:
        definition = session.service.registry.get(agent)
        if trust_check is not None:
            trust_check.check(definition)
        return _with_named(session, definition, trust_check)
    path = session.settings.cwd / (config or "")
    if path.suffix == ".json":
        return AgentDefinition(name=path.stem, mcp_servers=read_server_file(path))
    try:
        return _with_named(session, load_file(path).definition, trust_check)
    except NotAnAgent:
        return AgentDefinition(name=path.stem, mcp_servers=read_server_file(path))


def _with_named(
    session: Session, definition: AgentDefinition, trust_check: TrustCheck | None
) -> AgentDefinition:
    """Return a definition with the servers that it names added, or raise the fault of its servers."""
    fault = next((fault for fault in definition.faults if "mcpServers" in fault), None)
    if fault is not None:
        raise AgentFileError(definition.source or Path(definition.name), fault)
    if trust_check is not None:
        return trust_check.equipped(definition)
    return with_named_servers(definition, session.settings.cwd, session.settings.environment)
