"""`subagent init`: tell an MCP client of this server."""

import sys
from pathlib import Path

import click

from subagent_server.cli.asking import somebody_is_there
from subagent_server.cli.client_configs import CLIENTS, Client, Entry, Place, Scope
from subagent_server.cli.config_change import SERVER, Change, NotEditable, plan, snippet, write
from subagent_server.cli.exits import ExitCode, Leave
from subagent_server.cli.flags import Flags, json_option
from subagent_server.cli.output import out, out_json, talk
from subagent_server.cli.own_command import own_command
from subagent_server.cli.session import Session, pass_session
from subagent_server.cli.text import coloured, escape_lines, one_line
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
    """Tell an MCP client of this server, with the --agents, --runs and --max-runs of this call.

    CLIENT is claude (Claude Code), codex, gemini, cursor or claude-desktop. The change is shown before it is
    made. Everything else in the file stays as it is, byte for byte.
    """
    known = CLIENTS[client]
    entry = known.entry(_command(session.settings, known))
    if only_print:
        out(snippet(known, entry).rstrip("\n"))
        return ExitCode.OK
    change = _planned(session, known, entry, scope or known.scopes[0], as_json)
    asking = not (yes or as_json) and somebody_is_there()
    problem = _problem(session, change, force, yes or asking)
    if not as_json:
        _show(session, change)
    if change.is_needed and problem is None:
        if asking and not click.confirm("Write this?", err=True):
            talk("Nothing was written.")
            return ExitCode.OK
        write(change)
    if as_json:
        state = "refused" if problem else "written" if change.is_needed else "current"
        out_json(_wire(known, change.path, entry, state, list(change.diff(str(change.path)))))
    elif problem is None:
        talk(_conclusion(session, change))
    if problem is not None:
        raise problem
    return ExitCode.OK


# -- what is asked for


def _command(settings: Settings, client: Client) -> list[str]:
    """Return the words that start the server, with absolute paths for whatever depends on this place."""
    flags = click.get_current_context().ensure_object(Flags)
    words = [*own_command(settings.environment, from_shell=client.knows_project), "serve", "--role", "parent"]
    if not client.knows_project:
        words += ["--cwd", str(settings.cwd)]
    if flags.agents or not client.knows_project:
        for directory in _agent_directories(settings):
            words += ["--agents", str(directory)]
    if flags.runs or not client.knows_project:
        words += ["--runs", str(settings.runs_root)]
    if flags.max_runs:
        words += ["--max-runs", str(flags.max_runs)]
    return words


def _agent_directories(settings: Settings) -> list[Path]:
    """Those that were named, else those that are there, else the first that would be looked at."""
    every = list(settings.agent_directories)
    if not settings.agents_by_default:
        return every
    return [directory for directory in every if directory.is_dir()] or every[:1]


def _file(settings: Settings, client: Client, scope: Scope) -> Path:
    if scope not in client.files:
        raise click.UsageError(f"{client.title} has no file for a {scope}: leave --scope out.")
    home = Path(settings.environment.get("HOME") or Path.home())
    return client.files[scope](Place(settings.cwd, home, settings.environment, sys.platform))


def _planned(session: Session, client: Client, entry: Entry, scope: Scope, as_json: bool) -> Change:
    """Return the change; where the file cannot be changed, print what to paste.

    Raises:
        Leave, UsageError.
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
        raise Leave(
            ExitCode.USAGE,
            f"{session.shown(path)} was left as it is, because {error.reason}{line}: "
            "mend it and try again, or paste the above into it.",
        ) from error


# -- what is said


def _problem(session: Session, change: Change, force: bool, is_allowed: bool) -> Leave | None:
    """Return why the change is not made, if it must not be."""
    if not change.is_needed:
        return None
    if change.replaces and not force:
        return Leave(
            ExitCode.USAGE,
            f"{session.shown(change.path)} has another server called {SERVER} and was left as it is: "
            "add --force to replace it.",
        )
    if not is_allowed:
        return Leave(
            ExitCode.NEEDS_ANSWER, "nothing was written: add --yes to write this without being asked."
        )
    return None


def _show(session: Session, change: Change) -> None:
    for line in change.diff(session.shown(change.path)):
        shown = escape_lines(line)
        out(coloured(shown, _COLOURS[shown[0]]) if shown[:1] in _COLOURS else shown)


def _conclusion(session: Session, change: Change) -> str:
    path = one_line(session.shown(change.path))
    if not change.is_needed:
        return f"{path} has this server already: nothing to do."
    return f"{path} is written. {change.client.next_step}"


def _wire(client: Client, path: Path, entry: Entry, state: str, diff: list[str]) -> dict[str, object]:
    return {"client": client.name, "file": str(path), "state": state, "entry": entry, "diff": diff}
