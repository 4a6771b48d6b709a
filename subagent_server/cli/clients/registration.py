"""A registration with a client, planned as a whole before anything is shown or written."""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from subagent_server.cli.clients.client_configs import SERVER, Client, ClientPlace, Scope
from subagent_server.cli.clients.config_change import Change, NotEditable, plan, plan_permissions, snippet
from subagent_server.cli.clients.init_order import InitOrder
from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import out, out_json
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import escape_lines
from subagent_server.service.trusting import Coverage, coverage
from subagent_server.settings import Settings

_COLOURS = {"+": "green", "-": "red"}
_TOKEN = re.compile(r"Bearer [\w.~+/=-]+")


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


def _to_be_trusted(settings: Settings) -> Coverage | None:
    """Return the directory to trust for the server, or None if it needs none or --agents names the agents.

    Raises:
        BadArgument: the trust file cannot be read.
    """
    if not settings.agents_by_default or settings.is_of_a_run:
        return None
    covered = coverage(settings, settings.cwd, leave_out=SERVER)
    return covered if covered.is_new else None


def place_of(settings: Settings) -> ClientPlace:
    """Return where the client's files are looked for."""
    home = Path(settings.environment.get("HOME") or Path.home())
    return ClientPlace(settings.cwd, home, settings.environment, sys.platform)


def planned(session: Session, order: InitOrder, as_json: bool) -> Registration:
    """Return what the order changes; if the client's file cannot be changed, print the entry to paste.

    Raises:
        EarlyExit, UsageError, BadArgument.
    """
    client, place = order.client, place_of(session.settings)
    path = file_of(client, order.scope, place)
    try:
        check_inside(place, path, order.scope)
        change = plan(client, path, order.entry, private=order.scope == "user")
    except NotEditable as error:
        if as_json:
            out_json({**_wire_of(order, path, "refused"), "diff": []})
        else:
            out(snippet(client, order.entry).rstrip("\n"))
        raise left_as_it_is(session, path, error, "paste the above into it") from error
    permissions = order.permissions
    settings = None
    if permissions is not None:
        path = permissions.file(place)
        try:
            check_inside(place, path, order.scope)
            settings = plan_permissions(path, permissions)
        except NotEditable as error:
            raise left_as_it_is(session, path, error, "add --no-approve") from error
    covered = _to_be_trusted(session.settings) if order.token is None else None
    return Registration(order, change, settings, covered)


def file_of(client: Client, scope: Scope, place: ClientPlace) -> Path:
    """Return the file of a client for a scope. Raises UsageError."""
    if scope not in client.files:
        raise click.UsageError(f"{client.title} has no file for a {scope}: leave --scope out.")
    return client.files[scope](place)


def check_inside(place: ClientPlace, path: Path, scope: Scope) -> None:
    """Refuse a link that leads out of the project: the permissions in the file would hold everywhere.

    Raises:
        NotEditable.
    """
    if scope == "project" and not path.resolve().is_relative_to(place.cwd.resolve()):
        raise NotEditable("a link leads out of the project")


def left_as_it_is(session: Session, path: Path, error: NotEditable, instead: str) -> EarlyExit:
    """Return the refusal to change a file that cannot be changed safely."""
    line = "" if error.line is None else f", line {error.line}"
    return EarlyExit(
        ExitCode.USAGE,
        f"{session.shown(path)} was left as it is, because {error.reason}{line}: "
        f"mend it and try again, or {instead}.",
    )


def show_changes(session: Session, changes: Iterable[Change]) -> None:
    """Print the differences that changes make, without tokens."""
    for change in changes:
        for line in _diff(change, session.shown(change.path)):
            shown = escape_lines(line)
            out(coloured(shown, _COLOURS[shown[0]]) if shown[:1] in _COLOURS else shown)


def change_wire(change: Change) -> dict[str, Any]:
    """Return a change as programs get it."""
    return {"file": str(change.path), "diff": _diff(change, str(change.path))}


def registration_wire(registration: Registration, state: str) -> dict[str, Any]:
    """Return a registration as programs get it."""
    change, settings, covered = registration.change, registration.settings, registration.covered
    wire = {**_wire_of(registration.order, change.path, state), **change_wire(change)}
    wire["trusts"] = None if covered is None else str(covered.project)
    return wire if settings is None else {**wire, "settings": change_wire(settings)}


def _wire_of(order: InitOrder, path: Path, state: str) -> dict[str, Any]:
    entry = json.loads(order.without_token(json.dumps(order.entry)))
    return {"client": order.client.name, "file": str(path), "state": state, "entry": entry}


def _diff(change: Change, name: str) -> list[str]:
    return [_TOKEN.sub("Bearer TOKEN", line) for line in change.diff(name)]
