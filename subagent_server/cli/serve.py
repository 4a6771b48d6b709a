"""`subagent serve`: the MCP server, on stdin and stdout or over HTTP."""

import asyncio
import fnmatch
import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import click

from subagent_server.agents.formats import load_config
from subagent_server.agents.yaml_reader import AgentFileError
from subagent_server.cli.console.app import Session, pass_session, trust_option
from subagent_server.cli.console.option_types import DIRECTORY, SECONDS, Count
from subagent_server.cli.console.terminal import err, is_terminal
from subagent_server.process.peer import is_user_outside_boxes
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, choices, shorten
from subagent_server.server.sockets import (
    HttpDoor,
    IPNetwork,
    Proxies,
    is_loopback,
    listen_on_path,
    listen_on_port,
    remove_path,
)
from subagent_server.settings import Role, Settings
from subagent_server.verbs.access import Caller
from subagent_server.verbs.access_tokens import (
    DEFAULT_PARENT,
    PageAccess,
    PageNotUsable,
    read_tokens,
    token_of,
)
from subagent_server.verbs.check_agent import AgentChecker
from subagent_server.verbs.contract_agent import DEFAULT_CONTRACT_MODEL
from subagent_server.verbs.service import AgentRegistry, Service, open_service

# -- The options of HTTP, and the socket and the access checks that they ask for.


LOOPBACK = "127.0.0.1"
DEFAULT_ADDRESS = f"{LOOPBACK}:8101"
EVERYBODY = (
    "Every program of this machine may start agents with your rights and read your runs there: those of "
    "other users too, and those of runs with network."
)
"""What `--no-token` opens."""
_LOOPBACK_NAMES = ("localhost", LOOPBACK, "::1")


@dataclass(frozen=True)
class HttpOptions:
    """The options as they were passed."""

    http: str | None = None
    unix: Path | None = None
    token_file: Path | None = None
    no_token: bool = False
    hosts: tuple[str, ...] = ()
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether the server is to serve over HTTP."""
        return self.http is not None or self.unix is not None

    def check(self) -> None:
        """Raise UsageError if the options do not fit together."""
        if self.http not in (None, DEFAULT_ADDRESS) and self.unix is not None:
            raise click.UsageError("--http HOST:PORT and --unix are two places: name one.")
        if self.no_token and self.token_file is not None:
            raise click.UsageError("--no-token and --token-file exclude each other: leave one out.")
        if not self.is_wanted and self != HttpOptions():
            raise click.UsageError(
                "--no-token, --token-file, --allow-host, --public-url and --trusted-proxy are for --http and "
                "--unix."
            )


def opened(options: HttpOptions, settings: Settings) -> HttpDoor:
    """Listen as the options ask.

    Raises:
        BadArgument, HostError, TokensNotUsable.
    """
    host, port = _address(options.http or DEFAULT_ADDRESS)
    is_local = options.unix is not None or is_loopback(host)
    if options.no_token and not is_local:
        raise BadArgument(f"--no-token is for this machine only: name a --token-file to serve on {host}.")
    if options.token_file is None and not is_local:
        raise BadArgument(f"Other machines can reach {host}: name a --token-file.")
    # Of a peer on a Unix socket the kernel knows which user it is, so it needs no token.
    needs_none = options.no_token or (options.unix is not None and options.token_file is None)
    token_file = None if needs_none else _token_file(options, settings)
    proxies = _proxies(options, host)
    for name in options.hosts:
        _check_name(name)
    public = [] if proxies.public_url is None else [urlsplit(proxies.public_url).hostname or ""]
    hosts = tuple(dict.fromkeys((*_LOOPBACK_NAMES, host, *options.hosts, *public)))
    if options.unix is not None:
        path = settings.cwd / options.unix
        listener = listen_on_path(path)
        close = partial(remove_path, path, path.lstat())
        return HttpDoor(listener, hosts, token_file, proxies, is_user_outside_boxes, close)
    return HttpDoor(listen_on_port(host, port), hosts, token_file, proxies)


def _check_name(name: str) -> None:
    """Raise BadArgument for what is never a host of a request: an address, a pattern, a name with a port."""
    with suppress(ValueError):
        ip_address(name)
        return
    if not name or set("/:*?#@[] ") & set(name):
        raise BadArgument(
            f"--allow-host {shorten(name)} is no name: write it as agents.example.org, without a port."
        )


def _proxies(options: HttpOptions, host: str) -> Proxies:
    """Return how clients reach the server. Raises BadArgument."""
    networks: list[IPNetwork] = []
    for text in options.trusted_proxies:
        if text == "unix":
            continue
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            raise BadArgument(
                f"--trusted-proxy {shorten(text)} is no address: write 127.0.0.1, 10.0.0.0/8, or unix."
            ) from error
    return Proxies(
        own_names=frozenset({*_LOOPBACK_NAMES, host.lower()}),
        public_url=None if options.public_url is None else _public_url(options.public_url),
        trusted=tuple(networks),
        trusts_socket="unix" in options.trusted_proxies,
    )


def is_address(text: str) -> bool:
    """Whether this is an address that a client can call."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_whole and text.isprintable() and " " not in text


def _public_url(text: str) -> str:
    """Return an address with a slash at its end. Raises BadArgument."""
    if not is_address(text) or set("?#@") & set(text):
        raise BadArgument(
            f"--public-url {shorten(text)} is no address: write it as https://agents.example.org."
        )
    parts = urlsplit(text)
    path = parts.path.rstrip("/").removesuffix("/mcp")
    return f"{parts.scheme}://{parts.netloc}{path}/"


