"""A registration with a client: which entry in which file, planned as a whole before anything is written."""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from subagent_server.cli.client_files import (
    Change,
    NotEditable,
    plan,
    plan_permissions,
    plan_removal,
    plan_withdrawal,
    snippet,
)
from subagent_server.cli.clients import (
    SERVE_WORDS,
    SERVER,
    Client,
    ClientDirectories,
    ClientPermissions,
    Entry,
    Scope,
)
from subagent_server.cli.console.app import Session
from subagent_server.cli.console.http_options import DEFAULT_ADDRESS
from subagent_server.cli.console.output import EarlyExit, ExitCode, Flags, out, out_json
from subagent_server.cli.console.terminal import coloured, escape_lines
from subagent_server.run.errors import shorten
from subagent_server.settings import Settings
from subagent_server.verbs.access_tokens import token_of
from subagent_server.verbs.trust_check import Coverage, coverage

_COMMAND = "subagent"
_COLOURS = {"+": "green", "-": "red"}
_TOKEN = re.compile(r"Bearer [\w.~+/=-]+")


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

    @property
    def permissions(self) -> ClientPermissions | None:
        """The settings to write next to the entry, if any."""
        return self.client.permissions.get(self.scope) if self.approved else None

    def to_wire(self, path: Path, state: str) -> dict[str, Any]:
        """Return it for `--json`, without the token."""
        entry = json.dumps(self.entry)
        if self.token is not None:
            entry = entry.replace(self.token, "TOKEN")
        return {"client": self.client.name, "file": str(path), "state": state, "entry": json.loads(entry)}


@dataclass(frozen=True)
class Registration:
    """An order and all that it changes: the client's file, its settings, and the trust in the directory."""

    order: InitOrder
    change: Change
    settings: Change | None
    covered: Coverage | None

    @property
    def changes(self) -> list[Change]:
        """The changes of files that there are to be made."""
        return [each for each in (self.change, self.settings) if each is not None and each.is_needed]

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.changes) or self.covered is not None

    def to_wire(self, state: str) -> dict[str, Any]:
        """Return it for `--json`."""
        wire = {**self.order.to_wire(self.change.path, state), **change_wire(self.change)}
        wire["trusts"] = None if self.covered is None else str(self.covered.project)
        return wire if self.settings is None else {**wire, "settings": change_wire(self.settings)}


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
    usual = client.scopes[0] if url is None else "user"
    token = None
    if url is None:
        command = _command(settings, client, patterns)
        entry = {"command": command[0], "args": command[1:], **client.extras}
    else:
        parts = urlsplit(url)
        if client.over_http is None:
            raise click.UsageError(
                f"{client.title} reads no server over HTTP from its file: leave --http out."
            )
        if scope == "project":
            raise click.UsageError("A token does not belong in a file of the project: leave --scope out.")
        if patterns:
            raise click.UsageError("The server over HTTP decides which agents it offers: give --agent to it.")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise click.UsageError(
                f"--http {shorten(url)} is no URL: write it as http://{DEFAULT_ADDRESS}/mcp."
            )
        token = token_of(settings.token_file, client.name)
        entry = client.over_http(url, f"Bearer {token}")
    return InitOrder(
        client, scope or usual, {**entry, **(client.approval if approved else {})}, approved, token
    )


def planned(session: Session, order: InitOrder, as_json: bool) -> Registration:
    """Return what the order changes; if the client's file cannot be changed, print the entry to paste.

    Raises:
        EarlyExit, UsageError, BadArgument.
    """
    client, settings, permissions = order.client, session.settings, order.permissions
    place = place_of(settings)
    path = file_of(client, order.scope, place)
    try:
        _check_inside(place, path, order.scope)
        change = plan(client, path, order.entry, private=order.scope == "user")
    except NotEditable as error:
        if as_json:
            out_json({**order.to_wire(path, "refused"), "diff": []})
        else:
            out(snippet(client, order.entry).rstrip("\n"))
        raise _left_as_it_is(session, path, error, "paste the above into it") from error
    allowed = None
    if permissions is not None:
        path = permissions.file(place)
        try:
            _check_inside(place, path, order.scope)
            allowed = plan_permissions(path, permissions)
        except NotEditable as error:
            raise _left_as_it_is(session, path, error, "add --no-approve") from error
    covered = None
    if order.token is None and settings.agents_by_default and not settings.is_of_a_run:
        covered = coverage(settings, settings.cwd, leave_out=SERVER)
    return Registration(order, change, allowed, covered if covered is not None and covered.is_new else None)


