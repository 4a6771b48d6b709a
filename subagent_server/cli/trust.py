"""`subagent trust`: trust the agents and MCP servers of a directory, or take over a runs root."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from subagent_server.cli.console.app import Session, json_session
from subagent_server.cli.console.option_types import DIRECTORY
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    coloured,
    err,
    folded,
    has_person,
    line_width,
    one_line,
    out,
    out_json,
)
from subagent_server.run.errors import BadArgument
from subagent_server.run.journal import count
from subagent_server.run.states import timestamp
from subagent_server.verbs.trust_check import (
    Coverage,
    Inventory,
    NotTrusted,
    adopt,
    check_may_trust,
    coverage,
    forget,
    read_trust_file,
    real_path,
    take_inventory,
)
from subagent_server.verbs.trust_check import trust as trust_now

_MOST_NAMES = 5


@click.command()
@click.argument("directory", required=False, type=DIRECTORY, metavar="[DIR]")
@click.option("--list", "is_list", is_flag=True, help="List the directories that are trusted.")
@click.option("--remove", "is_removal", is_flag=True, help="Trust DIR no more.")
@click.option("--yes", "-y", is_flag=True, help="Trust without asking.")
@json_session
def trust(session: Session, directory: Path | None, is_list: bool, is_removal: bool, yes: bool) -> None:
    """Trust the agents and MCP servers that come with a directory.

    DIR is where agents/, .claude/agents/ or .mcp.json lie; without it, where you are. What it covers is
    shown first. Later changes of prompts and tools need nothing more; what starts a program or sends a key
    elsewhere has to be trusted again when it changes. Without a terminal, to name DIR is the yes.

    With --runs DIR: make a runs root yours that was not made here, or by an earlier version. What is in it is
    shown first.
    """
    if session.named_root is not None:
        if directory or is_list or is_removal:
            raise click.UsageError("--runs names a runs root, which is trusted alone: leave the rest out.")
        check_may_trust(session.settings)
        return _adopt(session, session.named_root, asking=session.can_ask and not yes)
    if is_list:
        if directory or is_removal:
            raise click.UsageError("--list lists all of them: leave the rest out.")
        return _list(session)
    check_may_trust(session.settings)
    asking = session.can_ask and not yes
    if directory is None and (is_removal or not (yes or asking)):
        raise click.UsageError("name the directory: subagent trust DIR.")
    if is_removal:
        return _remove(session, directory or Path())
    return _trust(session, coverage(session.settings, directory or Path()), asking=asking)


def _trust(session: Session, covered: Coverage, *, asking: bool) -> None:
    state, done = "current", "is trusted already: nothing to do"
    if covered.is_new:
        state, done = "trusted", "is trusted"
        if not session.as_json:
            out("\n".join(coverage_lines(covered, asking=asking)))
        if asking and not click.confirm("Trust this directory?", err=True):
            err("Nothing was changed.")
            return
        trust_now(session.settings, covered)
    facts = {"directory": str(covered.project), "state": state, "changes": covered.changes}
    session.say_done(facts, f"{one_line(str(covered.project))} {done}.")


def _remove(session: Session, directory: Path) -> None:
    project = real_path(session.settings.cwd / directory)
    if not forget(session.settings, project):
        raise EarlyExit(
            ExitCode.UNKNOWN,
            f"{project} is not trusted. `subagent trust --list` shows the trusted directories.",
        )
    facts = {"directory": str(project), "state": "removed"}
    session.say_done(facts, f"{one_line(str(project))} is trusted no more.")


def _list(session: Session) -> None:
    trusted = read_trust_file(session.settings.trust_file)
    if trusted.trouble is not None:
        raise EarlyExit(ExitCode.ENVIRONMENT, trusted.trouble)
    since = {name: timestamp(project.trusted_at) for name, project in sorted(trusted.projects.items())}
    if session.as_json:
        out_json({"directories": [{"directory": name, "trustedAt": at} for name, at in since.items()]})
    elif since:
        for name, at in since.items():
            out(f"{at}  {one_line(name)}{'  (no longer there)' if _is_gone(name) else ''}")
    else:
        err("No directory is trusted.")


def _is_gone(directory: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(directory).st_mode)  # noqa: PTH116
    except OSError as error:  # what this user may not look at, or no file server answers for, may be there
        return isinstance(error, (FileNotFoundError, NotADirectoryError))


# -- a runs root


def _adopt(session: Session, path: Path, *, asking: bool) -> None:
    """Show the contents of the runs root at `path`, ask if there is a terminal, and make it the user's.

    Raises:
        BadArgument, ForeignRoot, StorageFailed.
    """
    found = take_inventory(path)
    state, done = "current", "is yours already: nothing to do"
    if not found.is_ours:
        state, done = "trusted", "is yours"
        if not session.as_json:
            out("\n".join(_inventory_lines(found)))
        if asking and not click.confirm("Make this runs root yours?", err=True):
            err("Nothing was changed.")
            return
        adopt(path)
    facts = {"runs": str(path), "state": state, "statuses": dict(found.statuses)}
    session.say_done(facts, f"{one_line(session.shown(path))} {done}.")


def _inventory_lines(found: Inventory) -> Iterator[str]:
    yield f"runs root {one_line(str(found.path))}: {count(found.runs, 'run')}"
    for status, number in sorted(found.statuses.items()):
        yield f"  {status}: {number}"
    if found.unreadable:
        yield f"  unreadable: {found.unreadable}"
    if found.others:
        more = len(found.others) - _MOST_NAMES
        names = ", ".join(one_line(name) for name in found.others[:_MOST_NAMES])
        yield f"  other entries: {names}{f' and {more} more' if more > 0 else ''}"


# -- Ask the person whether to trust a directory, with a list of what trust covers.


T = TypeVar("T")
_MOST_QUESTIONS = 2
"""An agent and the servers that it names may come with two directories."""
_LEAST_WIDTH = 40
SIGN_COLOURS = {"+": "green", "-": "red"}


def with_trust(session: Session, act: Callable[[], T]) -> T:
    """Call `act`; if it raises NotTrusted, ask the person and call it again after a yes.

    The refusal comes before anything is created, so calling it again repeats nothing.

    Raises:
        NotTrusted: there is no terminal to ask at, or the answer is no.
        BadArgument: there is too much to show.
    """
    for _ in range(_MOST_QUESTIONS):
        try:
            return act()
        except NotTrusted as doubt:
            if not session.can_ask or session.settings.is_of_a_run:
                raise
            covered = coverage(session.settings, doubt.project)
            err("\n".join([f"{one_line(doubt.why)}.", *coverage_lines(covered, asking=True)]))
            if not click.confirm("Trust this directory?", err=True):
                raise
            trust_now(session.settings, covered)
    return act()


def coverage_lines(covered: Coverage, *, asking: bool) -> list[str]:
    """Return the lines that list what trust in a directory covers: all of it, or why that is too much.

    A long line is folded, its further pieces deeper than any line begins: no value can look like two.

    Raises:
        BadArgument: the person is to be asked, and there is too much to show.
    """
    if covered.too_much is not None:
        if asking:
            raise BadArgument(covered.too_much)
        return [covered.too_much]
    agents = ", ".join(map(one_line, covered.agents)) or "none yet"
    begin = "What has changed in" if covered.is_trusted else "To be trusted:"
    lines = [f"{begin} {one_line(str(covered.project))}", f"  agents: {agents}"]
    for change in covered.changes:
        shown = one_line(change)
        lines.append(f"  {coloured(shown, SIGN_COLOURS.get(shown[0]))}")
    if not covered.is_trusted:
        lines.append(
            "  Prompts and tools may change later; what starts a program or sends a key elsewhere asks again."
        )
    width = max(_LEAST_WIDTH, line_width())
    return [piece for line in lines for piece in folded(line, width, "      ")] if has_person() else lines
