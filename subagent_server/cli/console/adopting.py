"""Making a runs root the user's: what `subagent trust --runs DIR` shows, asks and does."""

from collections.abc import Iterator
from pathlib import Path

import click

from subagent_server.cli.console.asking import somebody_is_there
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.output import out, out_json, talk
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import one_line
from subagent_server.service.adopting import Inventory, adopt, take_inventory

_MOST_NAMES = 5


def adopt_root(session: Session, path: Path, *, yes: bool, as_json: bool) -> int:
    """Show what is in the runs root at `path`, ask if a person is there, and make it the user's.

    Raises:
        BadArgument, ForeignRoot, StorageFailed.
    """
    found = take_inventory(path)
    if not found.is_ours and not as_json:
        for line in _lines(found):
            out(line)
        asking = not yes and somebody_is_there()
        if asking and not click.confirm("Make this runs root yours?", err=True):
            talk("Nothing was changed.")
            return ExitCode.OK
    if not found.is_ours:
        adopt(path)
    if as_json:
        state = "current" if found.is_ours else "trusted"
        out_json({"runs": str(path), "state": state, "statuses": dict(found.statuses)})
    else:
        done = "is yours already: nothing to do" if found.is_ours else "is yours"
        talk(f"{one_line(session.shown(path))} {done}.")
    return ExitCode.OK


def _lines(found: Inventory) -> Iterator[str]:
    yield f"runs root {one_line(str(found.path))}: {found.runs} {'run' if found.runs == 1 else 'runs'}"
    for status, number in sorted(found.statuses.items()):
        yield f"  {status}: {number}"
    if found.unreadable:
        yield f"  unreadable: {found.unreadable}"
    if found.others:
        more = len(found.others) - _MOST_NAMES
        names = ", ".join(one_line(name) for name in found.others[:_MOST_NAMES])
        yield f"  not of ours: {names}{f' and {more} more' if more > 0 else ''}"