def planned_removal(session: Session, client: Client, scope: Scope) -> Iterator[Change]:
    """Yield the changes that undo what `init` wrote for a client in a scope. Raises EarlyExit, UsageError."""
    place, permissions = place_of(session.settings), client.permissions.get(scope)
    path = file_of(client, scope, place)
    try:
        _check_inside(place, path, scope)
        yield plan_removal(client, path)
        if permissions is not None:
            path = permissions.file(place)
            _check_inside(place, path, scope)
            yield plan_withdrawal(path, permissions)
    except NotEditable as error:
        raise _left_as_it_is(session, path, error, f"take {SERVER} out by hand") from error


def elsewhere(settings: Settings, client: Client, scope: Scope) -> Iterator[tuple[Scope, Path]]:
    """Yield the other scopes of a client whose file has the server."""
    for other in client.scopes:
        path = file_of(client, other, place_of(settings))
        try:
            if other != scope and plan_removal(client, path).is_needed:
                yield other, path
        except (NotEditable, OSError):
            continue


def place_of(settings: Settings) -> ClientDirectories:
    """Return where the client's files are looked for."""
    home = Path(settings.environment.get("HOME") or Path.home())
    return ClientDirectories(settings.cwd, home, settings.environment, sys.platform)


def file_of(client: Client, scope: Scope, place: ClientDirectories) -> Path:
    """Return the file of a client for a scope. Raises UsageError."""
    if scope not in client.files:
        raise click.UsageError(f"{client.title} has no file for a {scope}: leave --scope out.")
    return client.files[scope](place)


def _check_inside(place: ClientDirectories, path: Path, scope: Scope) -> None:
    # A link that leads out of the project would let the permissions hold everywhere.
    if scope == "project" and not path.resolve().is_relative_to(place.cwd.resolve()):
        raise NotEditable("a link leads out of the project")


def _left_as_it_is(session: Session, path: Path, error: NotEditable, instead: str) -> EarlyExit:
    line = "" if error.line is None else f", line {error.line}"
    return EarlyExit(
        ExitCode.USAGE,
        f"{session.shown(path)} was left as it is, because {error.reason}{line}: "
        f"fix it and try again, or {instead}.",
    )


def show_changes(session: Session, changes: Iterable[Change]) -> None:
    """Print the differences that changes make, without tokens."""
    for change in changes:
        for line in _diff(change, session.shown(change.path)):
            shown = escape_lines(line)
            out(coloured(shown, _COLOURS.get(shown[:1])))


def change_wire(change: Change) -> dict[str, Any]:
    """Return a change for `--json`."""
    return {"file": str(change.path), "diff": _diff(change, str(change.path))}


def _diff(change: Change, name: str) -> list[str]:
    return [_TOKEN.sub("Bearer TOKEN", line) for line in change.diff(name)]


# -- the command of the server


def _command(settings: Settings, client: Client, patterns: Sequence[str]) -> list[str]:
    """Return the command of the server, with absolute paths for a client that starts it elsewhere."""
    flags = click.get_current_context().ensure_object(Flags)
    words = [*_own_command(settings.environment, from_shell=client.knows_project), *SERVE_WORDS]
    if not client.knows_project:
        words += ["--cwd", str(settings.cwd)]
    if flags.agents or not (client.knows_project or settings.agents_by_default):
        for directory in settings.agent_directories:
            words += ["--agents", str(directory)]
    if flags.runs or not client.knows_project:
        words += ["--runs", str(settings.runs_root)]
    if flags.max_runs:
        words += ["--max-runs", str(flags.max_runs)]
    if flags.launcher:
        words += ["--launcher", flags.launcher]
    for pattern in patterns:
        words += ["--agent", pattern]
    return words


def _own_command(environment: Mapping[str, str], *, from_shell: bool) -> list[str]:
    """Return the words that start this command, from any directory and permanently.

    The bare name is used if PATH finds this installation permanently: not only through an environment
    that is activated in this shell, and only for programs with the PATH of a shell (`from_shell`). Otherwise
    it is the path of the script, or of the interpreter if there is no script.
    """
    script = next(_scripts(), None)
    if script is None:
        return [sys.executable, "-P", "-m", "subagent_server"]
    for directory in map(Path, environment.get("PATH", "").split(os.pathsep)) if from_shell else ():
        found, is_of_a_venv = directory / _COMMAND, (directory.parent / "pyvenv.cfg").exists()
        if directory.is_absolute() and not is_of_a_venv and os.access(found, os.X_OK):
            return [_COMMAND] if found.resolve() == script.resolve() else [str(script)]
    return [str(script)]


def _scripts() -> Iterator[Path]:
    called = Path(sys.argv[0])
    for path in (
        called if called.name == _COMMAND else None,
        Path(sysconfig.get_path("scripts")) / _COMMAND,
    ):
        if path is not None and os.access(path, os.X_OK) and path.is_file():
            yield path.absolute()
