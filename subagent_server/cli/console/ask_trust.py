"""Ask the person whether to trust a directory, with a list of what trust covers."""

from collections.abc import Callable
from typing import TypeVar

import click

from subagent_server.cli.console.asking import has_person
from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.output import err
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import one_line
from subagent_server.service.trusting import Coverage, NotTrusted, coverage, trust

T = TypeVar("T")

_MOST_QUESTIONS = 2
"""An agent and the servers that it names may come with two directories."""
_MAX_LINES = 200
_MAX_NAMES = 50
_COLOURS = {"+": "green", "-": "red"}


def with_trust(session: Session, act: Callable[[], T], *, may_ask: bool = True) -> T:
    """Call `act`; if it raises NotTrusted, ask the person and call it again after a yes.

    The refusal comes before anything is created, so calling it again repeats nothing.

    Raises:
        NotTrusted: there is no terminal to ask at, or the answer is no.
    """
    for _ in range(_MOST_QUESTIONS):
        try:
            return act()
        except NotTrusted as doubt:
            if not (may_ask and has_person()) or session.settings.is_of_a_run:
                raise
            covered = coverage(session.settings, doubt.project)
            for line in coverage_lines(covered):
                err(line)
            if not click.confirm("Trust this directory?", err=True):
                raise
            trust(session.settings, covered)
    return act()


def coverage_lines(covered: Coverage) -> list[str]:
    """Return the lines that list what trust in a directory covers."""
    agents = ", ".join(one_line(name) for name in covered.agents[:_MAX_NAMES]) or "none yet"
    agents += f" and {more:,} more" if (more := len(covered.agents) - _MAX_NAMES) > 0 else ""
    begin = "What has changed in" if covered.is_trusted else "To be trusted:"
    lines = [f"{begin} {one_line(str(covered.project))}", f"  agents: {agents}"]
    for change in covered.changes[:_MAX_LINES]:
        shown = one_line(change)
        lines.append(f"  {coloured(shown, _COLOURS[shown[0]]) if shown[0] in _COLOURS else shown}")
    if (more := len(covered.changes) - _MAX_LINES) > 0:
        lines.append(f"  and {more:,} more: read the files before you trust them.")
    if not covered.is_trusted:
        lines.append(
            "  Prompts and tools may change later; what starts a program or sends a key elsewhere asks again."
        )
    return lines
