"""`subagent doctor`: check agent files, or the files of runs."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from subagent_server.catalog.loading import load_file
from subagent_server.catalog.problems import AgentFileError, Problem
from subagent_server.cli.console.complete import complete_agents
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import TEXT, json_option
from subagent_server.cli.console.http_options import EVERYBODY
from subagent_server.cli.console.output import err, last_clause, out, out_json, report
from subagent_server.cli.console.problems import problem_line, problem_wire
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import one_line
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import SubagentError
from subagent_server.host.process_scan import with_words
from subagent_server.sandbox.trial import outlook
from subagent_server.service.check_agent import AgentChecker, CheckedAgent
from subagent_server.service.context import warm_start
from subagent_server.service.doctor import NOT_SETTLED, Defect, examine
from subagent_server.service.hooks import hooks_for_run
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import observe
from subagent_server.service.unsupported import why_no_commit
from subagent_server.service.worktree_end import open_worktree
from subagent_server.store.log_format import count

_EVERY_RUN = "*"
"""The value of a bare `--runs`; no run id can be this."""
_REMARKS = frozenset({"warning", "skipped", "shadowed"})
"""Kinds of problems that are listed and need no repair."""


@click.command()
@click.argument("name", required=False, type=TEXT, metavar="[AGENT|FILE]", shell_complete=complete_agents)
@click.option(
    "--runs",
    "run",
    is_flag=False,
    flag_value=_EVERY_RUN,
    metavar="[RUN]",
    help="Check runs instead: this one, or all. (Where runs are kept is said before the verb: "
    "subagent --runs DIR doctor --runs.)",
)
@json_option
@pass_session
def doctor(session: Session, name: str | None, run: str | None, as_json: bool) -> ExitCode:
    """Find what is wrong with agent files, or with runs.

    Without arguments all agent files, and how runs will be started; else AGENT or FILE. With --runs every
    run, or RUN: its steps, its questions, its result, its journal, its processes, and that no secret of this
    environment stands in it. Exits with 0 if there is no finding, else with 1 and a line for each; warnings
    do not count.
    """
    if run is not None:
        if name is not None:
            raise click.UsageError("AGENT or FILE is for agents and --runs is for runs: give one of them.")
        return _check_runs(session, run, as_json)
    if name is not None:
        return _check_agents(session, *_named(session, name), as_json)
    agents, problems = session.service.registry.agents(), session.service.registry.catalog().problems
    surroundings = _Surroundings(
        _warm_start(session),
        outlook(session.settings.environment),
        hooks_for_run(session.settings)[1],
        with_words(b"serve", b"--no-token"),
        _open_worktrees(session),
    )
    return _check_agents(session, agents, problems, as_json, surroundings)


@dataclass(frozen=True)
class _Surroundings:
    """How runs will be started here, where their programs will work, and why hooks are not called."""

    warm_start: str
    sandbox: str
    unusable_hooks: list[str]
    open_servers: list[int]
    """The pids of this user's servers that need no token (`serve --no-token`)."""
    open_worktrees: dict[str, str]
    """Why the worktrees of ended runs could not be settled yet, by run."""


def _open_worktrees(session: Session) -> dict[str, str]:
    store, found = session.service.store, {}
    for run_id in store.live_ids():
        if open_worktree(store, run_id) is not None:
            with suppress(SubagentError):
                observe(store, run_id, session.caller)  # it may be settled now
            if (why := open_worktree(store, run_id)) is not None:
                found[run_id] = why
    return found


def _warm_start(session: Session) -> str:
    """Return where the zygote is looked for, and the reason if starts are plain."""
    warm = warm_start(session.settings)
    if warm is None:
        return "starts are plain: SUBAGENT_WARM is 0"
    return f"{warm.directory}: {warm.outlook()}"


# -- runs


def _check_runs(session: Session, name: str, as_json: bool) -> ExitCode:
    findings: list[Defect] = []
    run_ids = _run_ids(session, name)
    store = session.service.store.kept_open()
    for run_id in run_ids:
        for finding in examine(store, run_id, session.settings.environment):
            findings.append(finding)
            if not as_json:
                out(one_line(f"{finding.run_id}: {finding.what}"))
    if as_json:
        out_json(
            {"checked": len(run_ids), "findings": [{"runId": f.run_id, "what": f.what} for f in findings]}
        )
    else:
        err(_summary(len(run_ids), "run", len(findings)))
    if (foreign := session.service.store.paths.foreign()) is not None:
        report(foreign.sentence, code=foreign.code, next_step=last_clause(foreign.sentence))
    return ExitCode.FAILED if findings else ExitCode.OK


def _run_ids(session: Session, name: str) -> list[str]:
    """Return the runs to check, oldest first: the named run, or all that the caller may open."""
    if name != _EVERY_RUN:
        if (session.settings.cwd / name).is_dir() and name not in session.service.store.run_ids():
            command = f"subagent --runs {one_line(name)} doctor --runs"
            raise click.UsageError(f"after `doctor`, --runs names a run: `{command}` checks another root.")
        run_id = session.run_id(name)
        open_run(session.service, run_id, session.caller)
        return [run_id]
    return list(_open_to_caller(session, session.service.store.run_ids(newest_first=False)))


