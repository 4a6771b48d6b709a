"""`subagent compare`: two runs side by side."""

import json
from collections.abc import Iterator

import click

from subagent_server.cli.console.app import Session, complete_runs, pass_session
from subagent_server.cli.console.output import json_option, out, out_json
from subagent_server.cli.console.show_text import run_cell
from subagent_server.cli.console.terminal import (
    GAP,
    UNKNOWN,
    duration,
    escape_lines,
    line_width,
    look_of,
    one_line,
    table,
)
from subagent_server.run.states import dollars, least_mark
from subagent_server.verbs.list_runs import RunTotals, run_totals

_NAMES = 18
"""Columns of the names of the figures; the two runs share the rest of the line."""


@click.command()
@click.argument("first", metavar="A", shell_complete=complete_runs)
@click.argument("second", metavar="B", shell_complete=complete_runs)
@json_option
@pass_session
def compare(session: Session, first: str, second: str, as_json: bool) -> None:
    """Show two runs side by side: how they ended, their turns and tools, tokens, cost, time and results.

    Tokens and cost are those of the whole tree of a run. A number that is not known is `-`, and a sum of
    which a part is not known has a ≥.
    """
    a, b = (run_totals(session.service, session.open_run(session.run_id(name))) for name in (first, second))
    same = a.result == b.result
    if as_json:
        out_json({"runs": [a.to_wire(), b.to_wire()], "sameResult": same})
        return
    each = (line_width() - _NAMES) // 2 - len(GAP)
    out("\n".join(table([*_rows(a, b)], (_NAMES, each))))
    out("")
    out("\n".join(_results(a, b)) if not same else f"Both have this result:\n{_result(a)}")


def _rows(a: RunTotals, b: RunTotals) -> Iterator[tuple[str, str, str]]:
    yield "", run_cell(a.run_id), run_cell(b.run_id)
    yield "agent", one_line(a.agent), one_line(b.agent)
    yield "model", _model(a), _model(b)
    yield "status", _status(a), _status(b)
    yield "time", duration(a.seconds), duration(b.seconds)
    yield "cost", _cost(a), _cost(b)
    yield "turns", _count(a.turns), _count(b.turns)
    for name in ("input", "output", "cache read", "cache write"):
        yield f"{name} tokens", _tokens(a, name), _tokens(b, name)
    yield "tool calls", _count(a.tool_calls), _count(b.tool_calls)
    for tool in dict.fromkeys([*a.tools, *b.tools]):
        yield f"  {one_line(tool)}", _count(a.tools.get(tool, 0)), _count(b.tools.get(tool, 0))


def _model(run: RunTotals) -> str:
    return f"{one_line(run.model or UNKNOWN)}{' (a script)' if run.scripted else ''}"


def _status(run: RunTotals) -> str:
    error = f": {one_line(run.error.code)}" if run.error is not None else ""
    return f"{look_of(run.status, 0, None if run.status.is_terminal else True).text}{error}"


def _cost(run: RunTotals) -> str:
    if run.cost_usd is None:
        return UNKNOWN
    return least_mark(run.at_least or (), "costUsd") + dollars(run.cost_usd)


def _tokens(run: RunTotals, kind: str) -> str:
    first, _, second = kind.partition(" ")
    mark = least_mark(run.at_least or (), f"{first}{second.capitalize()}Tokens")
    number = getattr(run, f"{kind.replace(' ', '_')}_tokens")
    return UNKNOWN if number is None else mark + _count(number)


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _results(a: RunTotals, b: RunTotals) -> Iterator[str]:
    for run in (a, b):
        yield f"Result of {run.run_id}:\n{_result(run)}\n"


def _result(run: RunTotals) -> str:
    """Return the result of a run; of one that failed without any, its error."""
    if run.result is None:
        return UNKNOWN if run.error is None else one_line(f"{run.error.code}: {run.error.message}")
    if isinstance(run.result, str):
        return escape_lines(run.result)
    return escape_lines(json.dumps(run.result, ensure_ascii=False, indent=2))
