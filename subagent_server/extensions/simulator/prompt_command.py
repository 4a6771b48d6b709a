"""`subagent prompt`: show the first request of a run to its model, without a call.

It is made by a real run in a temporary runs root: the worker that builds the request is that of every run,
and a script answers it. So what is shown cannot differ from what is sent.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from subagent_server.cli.console.app import Session, complete_agents, json_session, trust_option
from subagent_server.cli.console.follow import STOP_WAIT_SECONDS, wait_for
from subagent_server.cli.console.option_types import PATH_TEXT, TEXT
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    argument_or_stdin,
    coloured,
    err,
    escape_lines,
    for_people,
    one_line,
    out,
    out_json,
)
from subagent_server.cli.run import inputs_from_here
from subagent_server.cli.trust import with_trust
from subagent_server.extensions.simulator import Simulator
from subagent_server.extensions.simulator.model_request import characters, input_tokens, tokens_of
from subagent_server.extensions.simulator.model_script import Script
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument
from subagent_server.run.records import RunMeta
from subagent_server.verbs.access import USER
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.export_run import VARIABLE as OTLP
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service, new_key, open_service, scripted_environment
from subagent_server.verbs.start import StartOrder, start_agent
from subagent_server.verbs.trust_check import TrustCheck

_SOME_PROMPT = "(the prompt)"
BOUND_SECONDS = 180.0
"""How long the run may take to its first request, with the start of its MCP servers."""

_ANSWER = Script.model_validate({"turns": [{"text": "(nobody reads this)"}], "after": "repeat_last"})


@click.command()
@click.argument("agent", type=TEXT, shell_complete=complete_agents)
@click.argument("prompt", required=False, type=TEXT, metavar="[PROMPT|-]")
@click.option(
    "--input",
    "inputs",
    type=PATH_TEXT,
    multiple=True,
    metavar="FILE",
    help="As for `subagent run`.",
)
@click.option("--cwd", type=PATH_TEXT, metavar="DIR", help="As for `subagent run`.")
@click.option("--servers", is_flag=True, help="Start the agent's MCP servers too, and show their tools.")
@trust_option
@json_session
def prompt(
    session: Session,
    agent: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    cwd: str | None,
    servers: bool,
) -> None:
    """Show what the model would get first: system prompt, tools, message.

    No model is called: a run is begun that does not stay, a script answers its first request, and that
    request is shown, with its size in tokens (an estimate). MCP servers are not started without --servers,
    so their tools are missing.
    """
    text = _SOME_PROMPT if prompt is None else argument_or_stdin(prompt, "prompt")
    order = StartOrder(agent=agent, prompt=text, inputs=inputs_from_here(session, inputs), cwd=cwd)
    found = with_trust(session, lambda: first_request(session, order, with_servers=servers))
    if session.as_json:
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
        text = "\n".join(
            filter(None, [tool.get("description"), json.dumps(rest, ensure_ascii=False, indent=2)])
        )
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


# -- the run


@dataclass(frozen=True)
class FirstRequest:
    """The body of a request, and the names of the MCP servers whose tools are missing in it."""

    body: dict[str, Any]
    missing_servers: list[str]

    @property
    def estimated_tokens(self) -> dict[str, int]:
        """The size of the request and of its parts: four characters are taken for a token."""
        parts = {key: tokens_of(characters(self.body.get(key) or [])) for key in ("system", "tools")}
        total = input_tokens(self.body)
        return {"total": total, **parts, "messages": total - sum(parts.values())}


def first_request(session: Session, order: StartOrder, *, with_servers: bool) -> FirstRequest:
    """Return what the model of a run would get first; `with_servers` starts the MCP servers of the agent.

    Raises:
        NotTrusted, UnknownAgent, BadArgument: the run would not start.
        EarlyExit: it would fail before its first request (1), or is too slow (124).
    """
    session.check_is_user()
    if not order.prompt.strip():
        raise BadArgument("The prompt is empty: say what the agent should do.")
    agent = session.service.registry.get(order.agent)
    if agent.runner != "messages":  # a run of a flow would execute its program
        where = f"{agent.name} works by `runner: {agent.runner}`"
        raise BadArgument(f"{where}, and only the built-in loop makes requests here: name an agent of it.")
    trust_check = TrustCheck(session.service)
    trust_check.check(agent)
    if with_servers:
        trust_check.equipped(agent)
    left_out = [] if with_servers else [*agent.mcp_servers, *agent.named_servers]
    shown = agent.model_copy(update={"mcp_servers": {}, "named_servers": []}) if left_out else agent
    key = new_key()
    with Simulator(_ANSWER, key=key) as simulator, _passing_service(session, simulator, key) as service:
        meta = _ended(service, shown, order)
        requests = simulator.requests
    if not requests:
        why = meta.error.message if meta.error is not None else "it ended before."
        sentence = for_people(f"a run of {agent.name} would never call its model: {why}")
        raise EarlyExit(ExitCode.FAILED, sentence)
    body: dict[str, Any] = requests[0].body
    return FirstRequest(body, left_out)


@contextmanager
def _passing_service(session: Session, simulator: Simulator, key: str) -> Iterator[Service]:
    """Yield a service with a temporary directory of runs. The trust in its agents has been checked before."""
    settings = session.settings
    environment = scripted_environment(settings.environment, key, simulator.base_url)
    environment[OTLP] = ""  # no traces of a run that does not stay
    with tempfile.TemporaryDirectory(prefix="subagent-prompt-", ignore_cleanup_errors=True) as directory:
        root = Path(directory, "runs")
        yield open_service(replace(settings, runs_root=root, environment=environment, trusts_all=True))


def _ended(service: Service, agent: AgentDefinition, order: StartOrder) -> RunMeta:
    """Return a run of the agent when it has ended and none of its processes is left."""
    run_id = start_agent(service, agent, order, USER).run_id

    def check() -> RunMeta | None:
        observed = observe(service.store, run_id)
        return observed.meta if observed.meta.ended_at is not None and not observed.live else None

    try:
        if (meta := wait_for(service, [run_id], check, BOUND_SECONDS)) is not None:
            return meta
        raise EarlyExit(ExitCode.TIMED_OUT, f"there was no request to a model after {BOUND_SECONDS:g} s.")
    except BaseException:
        stop(service, run_id)
        wait_for(service, [run_id], check, STOP_WAIT_SECONDS)
        raise