def _open_to_caller(session: Session, run_ids: Iterable[str]) -> Iterator[str]:
    caller = session.caller
    for run_id in run_ids:
        try:
            if caller.may_open(session.service.store.read(run_id)):
                yield run_id
        except SubagentError:
            if not caller.is_child:  # a state that cannot be read is a finding
                yield run_id


# -- agent files


def _of_file(path: Path) -> tuple[list[AgentDefinition], list[Problem]]:
    try:
        loaded = load_file(path)
    except AgentFileError as error:  # a file that is named is meant as an agent
        return [], [Problem(path, error.line, "error", error.reason)]
    name = loaded.definition.name
    return [loaded.definition], [
        Problem(path, note.line, note.kind, note.reason, name) for note in loaded.notes
    ]


def _named(session: Session, name: str) -> tuple[list[AgentDefinition], list[Problem]]:
    """Return what FILE holds, or the AGENT of this name with what is known of its files.

    Raises:
        UnknownAgent: there is no such agent, and the name is not like that of a file.
    """
    catalog = session.service.registry.catalog()
    path, agent = session.settings.cwd / name, catalog.find(name)
    if _is_file(path) or len(Path(name).parts) > 1 or (path.suffix and agent is None):
        return _of_file(path)
    known_as = name if agent is None else agent.name
    problems = [each for each in catalog.problems if known_as == (each.agent or each.path.stem)]
    if agent is not None:
        return [agent], problems
    if all(problem.kind in _REMARKS for problem in problems):
        return [catalog.require(name)], []
    return [], problems


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no file has such a name
        return False


def _check_agents(
    session: Session,
    agents: list[AgentDefinition],
    problems: list[Problem],
    as_json: bool,
    around: _Surroundings | None = None,
) -> ExitCode:
    checker = AgentChecker(session.service)
    # The faults of a file are listed already, each with its line.
    checked = [checker.check(agent, asks_program=True) for agent in agents]
    every = [*problems, *(found for each in checked for found in _problems(each))]
    servers = [
        {"agent": each.agent.name, "server": name, "works": place.works, "why": str(place)}
        for each in checked
        for name, place in checker.server_places(each).items()
    ]
    findings = sum(problem.kind not in _REMARKS for problem in every)
    findings += len(around.unusable_hooks) + len(around.open_worktrees) if around is not None else 0
    if as_json:
        wire = {
            "checked": len(agents),
            "problems": [problem_wire(problem) for problem in every],
            "servers": servers,
        }
        out_json(wire if around is None else {**wire, **_wire(around)})
    else:
        if around is not None:
            err(one_line(f"Warm start: {around.warm_start}."))
            err(one_line(f"Sandbox: {around.sandbox}."))
            for sentence in around.unusable_hooks:
                out(one_line(f"Hooks: {sentence}"))
            for run_id, why in around.open_worktrees.items():
                out(one_line(f"{run_id}: {NOT_SETTLED}: {why}"))
            for pid in around.open_servers:
                err(f"HTTP: server {pid} runs with --no-token. {EVERYBODY}")
        for server in servers:
            err(one_line(f"MCP server {server['server']} of {server['agent']} works {server['why']}."))
        for problem in every:
            out(problem_line(session, problem))
        warnings = sum(problem.kind == "warning" for problem in every)
        err(_summary(len(agents), "agent", findings, warnings))
    return ExitCode.FAILED if findings else ExitCode.OK


def _wire(around: _Surroundings) -> dict[str, object]:
    return {
        "warmStart": around.warm_start,
        "sandbox": around.sandbox,
        "unusableHooks": around.unusable_hooks,
        "serversWithoutToken": around.open_servers,
        "openWorktrees": around.open_worktrees,
    }


def _problems(checked: CheckedAgent) -> Iterator[Problem]:
    """Yield what a start would refuse, be without, or not trust."""
    agent = checked.agent
    path = agent.source or Path(agent.name)
    for refusal in checked.refusals:
        if refusal.key is not None:
            yield Problem(path, checked.line_of(refusal.key), "fault", refusal.sentence, agent.name)
    for key, sentence in checked.missing.items():
        yield Problem(path, checked.line_of(key), "warning", sentence, agent.name)
    prompts, _ = _of_file(path)  # those of a listing are left out of it
    for told in filter(None, map(why_no_commit, prompts)):
        yield Problem(path, None, "warning", told, agent.name)
    if checked.doubt is not None:
        yield Problem(path, None, "warning", f"not trusted: {checked.doubt.remark}", agent.name)


def _summary(checked: int, what: str, wrong: int, warnings: int = 0) -> str:
    found = [count(wrong, "finding")] if wrong else []
    found += [count(warnings, "warning")] if warnings else []
    return f"{count(checked, what)} checked: {', '.join(found) or 'nothing is wrong'}."
