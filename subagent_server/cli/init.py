"""`subagent init`: register this server with an MCP client."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from subagent_server.cli.clients.client_configs import (
    CLIENTS,
    SERVER,
    ClientPlace,
    Scope,
)
from subagent_server.cli.clients.config_change import (
    Change,
    NotEditable,
    plan,
    plan_permissions,
    snippet,
    write,
)
from subagent_server.cli.clients.init_order import InitOrder, order_of
from subagent_server.cli.console.ask_trust import coverage_lines
from subagent_server.cli.console.asking import has_person
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.http_options import DEFAULT_ADDRESS
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import coloured, escape_lines, one_line
from subagent_server.cli.serve import check_patterns
from subagent_server.service.trusting import Coverage, coverage, trust
from subagent_server.settings import Settings

_COLOURS = {"+": "green", "-": "red"}


@click.command()
@click.argument("client", type=click.Choice(list(CLIENTS)), metavar="CLIENT")
@click.option(
    "--scope",
    type=click.Choice(["project", "user"]),
    help="Change the file of the project where you stand, or yours for every project.  "
    "[default: project for claude and cursor, user for the others]",
)
@click.option(
    "--agent",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Offer the client only agents with such a name, as `serve --agent` does; may be repeated.",
)
@click.option(
    "--http",
    "url",
    is_flag=False,
    flag_value=f"http://{DEFAULT_ADDRESS}/mcp",
    metavar="[URL]",
    help="Let the client come over HTTP, with a token of its own, to a server that runs: `serve --http`.  "
    f"[default of URL: http://{DEFAULT_ADDRESS}/mcp]",
)
@click.option("--print", "only_print", is_flag=True, help="Print what to paste; read and write no file.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.option("--force", is_flag=True, help=f"Replace another server that is called {SERVER}.")
@click.option(
    "--approve/--no-approve",
    default=True,
    help="Whether the client may call the tools without asking each time, if a file can say so.  "
    "[default: approve]",
)
@json_option
@pass_session
def init(
    session: Session,
    client: str,
    scope: Scope | None,
    patterns: tuple[str, ...],
    url: str | None,
    only_print: bool,
    yes: bool,
    force: bool,
    approve: bool,
    as_json: bool,
) -> int:
    """Register this server with an MCP client, with the --agents, --runs and --max-runs of this call.

    CLIENT is claude (Claude Code), codex, gemini, cursor or claude-desktop. The change is shown before it is
    made. Everything else in the file stays as it is, byte for byte. The yes also trusts the agents and MCP
    servers that come with this directory, which are listed, unless --agents names others.
    """
    known = CLIENTS[client]
    if patterns:
        check_patterns(patterns, session.service.registry)
    order = order_of(session.settings, known, patterns, scope, url, approved=approve)
    if only_print:
        out(snippet(known, order.entry).rstrip("\n"))
        _print_permissions(session, order)
        return ExitCode.OK
    registration = _planned(session, order, as_json)
    asking = not (yes or as_json) and has_person()
    problem = _problem(session, registration, force, yes or asking)
    if not as_json:
        _show(session, registration)
    if registration.is_needed and problem is None:
        if asking and not click.confirm(_question(registration), err=True):
            err("Nothing was written.")
            return ExitCode.OK
        _carry_out(session, registration)
    if as_json:
        state = "refused" if problem else "written" if registration.is_needed else "current"
        out_json(_wire(registration, state))
    elif problem is None:
        err(_conclusion(session, registration))
    if problem is not None:
        raise problem
    return ExitCode.OK


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


# -- the entry and its file


def _to_be_trusted(settings: Settings) -> Coverage | None:
    """Return the directory to trust for the server, or None if it needs none or --agents names the agents.

    Raises:
        BadArgument: the trust file cannot be read.
    """
    if not settings.agents_by_default or settings.is_of_a_run:
        return None
    covered = coverage(settings, settings.cwd, leave_out=SERVER)
    return covered if covered.is_new else None


def _place(settings: Settings) -> ClientPlace:
    home = Path(settings.environment.get("HOME") or Path.home())
    return ClientPlace(settings.cwd, home, settings.environment, sys.platform)


def _planned(session: Session, order: InitOrder, as_json: bool) -> Registration:
    """Return what the order changes; if the client's file cannot be changed, print the entry to paste.

    Raises:
        EarlyExit, UsageError, BadArgument.
    """
    client = order.client
    if order.scope not in client.files:
        raise click.UsageError(f"{client.title} has no file for a {order.scope}: leave --scope out.")
    place = _place(session.settings)
    path = client.files[order.scope](place)
    try:
        _check_inside(place, path, order.scope)
        change = plan(client, path, order.entry, private=order.scope == "user")
    except NotEditable as error:
        if as_json:
            out_json(_wire_of(order, path, "refused", []))
        else:
            out(snippet(client, order.entry).rstrip("\n"))
        raise _left_as_it_is(session, path, error, "paste the above into it") from error
    permissions = order.permissions
    settings = None
    if permissions is not None:
        path = permissions.file(place)
        try:
            _check_inside(place, path, order.scope)
            settings = plan_permissions(path, permissions)
        except NotEditable as error:
            raise _left_as_it_is(session, path, error, "add --no-approve") from error
    covered = _to_be_trusted(session.settings) if order.token is None else None
    return Registration(order, change, settings, covered)


def _check_inside(place: ClientPlace, path: Path, scope: Scope) -> None:
    """Refuse a file of the project that a link leads out of it: what it allows would hold everywhere.

    Raises:
        NotEditable.
    """
    if scope == "project" and not path.resolve().is_relative_to(place.cwd.resolve()):
        raise NotEditable("a link leads out of the project")


def _left_as_it_is(session: Session, path: Path, error: NotEditable, instead: str) -> EarlyExit:
    line = "" if error.line is None else f", line {error.line}"
    return EarlyExit(
        ExitCode.USAGE,
        f"{session.shown(path)} was left as it is, because {error.reason}{line}: "
        f"mend it and try again, or {instead}.",
    )


def _print_permissions(session: Session, order: InitOrder) -> None:
    """Say which settings let the client call the tools unasked; they are not part of the printed entry."""
    if order.permissions is not None:
        path = session.shown(order.permissions.file(_place(session.settings)))
        lists = " and ".join(f'"{item}" in {".".join(p)}' for p, item in order.permissions.lists.items())
        err(f"So that it does not ask before each tool, put {lists} of {path}.")


# -- the change, shown and made


def _problem(session: Session, registration: Registration, force: bool, is_allowed: bool) -> EarlyExit | None:
    """Return why the changes must not be made, or None."""
    change = registration.change
    if change.is_needed and change.replaces and not force:
        return EarlyExit(
            ExitCode.USAGE,
            f"{session.shown(change.path)} has another server called {SERVER} and was left as it is: "
            "add --force to replace it.",
        )
    if registration.is_needed and not is_allowed:
        return EarlyExit(
            ExitCode.NEEDS_ANSWER, "nothing was written: add --yes to write this without being asked."
        )
    return None


def _question(registration: Registration) -> str:
    if registration.covered is None:
        return "Write this?"
    return "Write this? It trusts the directory too" if registration.changes else "Trust this directory?"


def _carry_out(session: Session, registration: Registration) -> None:
    """Trust the directory, then write the client's files: its first start must not be refused."""
    if registration.covered is not None:
        trust(session.settings, registration.covered)
    for change in registration.changes:
        write(change)


