"""`subagent trust`: trust the agents and MCP servers of a directory, or take over a runs root."""

from collections.abc import Iterator
from pathlib import Path

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.asking import coverage_lines
from subagent_server.cli.console.output import (
    DIRECTORY,
    EarlyExit,
    ExitCode,
    err,
    has_person,
    json_option,
    out,
    out_json,
)
from subagent_server.cli.console.terminal import one_line
from subagent_server.run.states import timestamp
from subagent_server.verbs.trust_check import (
    Coverage,
    Inventory,
    adopt,
    check_may_trust,
    coverage,
    forget,
    read_trust_file,
    take_inventory,
)
from subagent_server.verbs.trust_check import trust as trust_now

_HERE = Path()
_MOST_NAMES = 5


@click.command()
@click.argument("directory", required=False, type=DIRECTORY, metavar="[DIR]")
@click.option("--list", "is_list", is_flag=True, help="List the directories that are trusted.")
@click.option("--remove", "is_removal", is_flag=True, help="Trust DIR no more.")
@click.option("--yes", "-y", is_flag=True, help="Trust without asking.")
@json_option
@pass_session
def trust(
    session: Session, directory: Path | None, is_list: bool, is_removal: bool, yes: bool, as_json: bool
) -> int:
    """Trust the agents and MCP servers that come with a directory.

    DIR is where agents/, .claude/agents/ or .mcp.json lie; without it, where you stand. What it covers is
    shown first. Later changes of prompts and tools need nothing more; what starts a program or sends a key
    elsewhere has to be trusted again when it changes. Without a terminal, to name DIR is the yes.

    With --runs DIR: make a runs root yours that was not made here, or by an earlier version. What is in it is
    shown first.
    """
    if session.named_root is not None:
        if directory or is_list or is_removal:
            raise click.UsageError("--runs names a runs root, which is trusted alone: leave the rest out.")
        check_may_trust(session.settings)
        return _adopt(session, session.named_root, yes=yes, as_json=as_json)
    if is_list and (directory or is_removal):
        raise click.UsageError("--list lists all of them: leave the rest out.")
    if is_list:
        return _list(session, as_json)
    check_may_trust(session.settings)
    asking = not (yes or as_json) and has_person()
    if directory is None and (is_removal or not (yes or asking)):
        raise click.UsageError("name the directory: subagent trust DIR.")
    if is_removal:
        return _remove(session, directory or _HERE, as_json)
    return _trust(session, coverage(session.settings, directory or _HERE), asking, as_json)


def _trust(session: Session, covered: Coverage, asking: bool, as_json: bool) -> int:
    if covered.is_new and not as_json:
        for line in coverage_lines(covered, asking=asking):
            out(line)
    if covered.is_new and asking and not click.confirm("Trust this directory?", err=True):
        err("Nothing was changed.")
        return ExitCode.OK
    if covered.is_new:
        trust_now(session.settings, covered)
    if as_json:
        state = "trusted" if covered.is_new else "current"
        out_json({"directory": str(covered.project), "state": state, "changes": covered.changes})
    else:
        done = "is trusted" if covered.is_new else "is trusted already: nothing to do"
        err(f"{one_line(str(covered.project))} {done}.")
    return ExitCode.OK


def _remove(session: Session, directory: Path, as_json: bool) -> int:
    if not forget(session.settings, directory):
        raise EarlyExit(
            ExitCode.UNKNOWN,
            f"{directory} is not trusted. `subagent trust --list` shows the trusted directories.",
        )
    if as_json:
        out_json({"directory": str(directory), "state": "removed"})
    else:
        err(f"{one_line(str(directory))} is trusted no more.")
    return ExitCode.OK


def _list(session: Session, as_json: bool) -> int:
    trusted = read_trust_file(session.settings.trust_file)
    if trusted.trouble is not None:
        raise EarlyExit(ExitCode.ENVIRONMENT, trusted.trouble)
    since = {name: timestamp(project.trusted_at) for name, project in sorted(trusted.projects.items())}
    if as_json:
        out_json({"directories": [{"directory": name, "trustedAt": at} for name, at in since.items()]})
        return ExitCode.OK
    for name, at in since.items():
        out(f"{at}  {one_line(name)}")
    if not since:
        err("No directory is trusted.")
    return ExitCode.OK


# -- a runs root


def _adopt(session: Session, path: Path, *, yes: bool, as_json: bool) -> int:
    """Show the contents of the runs root at `path`, ask if there is a terminal, and make it the user's.

    Raises:
        BadArgument, ForeignRoot, StorageFailed.
    """
    found = take_inventory(path)
    if not found.is_ours and not as_json:
        for line in _inventory_lines(found):
            out(line)
        asking = not yes and has_person()
        if asking and not click.confirm("Make this runs root yours?", err=True):
            err("Nothing was changed.")
            return ExitCode.OK
    if not found.is_ours:
        adopt(path)
    if as_json:
        state = "current" if found.is_ours else "trusted"
        out_json({"runs": str(path), "state": state, "statuses": dict(found.statuses)})
    else:
        done = "is yours already: nothing to do" if found.is_ours else "is yours"
        err(f"{one_line(session.shown(path))} {done}.")
    return ExitCode.OK


def _inventory_lines(found: Inventory) -> Iterator[str]:
    yield f"runs root {one_line(str(found.path))}: {found.runs} {'run' if found.runs == 1 else 'runs'}"
    for status, number in sorted(found.statuses.items()):
        yield f"  {status}: {number}"
    if found.unreadable:
        yield f"  unreadable: {found.unreadable}"
    if found.others:
        more = len(found.others) - _MOST_NAMES
        names = ", ".join(one_line(name) for name in found.others[:_MOST_NAMES])
        yield f"  other entries: {names}{f' and {more} more' if more > 0 else ''}"
