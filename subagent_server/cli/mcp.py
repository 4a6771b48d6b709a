"""`subagent mcp`: the MCP servers of an agent, tried from the command line."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from subagent_server.agents.formats import load_file
from subagent_server.agents.named_servers import read_server_file, serves_config, with_named_servers
from subagent_server.agents.variables import expand_definition, hidden_values, redact
from subagent_server.agents.yaml_reader import AgentFileError, NotAnAgent
from subagent_server.cli.console.app import (
    Session,
    VerbGroup,
    complete_agents,
    completing,
    json_option,
    pass_session,
    take_common_options,
    trust_option,
)
from subagent_server.cli.console.option_types import TEXT, json_object
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    argument_or_stdin,
    err,
    escape,
    escape_lines,
    is_terminal,
    one_line,
    out,
    out_json,
)
from subagent_server.run.agent_definition import AgentDefinition, SandboxLimits, ServerDefinition
from subagent_server.run.errors import BadArgument, RunRefused, choices, shorten
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.box import Box, Rules, build_box, hold
from subagent_server.sandbox.git_files import configurations_as_shown, git_settings
from subagent_server.sandbox.readable import BoxRefused, PathRefused, tried_twice
from subagent_server.sandbox.server_locations import (
    Builder,
    ServerLocation,
    ServerStarts,
    asked_by_servers,
    asked_of_box,
    location_of,
)
from subagent_server.sandbox.verify import try_here
from subagent_server.settings import Settings
from subagent_server.toolbox.mcp.mcp_tools import converted, passes, unknown_names
from subagent_server.toolbox.mcp.server_connection import (
    CallTimedOut,
    ServerConnection,
    ServerContext,
    ServerTrouble,
)
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.verbs.check_agent import no_program_for_boxes
from subagent_server.verbs.inputs import cwd_of_agent
from subagent_server.verbs.live_runs import written_directories
from subagent_server.verbs.trust_check import TrustCheck
from subagent_server.worker.protected_paths import protected_paths

# -- The output of `subagent mcp`: servers, their tools and the results of calls as text.


_PATH_KEYS = ("sandboxRead", "sandboxWrite")
_IN_THE_RUN = ServerLocation("runner", "in the run itself", "it is an agent of this installation")


def wire_location(location: ServerLocation | None) -> dict[str, str]:
    """Return where a server works as JSON data, nothing for one that is not started here."""
    return {} if location is None else {"works": location.works, "why": str(location)}


def listed_server(name: str, server: ServerDefinition, location: ServerLocation | None) -> str:
    """Return the lines of a server in `list-servers`; values that look like secrets are masked."""
    shown = wire_server(name, server)
    lines = [f"- {one_line(name)} (Type: {server.type}, Timeout: {server.timeout:g}s)"]
    if server.type == "stdio":
        lines.append(f"  Command: {one_line(shlex.join([shown['command'] or '', *shown['args']]))}")
    else:
        lines.append(f"  URL: {one_line(shown['url'] or '')}")
    if location is not None:
        lines.append(f"  Works: {one_line(str(location))}")
    for key, label in (("enabledTools", "Enabled tools"), ("disabledTools", "Disabled tools")):
        if shown.get(key):
            lines.append(f"  {label}: {one_line(', '.join(shown[key]))}")
    return "\n".join(lines)


def wire_server(name: str, server: ServerDefinition) -> dict[str, Any]:
    """Return a server as JSON data, masked, without keys that are not set."""
    masked = redact(AgentDefinition(name="x", mcp_servers={name: server}))["mcpServers"][name]
    kept = {
        key: value
        for key, value in masked.items()
        if value not in (None, {}, False) and not (key in _PATH_KEYS and not value)
    }
    if server.type != "stdio":
        kept.pop("args", None)
    return {"name": name, **kept}


def filter_lines(server: ServerDefinition, total: int, kept: int) -> str:
    """Return the mode of the filter, and how many tools pass it."""
    mode = "none"
    if server.enabled_tools is not None:
        mode = f"whitelist (enabledTools: {', '.join(server.enabled_tools)})"
    elif server.disabled_tools is not None:
        mode = f"blacklist (disabledTools: {', '.join(server.disabled_tools)})"
    return f"Filter: {escape(mode)}\nTools: {total} in all, {kept} offered, {total - kept} filtered out"


def listed_tool(tool: dict[str, Any], *, passes: bool) -> str:
    """Return the lines of a tool: name, description, schemas."""
    mark = "" if passes else " (filtered out)"
    lines = ["", f"{one_line(tool['name'])}{mark}"]
    if tool.get("description"):
        lines.append(escape_lines(tool["description"], "  "))
    lines += ["  Input schema:", _schema(tool.get("inputSchema"))]
    if tool.get("outputSchema"):
        lines += ["  Output schema:", _schema(tool["outputSchema"])]
    return "\n".join(lines)


def _schema(schema: Any) -> str:
    return escape_lines(json.dumps(schema, indent=2, ensure_ascii=False), "    ")


# -- The MCP servers that a verb names: found, checked for trust, started as in a run, and asked.


T = TypeVar("T")


class OneServer:
    """One server, ready to be connected.

    Raises:
        click.UsageError: neither or both of `agent` and `config` are set.
        UnknownAgent, AgentFileError, UnknownServer: the servers cannot be read.
        NotTrusted, MissingVariable.
        BadArgument: there is no such server, or it is an agent (`is_agent`).
        EarlyExit: it insists on a box, and there is none here (6).
    """

    def __init__(self, session: Session, name: str, agent: str | None, config: Path | None) -> None:
        whole = _definition(session, agent, config, TrustCheck(session.service))
        server = whole.mcp_servers.get(name)
        if server is None:
            known = choices("servers", name, list(whole.mcp_servers))
            raise BadArgument(f"There is no MCP server {shorten(name)}: {known}.")
        if is_agent(session, whole, server):
            raise BadArgument(not_started(whole, name))
        self.name = name
        self.starts = _starts(session, whole, {name: server})
        self.definition = self.starts.agent.mcp_servers[name]

    def connected(self, ask: Callable[[ServerConnection], Awaitable[T]]) -> T:
        """Connect, call `ask` and disconnect. The server's stderr is passed on.

        Raises:
            EarlyExit: it could not be connected (6), or did not answer (124, or 1).
        """
        try:
            return asyncio.run(self._asked(ask))
        except CallTimedOut as late:
            raise EarlyExit(ExitCode.TIMED_OUT, str(late)) from late
        except ServerTrouble as trouble:
            raise EarlyExit(ExitCode.FAILED, str(trouble)) from trouble

    async def _asked(self, ask: Callable[[ServerConnection], Awaitable[T]]) -> T:
        around = around_servers(self.starts)
        connection = ServerConnection(self.name, self.definition, around)
        try:
            try:
                await connection.open()
            except ServerTrouble as trouble:
                what = around.masker.text(f"The MCP server {self.name} {trouble}.")
                raise EarlyExit(ExitCode.ENVIRONMENT, what) from trouble
            return await ask(connection)
        finally:
            await connection.aclose()


def around_servers(starts: ServerStarts) -> ServerContext:
    """Return the surroundings of servers that a command connects to: their secrets are masked."""
    return ServerContext(starts.start, pass_on, Masker(hidden_values(starts.agent)))


def agent_with_servers(session: Session, agent: str) -> tuple[AgentDefinition, ServerStarts]:
    """Return an agent, and how its servers that are no agents are started. Raises as `OneServer`."""
    whole = _definition(session, agent, None, TrustCheck(session.service))
    servers = {name: each for name, each in whole.mcp_servers.items() if not is_agent(session, whole, each)}
    return whole, _starts(session, whole, servers)


def is_agent(session: Session, owner: AgentDefinition, server: ServerDefinition) -> bool:
    """Whether a run takes the server of an agent file as an agent (`agents/named_servers.py`).

    In a file of another program the same entry is a server like others.
    """
    path = {**session.settings.environment, **owner.env}.get("PATH")
    return owner.source is not None and serves_config(server, server.env.get("PATH", path))


def not_started(owner: AgentDefinition, name: str) -> str:
    """Return the sentence on a server that is an agent, and that nobody connects to."""
    return (
        f"No process is started for the MCP server {shorten(name)}, because it is an agent of this "
        f"installation: `subagent prompt {owner.name} --servers` shows its tool."
    )


def _starts(
    session: Session, whole: AgentDefinition, servers: Mapping[str, ServerDefinition]
) -> ServerStarts:
    """Return how these servers of an agent are started, as in a run, with their variables expanded."""
    settings = session.settings
    of_its_runner = {"base_url": None, "command": None, "args": list[str]()}  # their variables may be unset
    alone = whole.model_copy(update={**of_its_runner, "mcp_servers": dict(servers)})
    agent = expand_definition(alone, settings.environment)
    cwd = cwd_of_agent(session.service, agent) or Path(os.path.realpath(settings.cwd))
    environment = {**settings.environment, **agent.env}
    starts = ServerStarts(
        agent, environment, cwd, cwd, settings.state_directory, written=written_directories(settings)
    )
    where = (location_of(agent, server) for server in agent.mcp_servers.values())
    if any(location is not None and location.works == "box" for location in where):
        starts = replace(starts, build=_builder(agent, environment, cwd, settings))
    return starts


def _builder(
    agent: AgentDefinition, environment: Mapping[str, str], cwd: Path, settings: Settings
) -> Builder | None:
    """Return the builder of servers' boxes; None, with a warning, if no box can be had and none is needed.

    As in a run, what the host executes or reads as its own is read-only in them, where it is.

    Raises:
        EarlyExit: the file insists on a box, or the directory is not one for runs (6).
    """
    agents = os.pathsep.join(map(str, settings.agent_directories))
    root = Path(os.path.realpath(settings.runs_root))
    copies = Directory(
        Path(click.get_current_context().with_resource(TemporaryDirectory(prefix="subagent-git-")))
    )
    try:
        protected = protected_paths(agent, {**environment, "SUBAGENT_AGENTS": agents}, root, cwd)
        rules = Rules(
            cwd=cwd,
            environment=environment,
            network=agent.network,
            limits=agent.sandbox_limits or SandboxLimits(),
            over=[
                *protected.mounts_in([cwd]),
                *hold(cwd, git_settings(environment, cwd).executed, agent.lifted).mounts,
            ],
            hidden=[path for path in protected.roots if path.is_dir()],
            shown_as=configurations_as_shown(cwd, copies),
            written=protected.written,
        )
        tried_twice(lambda: try_here(lambda: build_box(rules), rules))
    except RunRefused as refusal:
        raise EarlyExit(ExitCode.ENVIRONMENT, f"{refusal} {refusal.hint}") from refusal
    except PathRefused as refusal:
        raise EarlyExit(ExitCode.ENVIRONMENT, f"{refusal.reason}.") from refusal
    except BoxRefused as refusal:
        if refusal.passes:
            raise EarlyExit(ExitCode.ENVIRONMENT, f"There can be no box now: {refusal.reason}.") from refusal
        for key in (*asked_of_box(agent).values(), *asked_by_servers(agent)):
            what = f"{key} cannot be kept: {refusal.reason}."
            raise EarlyExit(ExitCode.ENVIRONMENT, what) from refusal
        err(one_line(f"Warning: MCP servers work without a box here: {refusal.reason}."))
        return None

    def build(changed: Callable[[Rules], Rules]) -> Box:
        of_server = changed(rules)
        return build_box(replace(of_server, over=[*of_server.over, *protected.mounts_in(of_server.write)]))

    return build


def _definition(
    session: Session, agent: str | None, config: Path | None, trust_check: TrustCheck | None
) -> AgentDefinition:
    """Return the definition with the servers; a `trust_check` is for servers that will be connected."""
    if (agent is None) == (config is None):
        raise click.UsageError("say whose servers: --agent NAME or --config FILE.")
    if trust_check is not None:
        session.check_is_user()  # they have the keys of their entries
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
    keys = ("mcpServers", "sandbox", "network")  # the servers work in boxes as the file sets
    fault = next((each for each in definition.faults if any(key in each for key in keys)), None)
    if fault is not None:
        raise AgentFileError(definition.source or Path(definition.name), fault)
    if trust_check is not None:
        return trust_check.equipped(definition)
    return with_named_servers(definition, session.settings.cwd, session.settings.environment)


def pass_on(kind: str, **facts: Any) -> None:
    """Print log lines of the server, and warnings."""
    if kind == "server_log":
        err(one_line(f"[{facts['server']}] {facts['text']}"))
    elif kind == "warning":
        err(one_line(f"Warning: {facts['message']}"))


F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
def mcp() -> None:
    """Try the MCP servers of an agent.

    Each verb reads them from the agent of --agent, or from the file of --config: an agent file, a CPE
    configuration, or any JSON or YAML file with `mcpServers`.
    """


_agent_option = click.option(
    "--agent",
    type=TEXT,
    metavar="NAME",
    shell_complete=complete_agents,
    help="The agent whose servers are meant.",
)
_config_option = click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="The file whose servers are meant."
)


def _verb(name: str) -> Callable[[F], click.Command]:
    """Make a verb of the group, with the options that all of its verbs take."""

    def made(function: F) -> click.Command:
        verb: Callable[..., Any] = pass_session(function)
        for option in (_config_option, _agent_option, json_option, trust_option):
            verb = option(verb)
        command: click.Command = mcp.command(name)(verb)
        take_common_options(command)
        return command

    return made


@_verb("list-servers")
def list_servers(session: Session, agent: str | None, config: Path | None) -> None:
    """List the servers as they are configured, without connecting."""
    owner, settings = _definition(session, agent, config, trust_check=None), session.settings
    servers, no_box = owner.mcp_servers, no_program_for_boxes(settings.environment, settings.cwd)
    where = {
        name: _IN_THE_RUN if is_agent(session, owner, server) else location_of(owner, server, no_box)
        for name, server in servers.items()
    }
    if session.as_json:
        wire = [{**wire_server(name, each), **wire_location(where[name])} for name, each in servers.items()]
        out_json({"servers": wire})
    elif servers:
        out("Configured MCP Servers:")
        for name, server in servers.items():
            out(listed_server(name, server, where[name]))
    else:
        err("No MCP servers are configured: write them under `mcpServers` of the file.")


def _complete_servers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the servers of the agent or file that the line names so far."""

    def find(session: Session, begun: str) -> Iterator[CompletionItem]:
        owner = _definition(session, ctx.params.get("agent"), ctx.params.get("config"), trust_check=None)
        yield from (CompletionItem(name) for name in owner.mcp_servers if name.startswith(begun))

    return completing(find)(ctx, param, incomplete)