def _show(session: Session, registration: Registration) -> None:
    for change in registration.changes:
        for line in change.diff(session.shown(change.path)):
            shown = escape_lines(registration.order.without_token(line))
            out(coloured(shown, _COLOURS[shown[0]]) if shown[:1] in _COLOURS else shown)
    order = registration.order
    if registration.changes and order.approved and order.client.can_be_approved:
        out(f"{order.client.title} may then call these tools without asking each time (else: --no-approve).")
    for line in coverage_lines(registration.covered) if registration.covered is not None else ():
        out(line)


def _conclusion(session: Session, registration: Registration) -> str:
    order, files = registration.order, registration.changes
    client = order.client
    if not files:
        return f"{one_line(session.shown(registration.change.path))} has this server already: nothing to do."
    paths = " and ".join(one_line(session.shown(change.path)) for change in files)
    asked = client.still_asks if order.approved or not client.can_be_approved else client.asks
    words = [f"{paths} {'is' if len(files) == 1 else 'are'} written.", client.next_step, asked]
    if order.token is not None:
        words.append("It comes with a token of its own; keep `subagent serve --http` running.")
    if order.scope == "project" and Path(order.entry["command"]).is_absolute():
        words.append(
            "The entry names paths of this machine, so that its file is of no use to a colleague"
            + (
                ": install subagent where every shell finds it, then run this again with --force."
                if client.knows_project
                else "."
            )
        )
    return " ".join(filter(None, words))


def _wire(registration: Registration, state: str) -> dict[str, object]:
    change, settings, covered = registration.change, registration.settings, registration.covered
    wire = _wire_of(registration.order, change.path, state, list(change.diff(str(change.path))))
    wire["trusts"] = None if covered is None else str(covered.project)
    if settings is not None:
        wire["settings"] = {"file": str(settings.path), "diff": list(settings.diff(str(settings.path)))}
    return wire


def _wire_of(order: InitOrder, path: Path, state: str, diff: list[str]) -> dict[str, object]:
    return {
        "client": order.client.name,
        "file": str(path),
        "state": state,
        "entry": json.loads(order.without_token(json.dumps(order.entry))),
        "diff": [order.without_token(line) for line in diff],
    }
