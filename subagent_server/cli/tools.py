"""`subagent tools`: print the functions of an agent in code mode as its model reads them."""

import click

from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import TEXT, json_option, trust_option
from subagent_server.cli.console.session import Session, pass_session


@click.command()
@click.argument("agent", type=TEXT)
@click.argument("name", type=TEXT, required=False)
@click.option("--whole", is_flag=True, help="Every function, even if the model is shown an index alone.")
@json_option
@trust_option
@pass_session
def tools(session: Session, agent: str, name: str | None, whole: bool, as_json: bool) -> ExitCode:
    """Print the functions that programs of an agent can call.

    It connects to the MCP servers of AGENT and prints exactly what its model reads of their tools in code
    mode. With NAME, a function or a server, it prints what a program reads by help(NAME).
    """
    if name is not None and whole:
        raise click.UsageError("NAME is one function or server and --whole is all: give one of them.")
    from subagent_server.cli.mcp.functions import show_functions  # imports the SDK of the protocol

    return show_functions(session, agent, name, whole=whole, as_json=as_json)