def announce(door: HttpDoor, own_tokens: Path | None) -> None:
    """Log where the server listens, and who may come in. `init` writes tokens into `own_tokens`."""
    mcp = "" if door.listener.family == socket.AF_UNIX else "/mcp"
    err(f"Serving MCP at {door.address}{mcp}.")
    if door.is_welcome is not None:
        err("Only your own programs come in there, and none that a run has in its box.")
    if door.token_file is None and door.is_welcome is None:
        err(f"--no-token: {EVERYBODY}")
    if door.token_file is not None:
        at = "" if door.address == f"http://{DEFAULT_ADDRESS}" else f" {door.address}/mcp"
        is_own = mcp and door.token_file == own_tokens
        writes = f"; `subagent init CLIENT --http{at}` writes it" if is_own else ""
        err(f"Each request needs a token of {door.token_file}{writes}.")


def _token_file(options: HttpOptions, settings: Settings) -> Path:
    if options.token_file is not None:
        file = settings.cwd / options.token_file
        if not read_tokens(file):
            raise BadArgument(f"{shorten(str(file))} names no parent: add a line with a name and a token.")
        return file
    token_of(settings.token_file, DEFAULT_PARENT)
    assert settings.token_file is not None
    return settings.token_file


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and re.fullmatch("[0-9]{1,5}", port) and int(port) < 1 << 16):
        raise BadArgument(f"--http {shorten(text)} is no HOST:PORT: write it as {DEFAULT_ADDRESS}.")
    return host, int(port)


# -- The verb.


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
    type=Count(min=1),
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
@click.option(
    "--http",
    is_flag=False,
    flag_value=DEFAULT_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve over HTTP, to several clients at once: at /mcp of {DEFAULT_ADDRESS} if no address is named.",
)
@click.option(
    "--unix",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Serve over HTTP on a Unix socket, in a directory that only you may enter. Your "
    "programs come in without a token, but for those in the box of a run.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The parents that may come, on each line a name and a token.  "
    "[default: ~/.local/state/subagent/http-tokens, made at the first start]",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Let every program of this machine in, those of other users too.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name under which clients reach this, such as a proxy's; may be repeated.",
)
@click.option(
    "--public-url",
    metavar="URL",
    help="Where clients reach this through a proxy, such as https://agents.example.org: all "
    "addresses in answers begin so, and its name is allowed.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Believe X-Forwarded-Proto and -Host of this address, network, or `unix` (who comes by "
    "--unix); may be repeated.  [default: nobody]",
)
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
) -> None:
    """Serve the agents to an MCP client on stdin and stdout, or to several over HTTP.

    It exits at the end of input, on SIGINT and on SIGTERM; the runs continue.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # the event loop takes over after the imports
        signal.signal(number, lambda *_: os._exit(0))
    http = HttpOptions(**values)
    http.check()
    if cwd is not None:
        _enter(cwd)
    settings = replace(
        session.settings,
        agent_patterns=patterns,
        tools_budget=tools_budget or session.settings.tools_budget,
        max_wait_seconds=max_wait,
        contract_model=_contract_model(model, has_lifecycle=lifecycle or http.is_wanted),
    )
    service = _service(settings, config)
    check_patterns(patterns, service.registry)
    served = _role(role, session.caller)
    if http.is_wanted:
        session.check_is_user()
        _serve_http(session, service, served, http)
    else:
        if is_terminal(sys.stdin):
            err("A client starts this, by MCP: `subagent init CLIENT` registers it. Ctrl-C ends it.")
        app = _imported("subagent_server.server.stdio")
        asyncio.run(app.serve_stdio(service, served, session.caller))


def serve_page(session: Session, page_is_open: Callable[[], None]) -> None:
    """Serve over HTTP on a free port of this machine; calls `page_is_open` when browsers may come."""
    door = opened(HttpOptions(f"{LOOPBACK}:0"), session.settings)
    page = _page_access(session.service, door)
    page_is_open()  # connections are accepted from here on, and answered in a moment
    err("This command serves the page until Ctrl-C; the runs continue.")
    _run_http(session, session.service, "all", door, page)


def _serve_http(session: Session, service: Service, role: Role, options: HttpOptions) -> None:
    door = opened(options, service.settings)
    announce(door, service.settings.token_file)
    try:
        page = _page_access(service, door)
        err("`subagent page` opens the page for people.")
    except PageNotUsable as error:
        err(f"There is no page for people. {error.sentence}")
        page = None
    _run_http(session, service, role, door, page)


def _page_access(service: Service, door: HttpDoor) -> PageAccess:
    """Announce the page, and return who may open it. Raises PageNotUsable."""
    access = PageAccess(service.settings.page_directory)
    here = door.address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    access.announce(here, str(service.settings.runs_root))
    return access


def _run_http(
    session: Session, service: Service, role: Role, door: HttpDoor, page: PageAccess | None
) -> None:
    http = _imported("subagent_server.server.http")
    asyncio.run(http.serve_http(service, role, session.caller, door, page))


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


def _contract_model(model: str | None, *, has_lifecycle: bool) -> str | None:
    """Return the model of agents that are started by a contract, or None if there shall be none.

    Raises:
        BadArgument.
    """
    if model is not None and not has_lifecycle:
        raise BadArgument("--model is for agents by a contract: add --lifecycle, or serve over HTTP.")
    if model is not None and not model.strip():
        raise BadArgument("--model is empty: name a model, or leave it out.")
    return model or DEFAULT_CONTRACT_MODEL if has_lifecycle else None


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
