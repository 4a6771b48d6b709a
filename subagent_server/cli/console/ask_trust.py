"""Ask the person whether to trust a directory, with a list of what trust covers."""

from collections.abc import Callable
from typing import TypeVar

import click

from subagent_server.cli.console.asking import has_person
from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.output import err
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import folded, line_width, one_line
from subagent_server.domain.errors import BadArgument
from subagent_server.service.trusting import Coverage, NotTrusted, coverage, trust

T = TypeVar("T")

_MOST_QUESTIONS = 2
"""An agent and the servers that it names may come with two directories."""
_LEAST_WIDTH = 40
_COLOURS = {"+": "green", "-": "red"}


def with_trust(session: Session, act: Callable[[], T], *, may_ask: bool = True) -> T:
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
            if not (may_ask and has_person()) or session.settings.is_of_a_run:
                raise
            covered = coverage(session.settings, doubt.project)
            for line in coverage_lines(covered, asking=True):
                err(line)
            if not click.confirm("Trust this directory?", err=True):
                raise
            trust(session.settings, covered)
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
        lines.append(f"  {coloured(shown, _COLOURS[shown[0]]) if shown[0] in _COLOURS else shown}")
    if not covered.is_trusted:
        lines.append(
            "  Prompts and tools may change later; what starts a program or sends a key elsewhere asks again."
        )
    width = max(_LEAST_WIDTH, line_width())
    return [piece for line in lines for piece in folded(line, width, "      ")] if has_person() else lines
