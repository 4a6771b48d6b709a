"""`subagent init`: register this server with an MCP client."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from subagent_server.cli.client_files import Change, snippet, write
from subagent_server.cli.clients import CLIENTS, SERVER, Client, Scope
from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.asking import coverage_lines
from subagent_server.cli.console.http_options import DEFAULT_ADDRESS
from subagent_server.cli.console.output import (
    EarlyExit,
    ExitCode,
    err,
    has_person,
    json_option,
    out,
    out_json,
)
from subagent_server.cli.console.terminal import one_line
from subagent_server.cli.registration import (
    InitOrder,
    Registration,
    change_wire,
    elsewhere,
    file_of,
    order_of,
    place_of,
    planned,
    planned_removal,
    show_changes,
)
from subagent_server.cli.serve import check_patterns
from subagent_server.sandbox.file_watch import OwnWrites
from subagent_server.verbs.trust_check import trust

_KEY = "ANTHROPIC_API_KEY"
"""The variable of the key that agents use unless their file names another."""


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
    help="Offer the client only agents whose name matches PATTERN, as `serve --agent` does; may be repeated.",
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
@click.option("--remove", is_flag=True, help="Undo what this command wrote for CLIENT, and nothing else.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@click.option("--force", is_flag=True, help=f"Replace, or remove, another server that is called {SERVER}.")
@click.option(
    "--approve/--no-approve",
    default=True,
    help="Whether the client may call the tools without asking each time, where it has a setting for that.  "
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
    remove: bool,
    yes: bool,
    force: bool,
    approve: bool,
    as_json: bool,
) -> int:
    """Register this server with an MCP client, with the --agents, --runs and --max-runs of this call.

    CLIENT is claude (Claude Code), codex, gemini, cursor or claude-desktop. The change is shown before it is
    made. Everything else in the file stays. The yes also trusts the agents and MCP servers that come with
    this directory, which are listed, unless --agents names others.
    """
    known = CLIENTS[client]
    if remove:
        if patterns or url or only_print:
            raise click.UsageError("--remove takes out what is there: leave --agent, --http and --print out.")
        return _remove(session, known, scope or known.scopes[0], yes=yes, force=force, as_json=as_json)
    if patterns:
        check_patterns(patterns, session.service.registry)
    order = order_of(session.settings, known, patterns, scope, url, approved=approve)
    if only_print:
        out(snippet(known, order.entry).rstrip("\n"))
        if (permissions := order.permissions) is not None:
            path = session.shown(permissions.file(place_of(session.settings)))
            lists = " and ".join(f'"{item}" in {".".join(keys)}' for keys, item in permissions.lists.items())
            err(f"So that it does not ask before each tool, put {lists} of {path}.")
        return ExitCode.OK
    return _register(session, order, yes=yes, force=force, as_json=as_json)


def _register(session: Session, order: InitOrder, *, yes: bool, force: bool, as_json: bool) -> ExitCode:
    """Plan a registration, show it, and make it if the person or --yes allows it."""
    registration = planned(session, order, as_json)
    covered, changes = registration.covered, registration.changes
    asking = not (yes or as_json) and has_person()
    problem = _problem(session, [registration.change], "to replace it", force)
    if problem is None and registration.is_needed and not (yes or asking):
        problem = EarlyExit(
            ExitCode.NEEDS_ANSWER, "nothing was written: add --yes to write this without being asked."
        )
    if not as_json:
        _show(session, registration, asking)
    if registration.is_needed and problem is None:
        if asking and not click.confirm(_question(registration), err=True):
            err("Nothing was written.")
            return ExitCode.OK
        if covered is not None:
            trust(session.settings, covered)  # before the files: the client's first start must not be refused
        for change in changes:
            write(change, OwnWrites(session.settings.state_directory))
    if as_json:
        out_json(
            registration.to_wire("refused" if problem else "written" if registration.is_needed else "current")
        )
    elif problem is None:
        err(_conclusion(session, registration))
    if problem is not None:
        raise problem
    return ExitCode.OK


def _remove(
    session: Session, client: Client, scope: Scope, *, yes: bool, force: bool, as_json: bool
) -> ExitCode:
    """Undo what `init` wrote for a client in a scope."""
    path = file_of(client, scope, place_of(session.settings))
    changes = [change for change in planned_removal(session, client, scope) if change.is_needed]
    asking = not (yes or as_json) and has_person()
    problem = _problem(session, changes, "to take it out", force)
    if problem is None and changes and not (yes or asking):
        problem = EarlyExit(
            ExitCode.NEEDS_ANSWER, "nothing was changed: add --yes to do this without being asked."
        )
    if not as_json:
        show_changes(session, changes)
    if problem is None:
        if changes and asking and not click.confirm("Take this out?", err=True):
            err("Nothing was changed.")
            return ExitCode.OK
        for change in changes:
            write(change, OwnWrites(session.settings.state_directory))
            if change.path.parent.parent == session.settings.cwd:
                with suppress(OSError):  # it is not empty, or a link: then it stays
                    change.path.parent.rmdir()
    if as_json:
        state = "refused" if problem else "removed" if changes else "absent"
        wire = {"client": client.name, "file": str(path), "state": state}
        out_json({**wire, "changes": [change_wire(change) for change in changes]})
    elif problem is None:
        err(_removal(session, client, scope, path, changes))
    if problem is not None:
        raise problem
    return ExitCode.OK


# -- what is said


def _removal(session: Session, client: Client, scope: Scope, path: Path, changes: list[Change]) -> str:
    if changes:
        return (
            f"{_files(session, changes)} without this server now. Start {client.title} anew. Trust in a "
            "directory stays: `subagent trust --remove DIR` ends it."
        )
    words = [f"{one_line(session.shown(path))} does not have this server: nothing to do."]
    for other, file in elsewhere(session.settings, client, scope):
        words.append(f"Your file {one_line(session.shown(file))} has it: --scope {other}.")
    return " ".join(words)


def _problem(session: Session, changes: list[Change], purpose: str, force: bool) -> EarlyExit | None:
    """Return why another server of our name must not be changed, or None."""
    for change in changes:
        if change.is_needed and change.replaces and not force:
            return EarlyExit(
                ExitCode.USAGE,
                f"{session.shown(change.path)} has another server called {SERVER} and was left as it is: "
                f"add --force {purpose}.",
            )
    return None


def _question(registration: Registration) -> str:
    if registration.covered is None:
        return "Write this?"
    return "Write this? It trusts the directory too" if registration.changes else "Trust this directory?"


def _files(session: Session, changes: list[Change]) -> str:
    names = " and ".join(one_line(session.shown(change.path)) for change in changes)
    return f"{names} {'is' if len(changes) == 1 else 'are'}"


def _show(session: Session, registration: Registration, asking: bool) -> None:
    show_changes(session, registration.changes)
    order = registration.order
    if registration.changes and order.approved and order.client.can_be_approved:
        out(f"{order.client.title} may then call these tools without asking each time (else: --no-approve).")
    if registration.covered is not None:
        for line in coverage_lines(registration.covered, asking=asking):
            out(line)


def _conclusion(session: Session, registration: Registration) -> str:
    order, files = registration.order, registration.changes
    client = order.client
    if not files:
        return f"{one_line(session.shown(registration.change.path))} has this server already: nothing to do."
    asked = client.still_asks if order.approved or not client.can_be_approved else client.asks
    lines = [f"{_files(session, files)} written.", *_started(session, order)]
    lines += [*_missing(session, order), f"{client.next_step} {asked}".strip()]
    return "\n".join(lines)


def _started(session: Session, order: InitOrder) -> Iterator[str]:
    """Yield what the client will start or come to, and for whom the file is of use."""
    if order.token is not None:
        yield "It comes with a token of its own; keep `subagent serve --http` running."
        return
    command = str(order.entry["command"])
    is_absolute = Path(command).is_absolute()
    place = command if is_absolute else shutil.which(command, path=session.settings.environment.get("PATH"))
    yield one_line(f"It starts {place or command} serve.")
    if is_absolute and order.scope == "project":
        yield "The entry names paths of this machine, so that its file is of no use to a colleague" + (
            ": install subagent where every shell finds it (pipx, uv), then run this again with --force."
            if order.client.knows_project
            else "."
        )


def _missing(session: Session, order: InitOrder) -> Iterator[str]:
    """Yield the next steps of a person without an agent or without a key."""
    if not session.service.registry.agents():
        yield (
            "There is no agent yet, so the client gets no tool `run_...`: "
            "`subagent new reviewer --from reviewer` writes one."
        )
    if not session.settings.environment.get(_KEY):
        where = "`subagent serve`" if order.token is not None else order.client.title
        yield (
            f"{_KEY} is not set here. Set it where {where} is started: runs are billed by the API, "
            "and not by a subscription of the client."
        )