@_verb("info")
@click.argument("server", type=TEXT, shell_complete=_complete_servers)
def info(session: Session, server: str, agent: str | None, config: Path | None) -> None:
    """Connect to SERVER and print its name, version and instructions."""
    chosen = OneServer(session, server, agent, config)

    async def ask(connection: ServerConnection) -> dict[str, Any]:
        return {"server": chosen.name, **connection.facts(), "tools": len(connection.tools)}

    starts = chosen.starts
    location = location_of(starts.agent, chosen.definition, None if starts.build else "none can be had here")
    facts = {**chosen.connected(ask), **wire_location(location)}
    if session.as_json:
        out_json(facts)
        return
    out(f"Connected to server: {one_line(chosen.name)}")
    for label, key in (("Server", "name"), ("Version", "version"), ("Protocol", "protocolVersion")):
        if facts.get(key):
            out(f"  {label}: {one_line(str(facts[key]))}")
    out(f"  Tools: {facts['tools']}")
    if location is not None:
        out(f"  Works: {one_line(str(location))}")
    if facts.get("instructions"):
        out(f"  Instructions:\n{escape_lines(facts['instructions'], '    ')}")


@_verb("list-tools")
@click.argument("server", type=TEXT, shell_complete=_complete_servers)
@click.option("--show-all", is_flag=True, help="Also those that enabledTools or disabledTools filter out.")
@click.option("--show-filtered", is_flag=True, help="Only those that are filtered out.")
def list_tools(
    session: Session,
    server: str,
    agent: str | None,
    config: Path | None,
    show_all: bool,
    show_filtered: bool,
) -> None:
    """List the tools of SERVER, with their schemas."""
    if show_all and show_filtered:
        raise click.UsageError("--show-all and --show-filtered exclude each other: give one of them.")
    chosen = OneServer(session, server, agent, config)

    async def ask(connection: ServerConnection) -> tuple[list[Any], list[str]]:
        return connection.tools, [*connection.warnings, *unknown_names(connection)]

    tools, warnings = chosen.connected(ask)
    rows = [
        (
            tool.model_dump(mode="json", by_alias=True, exclude_none=True),
            passes(chosen.definition, tool.name),
        )
        for tool in tools
    ]
    shown = [(tool, kept) for tool, kept in rows if show_all or kept != show_filtered]
    if session.as_json:
        listed = [{**tool, "filtered": not kept} for tool, kept in shown]
        counts = {"total": len(rows), "offered": sum(kept for _, kept in rows)}
        out_json({"server": chosen.name, **counts, "tools": listed, "warnings": warnings})
        return
    out(filter_lines(chosen.definition, len(rows), sum(kept for _, kept in rows)))
    for tool, kept in shown:
        out(listed_tool(tool, passes=kept))
    for warning in warnings:
        err(one_line(f"Warning: {warning}"))


