"""The MCP servers that a `subagent mcp` verb names, and the environment they are started with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import click

from subagent_server.catalog.hidden import hidden_values
from subagent_server.catalog.loading import load_file
from subagent_server.catalog.named_servers import read_server_file, with_named_servers
from subagent_server.catalog.problems import AgentFileError, NotAnAgent
from subagent_server.catalog.variables import expand_definition
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import err
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import one_line
from subagent_server.domain.definitions import AgentDefinition, ServerDefinition
from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.sandbox.box import build_box
from subagent_server.sandbox.bubblewrap import find_program
from subagent_server.sandbox.refusal import BoxRefused, PlaceRefused
from subagent_server.sandbox.server_places import Builder, ServerStarts, place_of, rules_without_run
from subagent_server.sandbox.trial import try_box
from subagent_server.service.live_runs import written_places
from subagent_server.service.trusting import TrustCheck
from subagent_server.service.unsupported import asked_by_servers, asked_of_box


@dataclass(frozen=True)
class ReadyServers:
    """The servers of an agent with their variables expanded, and how each is started, as in a run.

    `secrets` are masked on a terminal.
    """

    starts: ServerStarts
    secrets: frozenset[str]

    @property
    def servers(self) -> Mapping[str, ServerDefinition]:
        """The servers by name."""
        return self.starts.agent.mcp_servers


@dataclass(frozen=True)
class Chosen:
    """A server, ready to connect."""

    name: str
    definition: ServerDefinition
    ready: ReadyServers


def all_servers(session: Session, agent: str | None, config: Path | None) -> AgentDefinition:
    """Return the owner of the servers, with those as the file writes them.

    Raises:
        click.UsageError: neither or both are given.
        UnknownAgent, AgentFileError, UnknownServer: they cannot be read.
    """
    return _definition(session, agent, config, trust_check=None)


def why_no_box(session: Session) -> str | None:
    """Return why servers surely have no box here, as a part of a sentence."""
    try:
        find_program(session.settings.environment, session.settings.cwd)
    except BoxRefused as refusal:
        return refusal.reason
    return None


def one_server(session: Session, name: str, agent: str | None, config: Path | None) -> Chosen:
    """Return one server, ready to be connected.

    Raises:
        As `all_servers`; NotTrusted, BadArgument, MissingVariable.
        EarlyExit: it insists on a box, and there is none here (6).
    """
    whole = _definition(session, agent, config, TrustCheck(session.service))
    server = whole.mcp_servers.get(name)
    if server is None:
        known = ", ".join(whole.mcp_servers) or "none"
        near = get_close_matches(name, whole.mcp_servers, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadArgument(f"There is no MCP server {shorten(name)}{hint}: the servers here are {known}.")
    ready = _ready(session, whole, {name: server})
    return Chosen(name, ready.servers[name], ready)


def agent_with_servers(session: Session, agent: str) -> tuple[AgentDefinition, ReadyServers]:
    """Return an agent with all its servers, ready to be connected. Raises as `one_server`."""
    whole = _definition(session, agent, None, TrustCheck(session.service))
    return whole, _ready(session, whole, whole.mcp_servers)


def _ready(session: Session, whole: AgentDefinition, servers: Mapping[str, ServerDefinition]) -> ReadyServers:
    settings = session.settings
    of_its_runner = {"base_url": None, "command": None, "args": list[str]()}  # their variables may be unset
    alone = whole.model_copy(update={**of_its_runner, "mcp_servers": dict(servers)})
    agent = expand_definition(alone, settings.environment)
    cwd = Path(os.path.realpath(settings.cwd / Path(agent.cwd).expanduser() if agent.cwd else settings.cwd))
    environment = {**settings.environment, **agent.env}
    starts = ServerStarts(
        agent, environment, cwd, cwd, settings.state_directory, written=written_places(settings)
    )
    places = (place_of(agent, server) for server in agent.mcp_servers.values())
    if any(place is not None and place.works == "box" for place in places):
        starts = replace(starts, build=_builder(agent, environment, cwd, settings.runs_root))
    return ReadyServers(starts, frozenset(hidden_values(agent)))


def _builder(agent: AgentDefinition, environment: Mapping[str, str], cwd: Path, runs: Path) -> Builder | None:
    """Return what builds the boxes of servers; None, with a warning, if no box can be had and none is needed.

    Raises:
        EarlyExit: the file insists on a box (6).
    """
    try:
        rules = rules_without_run(agent, environment, cwd, runs)
        try_box(build_box(rules))
    except PlaceRefused as refusal:
        raise EarlyExit(ExitCode.ENVIRONMENT, f"{refusal.reason}.") from refusal
    except BoxRefused as refusal:
        for key in (*asked_of_box(agent).values(), *asked_by_servers(agent)):
            what = f"{key} cannot be kept: {refusal.reason}."
            raise EarlyExit(ExitCode.ENVIRONMENT, what) from refusal
        err(one_line(f"Warning: MCP servers work without a box here: {refusal.reason}."))
        return None
    return lambda changed: build_box(changed(rules))


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
