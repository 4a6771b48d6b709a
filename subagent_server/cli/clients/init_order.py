"""The order of `subagent init`: the entry of a client, for a server that the client starts or connects to."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import click

from subagent_server.cli.clients.client_configs import SERVE_WORDS, Client, Entry, Permissions, Scope
from subagent_server.cli.clients.own_command import own_command
from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.http_options import DEFAULT_ADDRESS
from subagent_server.domain.errors import shorten
from subagent_server.service.parent_tokens import token_of
from subagent_server.settings import Settings


@dataclass(frozen=True)
class InitOrder:
    """The entry of a client that is to be registered, in the file of a scope. `approved`: see --approve.

    `token` is the secret in the entry of a client that comes over HTTP.
    """

    client: Client
    scope: Scope
    entry: Entry
    approved: bool
    token: str | None = None

    def without_token(self, text: str) -> str:
        """Return a text as it may be shown."""
        return text if self.token is None else text.replace(self.token, "TOKEN")

    @property
    def permissions(self) -> Permissions | None:
        """The settings to write beside the entry, if any."""
        return self.client.permissions.get(self.scope) if self.approved else None


def order_of(
    settings: Settings,
    client: Client,
    patterns: Sequence[str],
    scope: Scope | None,
    url: str | None,
    *,
    approved: bool,
) -> InitOrder:
    """Return the order; over HTTP, with the token of this client, which is made if it has none.

    Raises:
        UsageError, TokensNotUsable.
    """
    if url is None:
        entry, token = client.starting(_command(settings, client, patterns)), None
        usual = client.scopes[0]
    else:
        if client.over_http is None:
            raise click.UsageError(
                f"{client.title} reads no server over HTTP from its file: leave --http out."
            )
        if scope == "project":
            raise click.UsageError("A token does not belong in a file of the project: leave --scope out.")
        if patterns:
            raise click.UsageError("The server over HTTP decides which agents it offers: give --agent to it.")
        _check_url(url)
        token, usual = token_of(settings.token_file, client.name), "user"
        entry = client.over_http(url, f"Bearer {token}")
    entry = {**entry, **(client.approval if approved else {})}
    return InitOrder(client, scope or usual, entry, approved, token)


def _check_url(url: str) -> None:
    """Refuse what is no URL of a server. Raises UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise click.UsageError(f"--http {shorten(url)} is no URL: write it as http://{DEFAULT_ADDRESS}/mcp.")


def _command(settings: Settings, client: Client, patterns: Sequence[str]) -> list[str]:
    """Return the command of the server, with absolute paths for a client that starts it elsewhere."""
    flags = click.get_current_context().ensure_object(Flags)
    words = [*own_command(settings.environment, from_shell=client.knows_project), *SERVE_WORDS]
    if not client.knows_project:
        words += ["--cwd", str(settings.cwd)]
    if flags.agents or not (client.knows_project or settings.agents_by_default):
        for directory in settings.agent_directories:
            words += ["--agents", str(directory)]
    if flags.runs or not client.knows_project:
        words += ["--runs", str(settings.runs_root)]
    if flags.max_runs:
        words += ["--max-runs", str(flags.max_runs)]
    for pattern in patterns:
        words += ["--agent", pattern]
    return words
