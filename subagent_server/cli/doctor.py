"""`subagent doctor`: check agent files, or the files of runs."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from subagent_server.agents.formats import load_file
from subagent_server.agents.yaml_reader import AgentFileError, Problem
from subagent_server.cli.agents import problem_line, problem_wire
from subagent_server.cli.console.app import (
    Session,
    complete_agents,
    complete_runs,
    json_session,
    last_clause,
    report,
)
from subagent_server.cli.console.option_types import PATH_TEXT, TEXT
from subagent_server.cli.console.terminal import ExitCode, err, one_line, out, out_json
from subagent_server.cli.serve import EVERYBODY
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import SubagentError, UnreadableMeta
from subagent_server.run.journal import count
from subagent_server.run.processes import with_words
from subagent_server.sandbox.verify import outlook
from subagent_server.settings import state_directory_of
from subagent_server.verbs.check_agent import AgentChecker, CheckedAgent
from subagent_server.verbs.check_nodes import check_nodes
from subagent_server.verbs.examine import NOT_SETTLED, examine
from subagent_server.verbs.live_runs import why_none_enters, written_directories
from subagent_server.verbs.own_settings import hooks_for_run
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.run_worktree import open_worktree
from subagent_server.verbs.service import warm_start

_EVERY_RUN = "*"
"""The value of a bare `--runs`; no run id can be this."""
_REMARKS = frozenset({"warning", "skipped", "shadowed"})
"""Kinds of problems that are listed and need no repair."""


def _complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the agents whose name begins so, else the beginning of a path."""
    return complete_agents(ctx, param, incomplete) or PATH_TEXT.shell_complete(ctx, param, incomplete)


@click.command()
@click.argument("name", required=False, type=TEXT, metavar="[AGENT|FILE]", shell_complete=_complete_name)
@click.option(
    "--runs",
    "run",
    is_flag=False,
    flag_value=_EVERY_RUN,
    metavar="[RUN]",
    shell_complete=complete_runs,
    help="Check runs instead: this one, or all. (Where runs are kept is said before the verb: "
    "subagent --runs DIR doctor --runs.)",
)
@click.option("--nodes", is_flag=True, help="Check, by a job on each, the nodes that --launcher leads to.")
@json_session
def doctor(session: Session, name: str | None, run: str | None, nodes: bool) -> ExitCode:
    """Find what is wrong with agent files, with runs, or with the nodes of a cluster.

    Without arguments all agent files, and how runs will be started; else AGENT or FILE. With --runs every
    run, or RUN: its steps, its questions, its result, its journal, its processes, and that no secret of this
    environment is in it. Exits with 0 if there is no finding, else with 1 and a line for each; warnings
    do not count.
    """
    if (name is not None) + (run is not None) + nodes > 1:
        raise click.UsageError("AGENT or FILE is for agents, --runs for runs, --nodes for nodes: give one.")
    if nodes:
        return _check_nodes(session)
    if run is not None:
        return _check_runs(session, run)
    if name is not None:
        return _check_agents(session, *_named(session, name), {})
    registry, settings = session.service.registry, session.settings
    warm = warm_start(settings)
    plain = "starts are plain: SUBAGENT_WARM is 0"
    unnoted = why_none_enters(state_directory_of(settings.environment))
    surroundings = {
        "warmStart": plain if warm is None else f"{warm.directory}: {warm.outlook()}",
        "sandbox": outlook(settings.environment, written_directories(settings)),
        "unusableState": [] if unnoted is None else [unnoted],
        "unusableHooks": hooks_for_run(settings)[1],
        "serversWithoutToken": with_words(b"serve", b"--no-token"),
        "openWorktrees": _open_worktrees(session),
    }
    return _check_agents(session, registry.agents(), registry.catalog().problems, surroundings)


def _open_worktrees(session: Session) -> dict[str, str]:
    """Return why the worktrees of ended runs could not be settled yet, by run."""
    store, found = session.service.store, {}
    for run_id in store.live_ids():
        if open_worktree(store, run_id) is not None:
            with suppress(SubagentError):
                observe(store, run_id, session.caller)  # it may be settled by now
            if (why := open_worktree(store, run_id)) is not None:
                found[run_id] = why
    return found


# -- runs


def _check_runs(session: Session, name: str) -> ExitCode:
    run_ids = _run_ids(session, name)
    store, findings = session.service.store, []
    for finding in examine(store, run_ids, session.settings.environment):
        findings.append({"runId": finding.run_id, "what": finding.what})
        if not session.as_json:
            out(one_line(f"{finding.run_id}: {finding.what}"))
    facts = {"checked": len(run_ids), "findings": findings}
    session.say_done(facts, _summary(len(run_ids), "run", len(findings)))
    if (foreign := session.service.store.paths.foreign()) is not None:
        report(foreign.sentence, code=foreign.code, next_step=last_clause(foreign.sentence))
    return ExitCode.FAILED if findings else ExitCode.OK


def _run_ids(session: Session, name: str) -> list[str]:
    """Return the runs to check, oldest first: the named run, or all that the caller may open."""
    store = session.service.store
    if name != _EVERY_RUN:
        if (session.settings.cwd / name).is_dir() and name not in store.run_ids():
            command = f"subagent --runs {one_line(name)} doctor --runs"
            raise click.UsageError(f"after `doctor`, --runs names a run: `{command}` checks another root.")
        run_id = session.run_id(name)
        with suppress(UnreadableMeta):  # a finding, as among all runs
            session.open_run(run_id)
        return [run_id]
    run_ids = store.run_ids()[::-1]
    if session.caller.is_child:
        return [meta.run_id for meta in store.readable(run_ids) if session.caller.may_open(meta)]
    return run_ids