@_verb("call-tool")
@click.argument("words", nargs=-1, type=TEXT, metavar="SERVER TOOL [ARGS]")
@click.option("--server", type=TEXT, metavar="NAME", help="The server, instead of SERVER.")
@click.option("--tool", type=TEXT, metavar="NAME", help="The tool, instead of TOOL.")
@click.option("--args", "arguments", type=TEXT, metavar="JSON", help="The arguments, instead of ARGS.")
def call_tool(
    session: Session,
    words: tuple[str, ...],
    server: str | None,
    tool: str | None,
    arguments: str | None,
    agent: str | None,
    config: Path | None,
) -> ExitCode:
    """Call TOOL of SERVER with ARGS, a JSON object (`-` reads it from stdin), and print its result.

    Exits with 1 if the tool reports an error, with 124 if it does not answer in time.
    """
    left = list(words)
    server, tool, arguments = (
        each if each is not None else _next(left) for each in (server, tool, arguments)
    )
    if server is None or tool is None or left:
        raise click.UsageError("say which server and which tool, then the arguments as one JSON object.")
    text = argument_or_stdin(arguments or "", "argument")
    parsed = json_object(text, "ARGS") if text.strip() else {}
    chosen = OneServer(session, server, agent, config)

    async def ask(connection: ServerConnection) -> Any:
        known = [each.name for each in connection.tools]
        if tool not in known:
            names = choices("tools", tool, known)
            raise BadArgument(f"Server {chosen.name} has no tool {shorten(tool)}: {names}.")
        return (await connection.call(tool, parsed)).result

    result = chosen.connected(ask)
    code = ExitCode.FAILED if result.is_error else ExitCode.OK
    if session.as_json:
        out_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return code
    message = "\n\n".join(
        block["text"] if block["type"] == "text" else f"[{block['type']}: --json prints it]"
        for block in converted(result, KeptOutputs()).content
    )
    if result.is_error:
        err(escape_lines(message))
    else:
        out(escape_lines(message) if is_terminal(sys.stdout) else message.removesuffix("\n"))
    return code


def _next(words: list[str]) -> str | None:
    return words.pop(0) if words else None
