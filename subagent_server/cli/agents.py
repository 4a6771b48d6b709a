"""`subagent agents` and `new`: list the agents with the faults of their files, or write a new one."""

from typing import Any

import click

from subagent_server.agents.formats import load_agent_file
from subagent_server.agents.known_names import MissingName
from subagent_server.agents.yaml_reader import Problem
from subagent_server.cli.console.app import Flags, Session, complete_agents, json_session
from subagent_server.cli.console.option_types import TEXT
from subagent_server.cli.console.terminal import GAP, ExitCode, coloured, err, one_line, out, out_json, table
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.verbs.check_agent import AgentChecker, CheckedAgent
from subagent_server.verbs.new_agent import new_agent

_LIMITS = (24, 40)
_BREAKING = frozenset({"error", "duplicate", "fault"})


@click.command()
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 2 if a file cannot be used or runs of an agent would be refused.",
)
@json_session
def agents(session: Session, strict: bool) -> ExitCode:
    """List the agents and the faults of their files.

    No file is left out silently: a file that cannot be used is listed with its line and the reason. An agent
    that is not ready lacks something here, such as a key or a program; its file may stay as it is.
    """
    registry, checker = session.service.registry, AgentChecker(session.service)
    found, problems = [checker.check(agent) for agent in registry.agents()], registry.catalog().problems
    if session.as_json:
        out_json({"agents": list(map(_wire, found)), "problems": [problem_wire(p) for p in problems]})
    else:
        _print(session, found, problems)
    broken = any(p.kind in _BREAKING for p in problems) or any(checked.refusals for checked in found)
    return ExitCode.USAGE if strict and broken else ExitCode.OK


def _print(session: Session, found: list[CheckedAgent], problems: list[Problem]) -> None:
    rows = [_cells(session, checked.agent) for checked in found]
    lines: list[str] = []
    first: dict[str, str] = {}
    for checked, line in zip(found, table(rows, _LIMITS), strict=True):
        lines.append(line)
        for refusal in checked.refusals:
            mark = coloured("✘ refused:", "red") if refusal.in_file else coloured("! not ready:", "yellow")
            lines.append(f"{GAP}{mark} {_once(first, checked.agent.name, refusal.sentence)}")
        for key, sentence in checked.missing.items():
            lines.append(f"{GAP}{coloured(f'! missing {key}:', 'yellow')} {one_line(sentence)}")
        if checked.doubt is not None:
            remark = _once(first, checked.agent.name, checked.doubt.remark)
            lines.append(f"{GAP}{coloured('! not trusted:', 'yellow')} {remark}")
    if problems:
        lines += ["", "PROBLEMS"] if lines else ["PROBLEMS"]
        lines += [problem_line(session, problem) for problem in problems]
    if lines:
        out("\n".join(lines))
    if not found:
        where = ", ".join(session.shown(path) for path in session.service.settings.agent_directories)
        err(
            f"No agents in {one_line(where)} (directories above are not searched): `subagent new NAME` "
            "writes one; --agents names others."
        )


def _once(first: dict[str, str], agent: str, sentence: str) -> str:
    """Return a sentence; instead of one that an agent above has too, the name of that agent."""
    above = first.setdefault(sentence.replace(f"agent {agent} ", "", 1), agent)
    return one_line(sentence if above == agent else f"as for {above}")


def _cells(session: Session, agent: AgentDefinition) -> tuple[str, ...]:
    source = "" if agent.source is None else session.shown(agent.source)
    return (one_line(agent.name), one_line(source), one_line(agent.description))


def _wire(checked: CheckedAgent) -> dict[str, Any]:
    agent = checked.agent
    return {
        "name": agent.name,
        "tool": agent.tool_name,
        "description": agent.description,
        "file": None if agent.source is None else str(agent.source),
        "runner": agent.runner,
        "model": agent.model,
        "refusals": [refusal.sentence for refusal in checked.refusals],
        "warnings": agent.warnings,
        "missingTools": _named(checked.missing_tools),
        "missingAgents": _named(checked.missing_agents),
        "missing": checked.missing,
        "trusted": checked.doubt is None,
    }


def _named(missing: list[MissingName]) -> list[dict[str, str | None]]:
    return [{"name": each.name, "nearest": each.nearest} for each in missing]


def problem_wire(problem: Problem) -> dict[str, Any]:
    """Return the JSON object of a problem."""
    return {
        "file": str(problem.path),
        "line": problem.line,
        "kind": problem.kind,
        "reason": problem.reason,
        "agent": problem.agent,
    }


def problem_line(session: Session, problem: Problem) -> str:
    """Return a problem on one line: file, line number, kind and reason."""
    line = "" if problem.line is None else f":{problem.line}"
    return one_line(f"{session.shown(problem.path)}{line}: {problem.kind}: {problem.reason}")


# -- Write the file of a new agent: `subagent new`.


_FIRST_TASK = "Where does this project say how it is built and tested?"


@click.command()
@click.argument("name", type=TEXT)
@click.option(
    "--from",
    "source",
    type=TEXT,
    metavar="AGENT",
    shell_complete=complete_agents,
    help="Copy this agent: one of yours, or reviewer, scout, timekeeper or triage, which come with subagent.",
)
@json_session
def new(session: Session, name: str, source: str | None) -> None:
    """Write the file of a new agent, agents/NAME.md, ready to run and to be edited.

    Nothing is replaced. If no other agent or MCP server comes with this directory, it is trusted, so that the
    agent runs at once.
    """
    session.check_is_user()
    made = new_agent(session.service, name, source)
    checked = AgentChecker(session.service).check(load_agent_file(made.path))
    if session.as_json:
        refusals = [refusal.sentence for refusal in checked.refusals]
        trusted = checked.doubt is None
        out_json({"agent": name, "file": str(made.path), "trusted": trusted, "refusals": refusals})
        return
    out(one_line(session.shown(made.path)))
    if made.is_trusted:
        err("This directory is trusted now: nothing else comes with it that starts or instructs a program.")
    if checked.doubt is not None:
        err(one_line(f"Not trusted: {checked.doubt.remark}"))
    for refusal in checked.refusals:
        err(one_line(f"Before it runs: {refusal.sentence}"))
    err("Edit it to make it yours; each run reads it anew, and so does a server that is running.")
    directories = click.get_current_context().ensure_object(Flags).agents
    named = [word for path in directories for word in ("--agents", str(path))]
    task = _FIRST_TASK if source is None else "What it should do"
    err(f"Next: {session.command('run', name, task, *named)}")
