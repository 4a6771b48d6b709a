"""`subagent tools`: print the functions of an agent in code mode as its model reads them."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import click

from subagent_server.cli.console.app import Session, complete_agents, json_option, pass_session, trust_option
from subagent_server.cli.console.option_types import TEXT
from subagent_server.cli.console.terminal import EarlyExit, ExitCode, err, one_line, out, out_json
from subagent_server.cli.mcp import agent_with_servers, around_servers, not_started, pass_on
from subagent_server.extensions.code_mode.mcp_functions import McpFunctions
from subagent_server.extensions.code_mode.module_stub import module_stub
from subagent_server.extensions.code_mode.stubs import ToolFunction
from subagent_server.run.agent_definition import AgentDefinition, CodeMode
from subagent_server.run.errors import RunRefused, choices, shorten
from subagent_server.sandbox.server_locations import ServerStarts
from subagent_server.toolbox.mcp.mcp_tools import ToolChoice, connect
from subagent_server.toolbox.outputs import KeptOutputs


@click.command()
@click.argument("agent", type=TEXT, shell_complete=complete_agents)
@click.argument("name", type=TEXT, required=False)
@click.option("--whole", is_flag=True, help="Every function, even if the model is shown an index alone.")
@click.option(
    "--stub", is_flag=True, help="The module `subagent` of its programs as a stub file, for a type checker."
)
@json_option
@trust_option
@pass_session
def tools(session: Session, agent: str, name: str | None, whole: bool, stub: bool) -> ExitCode:
    """Print the functions that programs of an agent can call.

    It connects to the MCP servers of AGENT and prints exactly what its model reads of their tools in code
    mode. With NAME, a function or a server, it prints what a program reads by help(NAME).
    """
    if name is not None and whole:
        raise click.UsageError("NAME is one function or server and --whole is all: give one of them.")
    if stub:
        registry = session.service.registry
        named = set(registry.get(agent).agents)
        out(module_stub([registry.get(each.name) for each in registry.agents() if each.name in named]))
        return ExitCode.OK
    definition, starts = agent_with_servers(session, agent)
    connected = starts.agent.mcp_servers
    agents = [not_started(definition, each) for each in definition.mcp_servers if each not in connected]
    functions = asyncio.run(_functions(definition, starts))
    catalogue, code_mode = functions.catalogue, definition.code_mode or CodeMode()
    if name is not None and name not in {*catalogue.names, *catalogue.flat}:
        known = choices("functions and servers", name, catalogue.names)
        raise EarlyExit(ExitCode.USAGE, f"{definition.name} has no function {shorten(name)}: {known}.")
    most = sys.maxsize if whole else code_mode.stub_characters
    text = catalogue.text(most) if name is None else catalogue.help(name).rstrip()
    if session.as_json:
        out_json(
            {
                "agent": definition.name,
                "codeMode": code_mode.enabled,
                "text": text,
                "functions": list(map(_wire, catalogue.functions)),
                "ordinaryTools": [tool.name for tool in functions.ordinary],
                "warnings": [*functions.warnings, *agents],
            }
        )
        return ExitCode.OK
    if text:
        out(text)
    for remark in (*agents, *_remarks(definition, code_mode, functions)):
        err(one_line(remark))
    return ExitCode.OK


async def _functions(agent: AgentDefinition, starts: ServerStarts) -> McpFunctions:
    """Connect, take the tools as a run does, and disconnect.

    Raises:
        EarlyExit: a server could not be connected (6), or names clash (2).
    """
    around = around_servers(starts)
    try:
        servers = await connect(starts.agent.mcp_servers, around, agent.name)
    except RunRefused as refusal:
        raise EarlyExit(ExitCode.ENVIRONMENT, around.masker.text(_sentence(refusal))) from refusal
    try:
        excluded = (agent.code_mode or CodeMode()).excluded_tools
        wanted = ToolChoice(agent.tools, agent.disallowed_tools, excluded)
        for warning in servers.choose(wanted, (), KeptOutputs()):
            pass_on("warning", message=warning)
        return McpFunctions(servers.tools, excluded, KeptOutputs())
    except RunRefused as refusal:
        raise EarlyExit(ExitCode.USAGE, _sentence(refusal)) from refusal
    finally:
        await servers.aclose()


def _sentence(refusal: RunRefused) -> str:
    return f"{refusal.sentence} {refusal.hint or ''}".rstrip()


def _remarks(agent: AgentDefinition, code_mode: CodeMode, functions: McpFunctions) -> Iterator[str]:
    yield from (f"Warning: {warning}" for warning in functions.warnings)
    if not functions.catalogue.functions and not agent.mcp_servers:
        yield f"{agent.name} has no MCP tools that a program could call: add a server to mcpServers."
    if functions.ordinary:
        yield f"Ordinary tools: {', '.join(tool.name for tool in functions.ordinary)}"
    if not code_mode.enabled:
        yield f"Code mode is off: `codeMode: true` in the file of {agent.name} switches it on."


def _wire(function: ToolFunction) -> dict[str, Any]:
    return {
        "name": function.qualified,
        "server": function.tool.server,
        "tool": function.tool.name,
        "parameters": [
            {"name": each.name, "key": each.key, "required": each.required}
            for each in function.stub.parameters
        ],
        "stub": function.stub.text,
    }
