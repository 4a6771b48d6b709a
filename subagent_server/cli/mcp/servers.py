"""The MCP servers that a verb names: found, checked for trust, started as in a run, and asked."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from subagent_server.catalog.hidden import hidden_values
from subagent_server.catalog.loading import load_file
from subagent_server.catalog.named_servers import read_server_file, with_named_servers
from subagent_server.catalog.problems import AgentFileError, NotAnAgent
from subagent_server.catalog.variables import expand_definition
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import err, is_terminal, out, out_json
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import escape_lines, one_line
from subagent_server.cli.mcp.text import Which, filter_lines, listed_tool, wire_place
from subagent_server.domain.definitions import AgentDefinition, ServerDefinition
from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.domain.secrets import Masker
from subagent_server.sandbox.box import build_box
from subagent_server.sandbox.bubblewrap import find_program
from subagent_server.sandbox.refusal import BoxRefused, PlaceRefused
from subagent_server.sandbox.server_places import Builder, ServerStarts, place_of, rules_without_run
from subagent_server.sandbox.trial import try_box
from subagent_server.service.live_runs import written_places
from subagent_server.service.trusting import TrustCheck
from subagent_server.service.unsupported import asked_by_servers, asked_of_box
from subagent_server.toolkit.mcp_servers.connection import ServerConnection, ServerContext
from subagent_server.toolkit.mcp_servers.offer import ToolListing, passes, unknown_names
from subagent_server.toolkit.mcp_servers.reasons import CallTimedOut, ServerTrouble
from subagent_server.toolkit.mcp_servers.results import Attachments, converted

T = TypeVar("T")


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


class OneServer:
    """One server, ready to be connected.

    Raises:
        As `all_servers`; NotTrusted, BadArgument, MissingVariable.
        EarlyExit: it insists on a box, and there is none here (6).
    """

    def __init__(self, session: Session, name: str, agent: str | None, config: Path | None) -> None:
        whole = _definition(session, agent, config, TrustCheck(session.service))
        server = whole.mcp_servers.get(name)
        if server is None:
            known = ", ".join(whole.mcp_servers) or "none"
            near = get_close_matches(name, whole.mcp_servers, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise BadArgument(f"There is no MCP server {shorten(name)}{hint}: the servers here are {known}.")
        self.name = name
        self.ready = _ready(session, whole, {name: server})
        self.definition = self.ready.servers[name]

    def connected(self, ask: Callable[[ServerConnection], Awaitable[T]]) -> T:
        """Connect, call `ask` and disconnect. The server's stderr is passed on.

        Raises:
            EarlyExit: it could not be connected (6), or did not answer (124, or 1).
        """
        try:
            return asyncio.run(self._asked(ask))
        except CallTimedOut as late:
            raise EarlyExit(ExitCode.TIMED_OUT, late.what) from late
        except ServerTrouble as trouble:
            raise EarlyExit(ExitCode.FAILED, trouble.what) from trouble

    async def _asked(self, ask: Callable[[ServerConnection], Awaitable[T]]) -> T:
        masker = Masker(self.ready.secrets)
        around = ServerContext(self.ready.starts.start, pass_on, masker)
        connection = ServerConnection(self.name, self.definition, around)
        try:
            try:
                await connection.open()
            except ServerTrouble as trouble:
                what = masker.text(f"The MCP server {self.name} {trouble.what}.")
                raise EarlyExit(ExitCode.ENVIRONMENT, what) from trouble
            return await ask(connection)
        finally:
            await connection.aclose()


def agent_with_servers(session: Session, agent: str) -> tuple[AgentDefinition, ReadyServers]:
    """Return an agent with all its servers, ready to be connected. Raises as `OneServer`."""
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


# -- one server


def show_info(chosen: OneServer, as_json: bool) -> ExitCode:
    """Print the name, version and instructions of the server."""

    async def ask(connection: ServerConnection) -> dict[str, Any]:
        return {"server": chosen.name, **connection.facts(), "tools": len(connection.tools)}

    starts = chosen.ready.starts
    place = place_of(starts.agent, chosen.definition, None if starts.build else "none can be had here")
    facts = {**chosen.connected(ask), **wire_place(place)}
    if as_json:
        out_json(facts)
        return ExitCode.OK
    out(f"Connected to server: {one_line(chosen.name)}")
    for label, key in (("Server", "name"), ("Version", "version"), ("Protocol", "protocolVersion")):
        if facts.get(key):
            out(f"  {label}: {one_line(str(facts[key]))}")
    out(f"  Tools: {facts['tools']}")
    if place is not None:
        out(f"  Works: {one_line(str(place))}")
    if facts.get("instructions"):
        out(f"  Instructions:\n{escape_lines(facts['instructions'], '    ')}")
    return ExitCode.OK


def show_tools(chosen: OneServer, which: Which, as_json: bool) -> ExitCode:
    """List the tools of the server."""

    async def ask(connection: ServerConnection) -> tuple[list[Any], list[str]]:
        return connection.tools, connection.warnings

    tools, left_out = chosen.connected(ask)
    rows = [
        (
            tool.model_dump(mode="json", by_alias=True, exclude_none=True),
            passes(chosen.definition, tool.name),
        )
        for tool in tools
    ]
    shown = [(tool, offered) for tool, offered in rows if which == "all" or offered == (which == "offered")]
    warnings = [*left_out, *unknown_names(ToolListing(chosen.name, chosen.definition, tools))]
    if as_json:
        listed = [{**tool, "filtered": not offered} for tool, offered in shown]
        counts = {"total": len(rows), "offered": sum(offered for _, offered in rows)}
        out_json({"server": chosen.name, **counts, "tools": listed, "warnings": warnings})
        return ExitCode.OK
    out(filter_lines(chosen.definition, len(rows), sum(offered for _, offered in rows)))
    for tool, offered in shown:
        out(listed_tool(tool, passes=offered))
    for warning in warnings:
        err(one_line(f"Warning: {warning}"))
    return ExitCode.OK


def show_call(chosen: OneServer, tool: str, arguments: dict[str, Any], as_json: bool) -> ExitCode:
    """Call a tool and print its result: text unchanged, other content by its type."""

    async def ask(connection: ServerConnection) -> Any:
        known = [each.name for each in connection.tools]
        if tool not in known:
            near = get_close_matches(tool, known, n=3)
            names = f"did you mean {' or '.join(near)}?" if near else f"its tools are {', '.join(known)}."
            raise BadArgument(f"Server {chosen.name} has no tool {shorten(tool)}: {names}")
        return (await connection.call(tool, arguments)).result

    result = chosen.connected(ask)
    code = ExitCode.FAILED if result.is_error else ExitCode.OK
    if as_json:
        out_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return code
    said = "\n\n".join(
        block["text"] if block["type"] == "text" else f"[{block['type']}: --json prints it]"
        for block in converted(result, Attachments()).content
    )
    if result.is_error:
        err(escape_lines(said))
    else:
        out(escape_lines(said) if is_terminal(sys.stdout) else said.removesuffix("\n"))
    return code


def pass_on(kind: str, **facts: Any) -> None:
    """Print log lines of the server, and warnings."""
    if kind == "server_log":
        err(one_line(f"[{facts['server']}] {facts['text']}"))
    elif kind == "warning":
        err(one_line(f"Warning: {facts['message']}"))