# -- nodes


def _check_nodes(session: Session) -> ExitCode:
    reports = []
    for each in check_nodes(session.service):
        reports.append(each)
        if not session.as_json:
            out(one_line(f"{each.node}: {'; '.join(filter(None, [*each.faults, each.words]))}"))
    findings = sum(len(each.faults) for each in reports)
    facts = {"checked": len(reports), "nodes": list(map(asdict, reports))}
    session.say_done(facts, _summary(len(reports), "node", findings))
    return ExitCode.FAILED if findings else ExitCode.OK


# -- agent files


def _of_file(path: Path) -> tuple[list[AgentDefinition], list[Problem]]:
    try:
        loaded = load_file(path)
    except AgentFileError as error:  # a file that is named is meant as an agent
        return [], [Problem(path, error.line, "error", error.reason)]
    return [loaded.definition], loaded.problems


def _named(session: Session, name: str) -> tuple[list[AgentDefinition], list[Problem]]:
    """Return what FILE holds, or the AGENT of this name with what is known of its files.

    Raises:
        UnknownAgent: there is no such agent, and the name is not like that of a file.
    """
    catalog = session.service.registry.catalog()
    path, agent = session.settings.cwd / name, catalog.find(name)
    is_file = False
    with suppress(OSError, ValueError):  # it cannot be the name of a file
        is_file = path.is_file()
    if is_file or (agent is None and (path.suffix or len(Path(name).parts) > 1)):
        return _of_file(path)
    known_as = name if agent is None else agent.name
    problems = [each for each in catalog.problems if known_as == (each.agent or each.path.stem)]
    if agent is not None:
        return [agent], problems
    if all(problem.kind in _REMARKS for problem in problems):
        return [catalog.require(name)], []
    return [], problems


def _check_agents(
    session: Session,
    agents: list[AgentDefinition],
    problems: list[Problem],
    around: dict[str, Any],
) -> ExitCode:
    checker = AgentChecker(session.service)
    # The faults of a file are listed already, each with its line.
    checked = [checker.check(agent, asks_program=True) for agent in agents]
    problems = [*problems, *(found for each in checked for found in _problems(each))]
    servers = [
        {"agent": each.agent.name, "server": name, "works": location.works, "why": str(location)}
        for each in checked
        for name, location in checker.server_locations(each).items()
        if all(refusal.key != f"mcpServers.{name}" for refusal in each.refusals)  # it does not start at all
    ]
    findings = sum(problem.kind not in _REMARKS for problem in problems)
    findings += sum(len(around.get(key, ())) for key in ("unusableState", "unusableHooks", "openWorktrees"))
    if session.as_json:
        shown = {"problems": [problem_wire(problem) for problem in problems], "servers": servers}
        out_json({"checked": len(agents), **shown, **around})
        return ExitCode.FAILED if findings else ExitCode.OK
    if around:
        err(one_line(f"Warm start: {around['warmStart']}."))
        err(one_line(f"Sandbox: {around['sandbox']}."))
    for sentence in around.get("unusableState", ()):
        out(one_line(f"State: {sentence}"))
    for sentence in around.get("unusableHooks", ()):
        out(one_line(f"Hooks: {sentence}"))
    for run_id, why in around.get("openWorktrees", {}).items():
        out(one_line(f"{run_id}: {NOT_SETTLED}: {why}"))
    for pid in around.get("serversWithoutToken", ()):
        err(f"HTTP: the server with the pid {pid} runs with --no-token. {EVERYBODY}")
    for server in servers:
        err(one_line(f"MCP server {server['server']} of {server['agent']} works {server['why']}."))
    for line in _grouped(session, problems):
        out(line)
    warnings = sum(problem.kind == "warning" for problem in problems)
    err(_summary(len(agents), "agent", findings, warnings))
    return ExitCode.FAILED if findings else ExitCode.OK


def _problems(checked: CheckedAgent) -> Iterator[Problem]:
    """Yield what a start would refuse, be without, or not trust."""
    agent = checked.agent
    path = agent.source or Path(agent.name)
    for refusal in checked.refusals:
        if refusal.key is not None:
            yield Problem(path, checked.line_of(refusal.key), "fault", refusal.sentence, agent.name)
    for key, sentence in checked.missing.items():
        yield Problem(path, checked.line_of(key), "warning", sentence, agent.name)
    if checked.doubt is not None:
        yield Problem(path, None, "warning", f"not trusted: {checked.doubt.remark}", agent.name)


def _grouped(session: Session, problems: list[Problem]) -> Iterator[str]:
    """Yield what several agents have in common once, with their number; the rest by file, faults first."""
    by_reason: dict[tuple[bool, str, str], list[Problem]] = defaultdict(list)
    alone: list[Problem] = []
    for each in problems:
        reason = each.reason.replace(f"agent {each.agent} ", "each ", 1)
        same = by_reason[each.kind in _REMARKS, each.kind, reason] if each.line is None else alone
        same.append(each)
    for (_, kind, reason), same in sorted(by_reason.items()):
        if len(same) > 1:
            yield one_line(f"{len(same)} agents: {kind}: {reason}")
        else:
            alone += same
    alone.sort(key=lambda each: (each.path, each.kind in _REMARKS, each.line or 0))
    yield from (problem_line(session, each) for each in alone)


def _summary(checked: int, what: str, wrong: int, warnings: int = 0) -> str:
    found = [count(wrong, "finding")] if wrong else []
    found += [count(warnings, "warning")] if warnings else []
    return f"{count(checked, what)} checked: {', '.join(found) or 'nothing is wrong'}."
