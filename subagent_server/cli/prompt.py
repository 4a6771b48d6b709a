"""`subagent prompt`: show the first request of a run to its model, without a call."""

import json
from collections.abc import Iterator
from typing import Any

import click

from subagent_server.cli.console.ask_trust import with_trust
from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.complete import complete_agents
from subagent_server.cli.console.first_request import first_request
from subagent_server.cli.console.flags import TEXT, json_option, trust_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.starting import argument_or_stdin, inputs_from_here
from subagent_server.cli.console.text import escape_lines, one_line
from subagent_server.service.start import StartOrder

_SOME_PROMPT = "(the prompt)"


@click.command()
@click.argument("agent", type=TEXT, shell_complete=complete_agents)
@click.argument("prompt", required=False, type=TEXT, metavar="[PROMPT|-]")
@click.option("--input", "inputs", type=TEXT, multiple=True, metavar="FILE", help="As for `subagent run`.")
@click.option("--cwd", type=TEXT, metavar="DIR", help="As for `subagent run`.")
@click.option("--servers", is_flag=True, help="Start the agent's MCP servers too, and show their tools.")
@trust_option
@json_option
@pass_session
def prompt(
    session: Session,
    agent: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    cwd: str | None,
    servers: bool,
    as_json: bool,
) -> None:
    """Show what the model would get first: system prompt, tools, message.

    No model is called: a run is begun that does not stay, a script answers its first request, and that
    request is shown, with its size in tokens (an estimate). MCP servers are not started without --servers,
    so their tools are missing.
    """
    given = _SOME_PROMPT if prompt is None else argument_or_stdin(prompt, "prompt")
    order = StartOrder(agent=agent, prompt=given, inputs=inputs_from_here(session, inputs), cwd=cwd)
    found = with_trust(
        session, lambda: first_request(session, order, with_servers=servers), may_ask=not as_json
    )
    if as_json:
        out_json(
            {
                "agent": agent,
                "estimatedTokens": found.estimated_tokens,
                "missingServers": found.missing_servers,
                "request": found.body,
            }
        )
        return
    out("\n\n".join([_summary(agent, found.body, found.estimated_tokens), *_parts(found.body)]))
    if found.missing_servers:
        names = ", ".join(map(one_line, found.missing_servers))
        err(f"Not started, so their tools are missing: the MCP servers {names} (--servers starts them).")


def _summary(agent: str, body: dict[str, Any], tokens: dict[str, int]) -> str:
    sizes = ", ".join(f"{name} {tokens[name]:,}" for name in ("system", "tools", "messages"))
    return (
        f"{one_line(agent)} · {one_line(str(body['model']))} · about {tokens['total']:,} tokens ({sizes}; "
        "an estimate: 4 characters are taken for a token)"
    )


def _parts(body: dict[str, Any]) -> Iterator[str]:
    system = body.get("system", [])
    for number, block in enumerate(system, 1):
        cached = ", cached up to here" if "cache_control" in block else ""
        yield _part(f"system {number} of {len(system)}{cached}", block["text"])
    for tool in body.get("tools", []):
        rest = {k: v for k, v in tool.items() if k not in ("name", "description", "cache_control")}
        text = "\n".join(filter(None, [tool.get("description"), _pretty(rest)]))
        yield _part(f"tool {tool['name']}", text)
    for message in body["messages"]:
        for block in message["content"]:
            yield _part(f"message of the {message['role']}", _text(block))


def _part(title: str, text: str) -> str:
    return f"{coloured(f'── {one_line(title)}', 'blue')}\n{escape_lines(text)}"


def _text(block: dict[str, Any]) -> str:
    if block["type"] == "text":
        return str(block["text"])
    source = block.get("source", {})
    size = len(source.get("data", ""))
    return f"({block['type']} {source.get('media_type', '')}, {size:,} characters in Base64)"


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
