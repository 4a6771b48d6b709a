"""The verbs of `subagent mcp` that connect to a server. It imports the MCP SDK, so it is imported late."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from typing import Any, TypeVar

from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import err, is_terminal, out, out_json
from subagent_server.cli.console.text import escape_lines, one_line
from subagent_server.cli.mcp.config import Chosen
from subagent_server.cli.mcp.text import Which, filter_lines, listed_tool, wire_place
from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.domain.secrets import Masker
from subagent_server.sandbox.server_places import place_of
from subagent_server.toolkit.mcp_servers.connection import ServerConnection, ServerContext
from subagent_server.toolkit.mcp_servers.offer import ToolListing, passes, unknown_names
from subagent_server.toolkit.mcp_servers.reasons import CallTimedOut, ServerTrouble
from subagent_server.toolkit.mcp_servers.results import Attachments, converted

T = TypeVar("T")


def show_info(chosen: Chosen, as_json: bool) -> ExitCode:
    """Print the name, version and instructions of the server."""

    async def ask(connection: ServerConnection) -> dict[str, Any]:
        return {"server": chosen.name, **connection.facts(), "tools": len(connection.tools)}

    starts = chosen.ready.starts
    place = place_of(starts.agent, chosen.definition, None if starts.build else "none can be had here")
    facts = {**_connected(chosen, ask), **wire_place(place)}
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


def show_tools(chosen: Chosen, which: Which, as_json: bool) -> ExitCode:
    """List the tools of the server."""

    async def ask(connection: ServerConnection) -> tuple[list[Any], list[str]]:
        return connection.tools, connection.warnings

    tools, left_out = _connected(chosen, ask)
    rows = [(_wire(tool), passes(chosen.definition, tool.name)) for tool in tools]
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


def show_call(chosen: Chosen, tool: str, arguments: dict[str, Any], as_json: bool) -> ExitCode:
    """Call a tool and print its result: text unchanged, other content by its type."""

    async def ask(connection: ServerConnection) -> Any:
        known = [each.name for each in connection.tools]
        if tool not in known:
            near = get_close_matches(tool, known, n=3)
            names = f"did you mean {' or '.join(near)}?" if near else f"its tools are {', '.join(known)}."
            raise BadArgument(f"Server {chosen.name} has no tool {shorten(tool)}: {names}")
        return (await connection.call(tool, arguments)).result

    result = _connected(chosen, ask)
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


def _wire(tool: Any) -> dict[str, Any]:
    wire: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return wire


def _connected(chosen: Chosen, ask: Callable[[ServerConnection], Awaitable[T]]) -> T:
    """Connect, call `ask` and disconnect. The server's stderr is passed on.

    Raises:
        EarlyExit: it could not be connected (6), or did not answer (124, or 1).
    """
    try:
        return asyncio.run(_asked(chosen, ask))
    except CallTimedOut as late:
        raise EarlyExit(ExitCode.TIMED_OUT, late.what) from late
    except ServerTrouble as trouble:
        raise EarlyExit(ExitCode.FAILED, trouble.what) from trouble


async def _asked(chosen: Chosen, ask: Callable[[ServerConnection], Awaitable[T]]) -> T:
    masker = Masker(chosen.ready.secrets)
    around = ServerContext(chosen.ready.starts.start, pass_on, masker)
    connection = ServerConnection(chosen.name, chosen.definition, around)
    try:
        try:
            await connection.open()
        except ServerTrouble as trouble:
            what = masker.text(f"The MCP server {chosen.name} {trouble.what}.")
            raise EarlyExit(ExitCode.ENVIRONMENT, what) from trouble
        return await ask(connection)
    finally:
        await connection.aclose()


def pass_on(kind: str, **facts: Any) -> None:
    """Print log lines of the server, and warnings."""
    if kind == "server_log":
        err(one_line(f"[{facts['server']}] {facts['text']}"))
    elif kind == "warning":
        err(one_line(f"Warning: {facts['message']}"))
