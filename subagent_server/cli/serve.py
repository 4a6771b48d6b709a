"""`subagent serve`: the MCP server, on stdin and stdout or over HTTP."""

import asyncio
import fnmatch
import gc
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn

import click

from subagent_server.agents.formats import load_config
from subagent_server.agents.yaml_reader import AgentFileError
from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.http_options import (
    LOOPBACK,
    HttpOptions,
    announce,
    http_options,
    opened,
)
from subagent_server.cli.console.output import DIRECTORY, SECONDS, ExitCode, err, trust_option
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, choices, shorten
from subagent_server.server.sockets import HttpDoor
from subagent_server.settings import Role, Settings
from subagent_server.verbs.access import Caller
from subagent_server.verbs.access_tokens import PageAccess, PageNotUsable
from subagent_server.verbs.check_agent import AgentChecker
from subagent_server.verbs.contract_agent import DEFAULT_CONTRACT_MODEL
from subagent_server.verbs.service import AgentRegistry, Service, open_service


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Serve the one agent of this file instead of directories of agents.",
)
@click.option(
    "--role",
    type=click.Choice(["parent", "child"]),
    help="Which tools to offer: `parent` without those of subagents, `child` only those.  [default: all]",
)
@click.option(
    "--agent",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Offer only agents whose name matches PATTERN, such as `review-*`; may be repeated.  [default: all]",
)
@click.option(
    "--tools-budget",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="How much a model may read of all tools; where a tool for each agent would take more, `run_agent` "
    "starts them.  [default: $SUBAGENT_TOOLS_BUDGET, else 8000]",
)
@click.option(
    "--max-wait",
    type=SECONDS,
    metavar="S",
    help="The longest wait of one call, in seconds.  [default: the known limit of the client]",
)
@click.option(
    "--lifecycle",
    is_flag=True,
    help="Offer `agent_start`, `agent_status`, `agent_complete` and `agent_stop` too: agents by a contract.  "
    "[default: over HTTP]",
)
@click.option(
    "--model",
    metavar="M",
    help=f"The model of agents that are started by a contract.  [default: {DEFAULT_CONTRACT_MODEL}]",
)
@click.option(
    "--cwd",
    type=DIRECTORY,
    metavar="DIR",
    help="Work there, as if started there: for clients that start servers elsewhere than in the project.",
)
@http_options
@trust_option
@pass_session
def serve(
    session: Session,
    /,
    config: Path | None,
    role: Literal["parent", "child"] | None,
    patterns: tuple[str, ...],
    tools_budget: int | None,
    max_wait: float | None,
    lifecycle: bool,
    model: str | None,
    cwd: Path | None,
    **values: Any,
) -> int:
    """Serve the agents to an MCP client on stdin and stdout, or to several over HTTP.

    It exits at the end of input, on SIGINT and on SIGTERM; the runs continue.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # the event loop takes over after the imports
        signal.signal(number, lambda *_: os._exit(0))
    http = HttpOptions.taken_from(values)
    if cwd is not None:
        _enter(cwd)
    settings = replace(
        session.settings,
        agent_patterns=patterns,
        tools_budget=tools_budget or session.settings.tools_budget,
        max_wait_seconds=max_wait,
        contract_model=_contract_model(model, is_offered=lifecycle or http.is_wanted),
    )
    service = _service(settings, config)
    check_patterns(patterns, service.registry)
    caller = session.caller
    if http.is_wanted:
        session.check_is_user()
        _serve_http(session, service, _role(role, caller), http)
        return ExitCode.OK
    app = _imported("subagent_server.server.stdio")
    asyncio.run(app.serve_stdio(service, _role(role, caller), caller))
    return ExitCode.OK


def serve_page(session: Session, page_is_open: Callable[[], None]) -> None:
    """Serve over HTTP on a free port of this machine; calls `page_is_open` when browsers may come."""
    options = HttpOptions(f"{LOOPBACK}:0", None, None, False, (), None, ())
    door = opened(options, session.settings)
    page = _page_access(session.service, door)
    page_is_open()  # connections are accepted from here on, and answered in a moment
    err("This command serves the page until Ctrl-C; the runs continue.")
    _run_http(session, session.service, "all", door, page)


def _serve_http(session: Session, service: Service, role: Role, options: HttpOptions) -> None:
    door = opened(options, service.settings)
    announce(door)
    try:
        page = _page_access(service, door)
        err("`subagent page` opens the page for people.")
    except PageNotUsable as error:
        err(f"There is no page for people. {error.sentence}")
        page = None
    _run_http(session, service, role, door, page)


def _page_access(service: Service, door: HttpDoor) -> PageAccess:
    """Announce the page, and return who may open it. Raises PageNotUsable."""
    directory = service.settings.page_directory
    if directory is None:
        raise PageNotUsable("HOME names no directory for its codes: set it.")
    access = PageAccess(directory)
    access.announce(door.address, str(service.settings.runs_root))
    return access


def _run_http(
    session: Session, service: Service, role: Role, door: HttpDoor, page: PageAccess | None
) -> None:
    http = _imported("subagent_server.server.http")

    def leave() -> NoReturn:
        door.close()
        os._exit(0)  # a thread that still waits would hold the leave up

    asyncio.run(http.serve_http(service, role, session.caller, door, page, leave))


def _imported(module: str) -> Any:
    """Import a server, and with it `mcp`, which takes most of a second."""
    gc.disable()  # collections, which find nothing, are an eighth of the imports
    app = import_module(module)
    gc.freeze()  # a collection that walks the imported modules would delay a call by 100 ms
    gc.enable()
    return app


def _enter(directory: Path) -> None:
    """Change to this directory: relative paths and runs are relative to it.

    Raises:
        BadArgument.
    """
    try:
        os.chdir(directory)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadArgument(
            f"--cwd {shorten(str(directory))} cannot be entered ({why}): name another."
        ) from error
    os.environ["PWD"] = str(Path.cwd())


def _contract_model(model: str | None, *, is_offered: bool) -> str | None:
    """Return the model of agents that are started by a contract, or None if there shall be none.

    Raises:
        BadArgument.
    """
    if model is not None and not is_offered:
        raise BadArgument("--model is for agents by a contract: add --lifecycle, or serve over HTTP.")
    if model is not None and not model.strip():
        raise BadArgument("--model is empty: name a model, or leave it out.")
    return model or DEFAULT_CONTRACT_MODEL if is_offered else None


def _service(settings: Settings, config: Path | None) -> Service:
    if config is not None and settings.is_of_a_run:
        raise BadArgument(
            f"A run cannot bring in agents: leave --config {shorten(str(config))} out. Its agent file can "
            "name it in mcpServers, as `command: subagent` of this installation with "
            "`args: [serve, --config, FILE]`."
        )
    if config is None:
        return open_service(settings)
    agent = load_config(config)
    service = open_service(settings, registry=AgentRegistry.of_one(agent))
    _check_starts(service, agent, config)
    return service


def _check_starts(service: Service, agent: AgentDefinition, config: Path) -> None:
    """Refuse to serve an agent whose every run would be refused.

    Raises:
        AgentFileError, BadArgument, NotTrusted.
    """
    checked = AgentChecker(service).check(agent)
    if checked.doubt is not None:
        raise checked.doubt
    if not checked.refusals:
        return
    first, *others = checked.refusals
    reason = first.sentence.rstrip(".") + (f" (and {len(others)} more)" if others else "")
    if first.in_file:
        raise AgentFileError(config, reason, checked.line_of(first.key or ""))
    raise BadArgument(f"Nothing is served, because every run of {agent.name} would be refused: {reason}.")


def check_patterns(patterns: Sequence[str], registry: AgentRegistry) -> None:
    """Refuse a pattern that no agent's name fits: it is most likely mistyped.

    Raises:
        BadArgument.
    """
    for pattern in patterns:
        names = [agent.name for agent in registry.agents()]
        if not fnmatch.filter(names, pattern):
            raise BadArgument(
                f"--agent {shorten(pattern)} fits no agent: {choices('agents', pattern, names)}; fix it, or "
                "leave it out."
            )


def _role(wanted: Literal["parent", "child"] | None, caller: Caller) -> Role:
    """Return the role: the environment of a child forces `child`, and only it allows `child`.

    Raises:
        BadArgument.
    """
    if caller.is_child:
        return "child"
    if wanted == "child":
        raise BadArgument(
            "--role child needs SUBAGENT_RUN_ID and SUBAGENT_RUN_TOKEN, which a run gives to its programs: "
            "leave --role out to serve yourself."
        )
    return wanted or "all"
