"""`subagent init`: register this server with an MCP client."""

import sys
from pathlib import Path

import click

from subagent_server.cli.clients.client_configs import CLIENTS, Client, ClientPlace, Entry, Scope
from subagent_server.cli.clients.config_change import SERVER, Change, NotEditable, plan, snippet, write
from subagent_server.cli.clients.own_command import own_command
from subagent_server.cli.console.ask_trust import coverage_lines
from subagent_server.cli.console.asking import has_person
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.flags import Flags, json_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import coloured, escape_lines, one_line
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
@click.option("--print", "only_print", is_flag=True, help="Print what to paste; read and write no file.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.option("--force", is_flag=True, help=f"Replace another server that is called {SERVER}.")
@json_option
@pass_session
def init(
    session: Session,
    client: str,
    scope: Scope | None,
    only_print: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Register this server with an MCP client, with the --agents, --runs and --max-runs of this call.

    CLIENT is claude (Claude Code), codex, gemini, cursor or claude-desktop. The change is shown before it is
    made. Everything else in the file stays as it is, byte for byte. The yes also trusts the agents and MCP
    servers that come with this directory, which are listed, unless --agents names others.
    """
    known = CLIENTS[client]
    entry = known.entry(_command(session.settings, known))
    if only_print:
        out(snippet(known, entry).rstrip("\n"))
        return ExitCode.OK
    change = _planned(session, known, entry, scope or known.scopes[0], as_json)
    covered = _to_be_trusted(session.settings)
    asking = not (yes or as_json) and has_person()
    is_needed = change.is_needed or covered is not None
    problem = _problem(session, change, force, is_needed, yes or asking)
    if not as_json:
        _show(session, change, covered)
    if is_needed and problem is None:
        if asking and not click.confirm(_question(change, covered), err=True):
            err("Nothing was written.")
            return ExitCode.OK
        _carry_out(session, change, covered)
    if as_json:
        state = "refused" if problem else "written" if is_needed else "current"
        trusts = None if covered is None else str(covered.project)
        out_json(
            _wire(known, change.path, entry, state, list(change.diff(str(change.path)))) | {"trusts": trusts}
        )
    elif problem is None:
        err(_conclusion(session, change))
    if problem is not None:
        raise problem
    return ExitCode.OK


# -- the entry and its file


def _command(settings: Settings, client: Client) -> list[str]:
    """Return the command of the server, with absolute paths for a client that starts it elsewhere."""
    flags = click.get_current_context().ensure_object(Flags)
    words = [*own_command(settings.environment, from_shell=client.knows_project), "serve", "--role", "parent"]
    if not client.knows_project:
        words += ["--cwd", str(settings.cwd)]
    if flags.agents or not (client.knows_project or settings.agents_by_default):
        for directory in settings.agent_directories:
            words += ["--agents", str(directory)]
    if flags.runs or not client.knows_project:
        words += ["--runs", str(settings.runs_root)]
    if flags.max_runs:
        words += ["--max-runs", str(flags.max_runs)]
    return words


def _to_be_trusted(settings: Settings) -> Coverage | None:
    """Return the directory to trust for the server, or None if it needs none or --agents names the agents.

    Raises:
        BadArgument: the trust file cannot be read.
    """
    if not settings.agents_by_default or settings.is_of_a_run:
        return None
    covered = coverage(settings, settings.cwd, leave_out=SERVER)
    return covered if covered.is_new else None


def _file(settings: Settings, client: Client, scope: Scope) -> Path:
    if scope not in client.files:
        raise click.UsageError(f"{client.title} has no file for a {scope}: leave --scope out.")
    home = Path(settings.environment.get("HOME") or Path.home())
    return client.files[scope](ClientPlace(settings.cwd, home, settings.environment, sys.platform))


def _planned(session: Session, client: Client, entry: Entry, scope: Scope, as_json: bool) -> Change:
    """Return the change; if the file cannot be changed, print the entry to paste.

    Raises:
        EarlyExit, UsageError.
    """
    path = _file(session.settings, client, scope)
    try:
        return plan(client, path, entry, private=scope == "user")
    except NotEditable as error:
        if as_json:
            out_json(_wire(client, path, entry, "refused", []))
        else:
            out(snippet(client, entry).rstrip("\n"))
        line = "" if error.line is None else f", line {error.line}"
        raise EarlyExit(
            ExitCode.USAGE,
            f"{session.shown(path)} was left as it is, because {error.reason}{line}: "
            "mend it and try again, or paste the above into it.",
        ) from error


# -- the change, shown and made


def _problem(
    session: Session, change: Change, force: bool, is_needed: bool, is_allowed: bool
) -> EarlyExit | None:
    """Return why the change must not be made, or None."""
    if change.is_needed and change.replaces and not force:
        return EarlyExit(
            ExitCode.USAGE,
            f"{session.shown(change.path)} has another server called {SERVER} and was left as it is: "
            "add --force to replace it.",
        )
    if is_needed and not is_allowed:
        return EarlyExit(
            ExitCode.NEEDS_ANSWER, "nothing was written: add --yes to write this without being asked."
        )
    return None


def _question(change: Change, covered: Coverage | None) -> str:
    if covered is None:
        return "Write this?"
    return "Write this? It trusts the directory too" if change.is_needed else "Trust this directory?"


def _carry_out(session: Session, change: Change, covered: Coverage | None) -> None:
    """Trust the directory, then write the client's file: its first start must not be refused."""
    if covered is not None:
        trust(session.settings, covered)
    if change.is_needed:
        write(change)


def _show(session: Session, change: Change, covered: Coverage | None) -> None:
    for line in change.diff(session.shown(change.path)):
        shown = escape_lines(line)
        out(coloured(shown, _COLOURS[shown[0]]) if shown[:1] in _COLOURS else shown)
    for line in coverage_lines(covered) if covered is not None else ():
        out(line)


def _conclusion(session: Session, change: Change) -> str:
    path = one_line(session.shown(change.path))
    if not change.is_needed:
        return f"{path} has this server already: nothing to do."
    return f"{path} is written. {change.client.next_step}"


def _wire(client: Client, path: Path, entry: Entry, state: str, diff: list[str]) -> dict[str, object]:
    return {"client": client.name, "file": str(path), "state": state, "entry": entry, "diff": diff}
