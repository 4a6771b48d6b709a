"""The HTTP options of `serve`, and the socket and the access checks that they ask for."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from subagent_server.cli.console.output import err
from subagent_server.process.peer import is_user_outside_boxes
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.server.sockets import (
    HttpDoor,
    IPNetwork,
    Proxies,
    is_loopback,
    listen_on_path,
    listen_on_port,
    remove_path,
)
from subagent_server.settings import Settings
from subagent_server.verbs.access_tokens import DEFAULT_PARENT, ParentTokens, read_tokens, token_of

F = TypeVar("F", bound=Callable[..., Any])
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
    """The options as they were given."""

    http: str | None
    unix: Path | None
    token_file: Path | None
    no_token: bool
    hosts: tuple[str, ...]
    public_url: str | None
    trusted_proxies: tuple[str, ...]

    @property
    def is_wanted(self) -> bool:
        """Whether the server is to serve over HTTP."""
        return self.http is not None or self.unix is not None

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> "HttpOptions":
        """Return the options with these values. Raises UsageError: they do not fit together."""
        options = cls(**values)
        if options.http not in (None, DEFAULT_ADDRESS) and options.unix is not None:
            raise click.UsageError("--http HOST:PORT and --unix are two places: name one.")
        if options.no_token and options.token_file is not None:
            raise click.UsageError("--no-token and --token-file exclude each other: leave one out.")
        if not options.is_wanted and any((*values.values(),)):
            raise click.UsageError(
                "--no-token, --token-file, --allow-host, --public-url and --trusted-proxy are for --http and "
                "--unix."
            )
        return options


def http_options(command: F) -> F:
    """Add the options to a command."""
    for option in reversed(
        [
            click.option(
                "--http",
                is_flag=False,
                flag_value=DEFAULT_ADDRESS,
                metavar="[HOST:PORT]",
                help=f"Serve over HTTP, to several clients at once: at /mcp of {DEFAULT_ADDRESS} if no place "
                "is named.",
            ),
            click.option(
                "--unix",
                type=click.Path(path_type=Path),
                metavar="PATH",
                help="Serve over HTTP on a Unix socket, in a directory that only you may enter. Your "
                "programs come in without a token, but for those in the box of a run.",
            ),
            click.option(
                "--token-file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="The parents that may come, on each line a name and a token.  "
                "[default: ~/.local/state/subagent/http-tokens, made at the first start]",
            ),
            click.option(
                "--no-token",
                is_flag=True,
                help="Let every program of this machine in, those of other users too.",
            ),
            click.option(
                "--allow-host",
                "hosts",
                multiple=True,
                metavar="NAME",
                help="A further name under which clients reach this, such as a proxy's; may be repeated.",
            ),
            click.option(
                "--public-url",
                metavar="URL",
                help="Where clients reach this through a proxy, such as https://agents.example.org: all "
                "addresses in answers begin so, and its name is allowed.",
            ),
            click.option(
                "--trusted-proxy",
                "trusted_proxies",
                multiple=True,
                metavar="ADDRESS",
                help="Believe X-Forwarded-Proto and -Host of this address, network, or `unix` (who comes by "
                "--unix); may be repeated.  [default: nobody]",
            ),
        ]
    ):
        command = option(command)
    return command


def opened(options: HttpOptions, settings: Settings) -> HttpDoor:
    """Listen as the options say.

    Raises:
        BadArgument, HostError, TokensNotUsable.
    """
    host, port = _address(options.http or DEFAULT_ADDRESS)
    is_local = options.unix is not None or is_loopback(host)
    if options.no_token and not is_local:
        raise BadArgument(f"--no-token is for this machine only: name a --token-file to serve on {host}.")
    if options.token_file is None and not is_local:
        raise BadArgument(f"Other machines can reach {host}: name a --token-file.")
    # Of a peer on a Unix socket the kernel says which user it is, so it needs no token.
    needs_none = options.no_token or (options.unix is not None and options.token_file is None)
    tokens = None if needs_none else _tokens(options, settings)
    proxies = _proxies(options, host)
    public = [] if proxies.public_url is None else [urlsplit(proxies.public_url).hostname or ""]
    hosts = tuple(dict.fromkeys((*_LOOPBACK_NAMES, host, *options.hosts, *public)))
    if options.unix is not None:
        path = settings.cwd / options.unix
        listener = listen_on_path(path)
        close = partial(remove_path, path, path.lstat())
        return HttpDoor(listener, hosts, tokens, proxies, is_user_outside_boxes, close)
    return HttpDoor(listen_on_port(host, port), hosts, tokens, proxies)


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


def _public_url(text: str) -> str:
    """Return an address with a slash at its end. Raises BadArgument."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    is_plain = text.isprintable() and not set("?#@ ") & set(text)
    if not (is_address and is_plain):
        raise BadArgument(
            f"--public-url {shorten(text)} is no address: write it as https://agents.example.org."
        )
    path = parts.path.rstrip("/").removesuffix("/mcp")
    return f"{parts.scheme}://{parts.netloc}{path}/"


def announce(door: HttpDoor) -> None:
    """Say on stderr where the server listens, and who may come in."""
    mcp = "" if door.listener.family == socket.AF_UNIX else "/mcp"
    err(f"Serving MCP at {door.address}{mcp}.")
    if door.is_welcome is not None:
        err("Only your own programs come in there, and none that a run has in its box.")
    if door.tokens is None and door.is_welcome is None:
        err(f"--no-token: {EVERYBODY}")
    if door.tokens is not None:
        err(f"Each request needs a token of {door.tokens.file}; `subagent init CLIENT --http` writes it.")


def _tokens(options: HttpOptions, settings: Settings) -> ParentTokens:
    if options.token_file is not None:
        file = settings.cwd / options.token_file
        if not read_tokens(file):
            raise BadArgument(f"{shorten(str(file))} names no parent: add a line with a name and a token.")
        return ParentTokens(file)
    token_of(settings.token_file, DEFAULT_PARENT)
    assert settings.token_file is not None
    return ParentTokens(settings.token_file)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise BadArgument(f"--http {shorten(text)} is no HOST:PORT: write it as {DEFAULT_ADDRESS}.")
    return host, int(port)
