"""Taking the server out of the files of a client again: `subagent init CLIENT --remove`."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from subagent_server.cli.clients.client_configs import SERVER, Client, Scope
from subagent_server.cli.clients.config_change import (
    Change,
    NotEditable,
    plan_removal,
    plan_withdrawal,
    write,
)
from subagent_server.cli.clients.registration import (
    change_wire,
    check_inside,
    file_of,
    left_as_it_is,
    place_of,
    show_changes,
)
from subagent_server.cli.console.asking import has_person
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import err, out_json
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import one_line
from subagent_server.sandbox.own_writes import OwnWrites


def remove_registration(
    session: Session, client: Client, scope: Scope, *, yes: bool, force: bool, as_json: bool
) -> ExitCode:
    """Undo what `init` wrote for a client in a scope; everything else in the files stays, byte for byte.

    Raises:
        EarlyExit, UsageError.
    """
    path = file_of(client, scope, place_of(session.settings))
    changes = [change for change in _planned(session, client, scope, path) if change.is_needed]
    asking = not (yes or as_json) and has_person()
    problem = _problem(session, changes, force, yes or asking)
    if not as_json:
        show_changes(session, changes)
    if problem is None:
        if changes and asking and not click.confirm("Take this out?", err=True):
            err("Nothing was changed.")
            return ExitCode.OK
        for change in changes:
            write(change, OwnWrites(session.settings.state_directory))
            _remove_if_empty(change.path.parent, session.settings.cwd)
    if as_json:
        state = "refused" if problem else "removed" if changes else "absent"
        wire = {"client": client.name, "file": str(path), "state": state}
        out_json({**wire, "changes": [change_wire(change) for change in changes]})
    elif problem is None:
        err(_conclusion(session, client, scope, path, changes))
    if problem is not None:
        raise problem
    return ExitCode.OK


def _planned(session: Session, client: Client, scope: Scope, path: Path) -> Iterator[Change]:
    """Yield the changes of the client's file and of its settings. Raises EarlyExit."""
    place, permissions = place_of(session.settings), client.permissions.get(scope)
    try:
        check_inside(place, path, scope)
        yield plan_removal(client, path)
        if permissions is not None:
            path = permissions.file(place)
            check_inside(place, path, scope)
            yield plan_withdrawal(path, permissions)
    except NotEditable as error:
        raise left_as_it_is(session, path, error, f"take {SERVER} out by hand") from error


def _remove_if_empty(directory: Path, project: Path) -> None:
    """Remove the directory of a client in a project if no file is left in it."""
    if directory.parent == project:
        with suppress(OSError):  # it is not empty, or a link: then it stays
            directory.rmdir()


def _problem(session: Session, changes: list[Change], force: bool, is_allowed: bool) -> EarlyExit | None:
    """Return why the changes must not be made, or None."""
    for change in changes:
        if change.replaces and not force:
            return EarlyExit(
                ExitCode.USAGE,
                f"{session.shown(change.path)} has another server called {SERVER} and was left as it is: "
                "add --force to take it out.",
            )
    if changes and not is_allowed:
        return EarlyExit(
            ExitCode.NEEDS_ANSWER, "nothing was changed: add --yes to do this without being asked."
        )
    return None


def _conclusion(session: Session, client: Client, scope: Scope, path: Path, changes: list[Change]) -> str:
    if changes:
        files = " and ".join(one_line(session.shown(change.path)) for change in changes)
        verb = "is" if len(changes) == 1 else "are"
        return (
            f"{files} {verb} without this server now. Start {client.title} anew. Trust in a directory stays: "
            "`subagent trust --remove DIR` ends it."
        )
    words = [f"{one_line(session.shown(path))} does not have this server: nothing to do."]
    words += [
        f"Your file {file} has it: --scope {other}." for other, file in _elsewhere(session, client, scope)
    ]
    return " ".join(words)


def _elsewhere(session: Session, client: Client, scope: Scope) -> Iterator[tuple[Scope, str]]:
    """Yield the other scopes of a client whose file has the server."""
    for other in client.scopes:
        path = file_of(client, other, place_of(session.settings))
        try:
            if other != scope and plan_removal(client, path).is_needed:
                yield other, one_line(session.shown(path))
        except (NotEditable, OSError):
            continue
