"""`subagent agents`: list the agents, and the files that cannot be used, with the reason."""

from typing import Any

import click

from subagent_server.catalog.problems import Problem
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.problems import problem_line, problem_wire
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import GAP, coloured, one_line, table
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.service.trusting import Judge
from subagent_server.service.unsupported import refusals

_LIMITS = (24, 40)
_BREAKING = frozenset({"error", "duplicate", "fault"})


@click.command()
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 2 if a file cannot be used or runs of an agent would be refused.",
)
@json_option
@pass_session
def agents(session: Session, strict: bool, as_json: bool) -> ExitCode:
    """List the agents and the faults of their files.

    No file is left out silently: a file that cannot be used is listed with its line and the reason.
    """
    registry, judge = session.service.registry, Judge(session.service)
    found, problems = registry.agents(), registry.catalog().problems
    if as_json:
        wire = [{**_wire(agent), "trusted": judge.doubt(agent) is None} for agent in found]
        out_json({"agents": wire, "problems": [problem_wire(p) for p in problems]})
    else:
        _print(session, judge, found, problems)
    broken = any(p.kind in _BREAKING for p in problems) or any(refusals(agent) for agent in found)
    return ExitCode.USAGE if strict and broken else ExitCode.OK


def _print(session: Session, judge: Judge, found: list[AgentDefinition], problems: list[Problem]) -> None:
    rows = [_cells(session, agent) for agent in found]
    lines: list[str] = []
    for agent, line in zip(found, table(rows, _LIMITS), strict=True):
        lines += [line, *(f"{GAP}{coloured('✘ refused:', 'red')} {one_line(why)}" for why in refusals(agent))]
        if (doubt := judge.doubt(agent)) is not None:
            lines.append(f"{GAP}{coloured('! not trusted:', 'yellow')} {one_line(doubt.remark)}")
    if problems:
        lines += ["", "PROBLEMS"] if lines else ["PROBLEMS"]
        lines += [problem_line(session, problem) for problem in problems]
    if lines:
        out("\n".join(lines))
    if not found:
        where = ", ".join(session.shown(path) for path in session.service.settings.agent_directories)
        err(f"No agents in {one_line(where)}: write agents/NAME.md, or name a directory with --agents.")


def _cells(session: Session, agent: AgentDefinition) -> tuple[str, ...]:
    source = "" if agent.source is None else session.shown(agent.source)
    return (one_line(agent.name), one_line(source), one_line(agent.description))


def _wire(agent: AgentDefinition) -> dict[str, Any]:
    return {
        "name": agent.name,
        "tool": agent.tool_name,
        "description": agent.description,
        "file": None if agent.source is None else str(agent.source),
        "runner": agent.runner,
        "model": agent.model,
        "refusals": refusals(agent),
        "warnings": agent.warnings,
    }
