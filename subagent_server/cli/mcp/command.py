"""`subagent mcp`: the MCP servers of an agent, tried from the command line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import TEXT, json_option, take_common_options, trust_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.mcp.servers import (
    OneServer,
    all_servers,
    show_call,
    show_info,
    show_tools,
    why_no_box,
)
from subagent_server.cli.mcp.text import Which, listed_server, wire_place, wire_server
from subagent_server.domain.errors import BadArgument
from subagent_server.sandbox.server_places import place_of

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def mcp() -> None:
    """Try the MCP servers of an agent.

    Each verb reads them from the agent of --agent, or from the file of --config: an agent file, a CPE
    configuration, or any JSON or YAML file with `mcpServers`.
    """


_agent_option = click.option("--agent", type=TEXT, metavar="NAME", help="The agent whose servers are meant.")
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
def list_servers(session: Session, agent: str | None, config: Path | None, as_json: bool) -> ExitCode:
    """List the servers as they are configured, without connecting."""
    owner, no_box = all_servers(session, agent, config), why_no_box(session)
    servers = owner.mcp_servers
    places = {name: place_of(owner, server, no_box) for name, server in servers.items()}
    if as_json:
        wire = [{**wire_server(name, each), **wire_place(places[name])} for name, each in servers.items()]
        out_json({"servers": wire})
    elif servers:
        out("Configured MCP Servers:")
        for name, server in servers.items():
            out(listed_server(name, server, places[name]))
    else:
        err("No MCP servers are configured: write them under `mcpServers` of the file.")
    return ExitCode.OK


@_verb("info")
@click.argument("server", type=TEXT)
def info(session: Session, server: str, agent: str | None, config: Path | None, as_json: bool) -> ExitCode:
    """Connect to SERVER and print its name, version and instructions."""
    return show_info(OneServer(session, server, agent, config), as_json)


@_verb("list-tools")
@click.argument("server", type=TEXT)
@click.option("--show-all", is_flag=True, help="Also those that enabledTools or disabledTools filter out.")
@click.option("--show-filtered", is_flag=True, help="Only those that are filtered out.")
def list_tools(
    session: Session,
    server: str,
    agent: str | None,
    config: Path | None,
    show_all: bool,
    show_filtered: bool,
    as_json: bool,
) -> ExitCode:
    """List the tools of SERVER, with their schemas."""
    if show_all and show_filtered:
        raise click.UsageError("--show-all and --show-filtered exclude each other: give one of them.")
    which: Which = "all" if show_all else "filtered" if show_filtered else "offered"
    return show_tools(OneServer(session, server, agent, config), which, as_json)


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
    as_json: bool,
) -> ExitCode:
    """Call TOOL of SERVER with ARGS, a JSON object (`-` reads it from stdin), and print its result.

    Exits with 1 if the tool reports an error, with 124 if it does not answer in time.
    """
    left = list(words)
    server, tool, arguments = (
        given if given is not None else _next(left) for given in (server, tool, arguments)
    )
    if server is None or tool is None or left:
        raise click.UsageError("say which server and which tool, then the arguments as one JSON object.")
    parsed = _object(arguments)
    return show_call(OneServer(session, server, agent, config), tool, parsed, as_json)


def _next(words: list[str]) -> str | None:
    return words.pop(0) if words else None


def _object(text: str | None) -> dict[str, Any]:
    """Return the arguments of a call. Raises BadArgument."""
    if text == "-":
        text = sys.stdin.read()
    if text is None or not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(
            f'ARGS is no JSON ({error}): give an object, such as \'{{"path": "x"}}\'.'
        ) from error
    if not isinstance(value, dict):
        raise BadArgument('ARGS is JSON and no object: give an object, such as \'{"path": "x"}\'.')
    return value
