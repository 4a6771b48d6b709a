"""`subagent eval`: its command, and its trials as a table, as JSON and as JUnit XML."""

import asyncio
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.asking import with_trust
from subagent_server.cli.console.follow import until_gone
from subagent_server.cli.console.output import (
    DIRECTORY,
    EarlyExit,
    ExitCode,
    err,
    json_option,
    out,
    out_json,
    trust_option,
)
from subagent_server.cli.console.show_text import run_cell
from subagent_server.cli.console.starting import script_file
from subagent_server.cli.console.terminal import GAP, UNKNOWN, duration, line_width, one_line, table
from subagent_server.extensions.evals.eval_file import EvalFile, reach_of, read_eval_file
from subagent_server.extensions.evals.trials import Evaluation, TrialResult
from subagent_server.run.states import dollars, least_mark
from subagent_server.verbs.scripts import PlayedScript
from subagent_server.verbs.trust_check import TrustCheck

DEFAULT_JOBS = 2
_HEADER = ("CASE", "AGENT", "MODEL", "PASS", "COST", "TIME")
_FIGURES = (7, 9, 8)
"""The columns of PASS, COST and TIME; the names share the rest of the line."""
_LEAST_OF_NAMES = 24
_REASON_CHARACTERS = 2_000

Key = tuple[str, str, str]


@click.command("eval")
@click.argument("file", type=DIRECTORY)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1, max=64),
    default=DEFAULT_JOBS,
    metavar="N",
    help=f"How many runs work at once.  [default: {DEFAULT_JOBS}]",
)
@click.option("--junit", type=DIRECTORY, metavar="OUT", help="Write the trials as JUnit XML into this file.")
@trust_option
@json_option
@pass_session
def eval_(session: Session, file: Path, jobs: int, junit: Path | None, as_json: bool) -> ExitCode:
    """Try the cases of FILE with their agents and models, and say how often each passes.

    FILE is YAML (`subagent schema eval`): cases with a prompt and what the result has to be: a JSON Schema, a
    pattern, a command that ends with 0, or what a judging agent says. Each is tried as an ordinary run, with
    each agent and model, so many times. 0 if all pass, 1 if not. Ctrl-C stops the runs that it has started.
    """
    session.check_is_user()
    path = session.settings.cwd / file
    if junit is not None and not (session.settings.cwd / junit).parent.is_dir():
        raise click.UsageError(f"the directory of {one_line(str(junit))} is not there: make it first.")
    read = read_eval_file(path)
    with_trust(session, lambda: _check(session, path, read), may_ask=not as_json)
    evaluation = Evaluation(session.service, read, path, _scripts(session, path, read), session.caller)
    results: list[TrialResult] = []

    def ended(result: TrialResult) -> None:
        results.append(result)
        err(progress_line(result))

    interrupted, stopped = False, list[str]()
    try:
        asyncio.run(evaluation.work(jobs, ended))
    except KeyboardInterrupt:
        interrupted = True
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    finally:
        stopped += evaluation.stop_active()
        until_gone(session, stopped)
    if junit is not None:
        (session.settings.cwd / junit).write_text(as_junit(file.name, results), encoding="utf-8")
    if as_json:
        out_json(as_wire(results))
    elif results:
        out(table_of(results))
    if interrupted:
        raise EarlyExit(
            ExitCode.INTERRUPTED, f"the evaluation has ended; of its runs {len(stopped)} were stopped."
        )
    return ExitCode.OK if all(result.passed for result in results) else ExitCode.FAILED


def _check(session: Session, path: Path, file: EvalFile) -> None:
    """Refuse the whole file, before the first run, for an agent or a command that may not be used.

    Raises:
        NotTrusted, UnknownAgent.
    """
    trust_check = TrustCheck(session.service)
    own = [name for case in file.cases for name in case.agents or file.agents]
    for name in dict.fromkeys([*own, *(judge.agent for judge in file.judges)]):
        trust_check.check(session.service.registry.get(name))
    trust_check.check_reach(*reach_of(path, file))


def _scripts(session: Session, path: Path, file: EvalFile) -> dict[str, PlayedScript]:
    """Return the scripts that the cases name. Raises ScriptError."""
    cases, judges = (case.script for case in file.cases), (judge.script for judge in file.judges)
    names = dict.fromkeys([*cases, *judges])
    found = {name: script_file(session, path.parent / name) for name in names if name is not None}
    return {name: script for name, script in found.items() if script is not None}


# -- the report


def progress_line(result: TrialResult) -> str:
    """Return a trial that has ended on one line, and the reasons below it if it failed."""
    name = " · ".join(one_line(part) for part in _key(result) if part != UNKNOWN)
    facts = f"{_time(result.seconds)}  {_cost([result])}"
    why = "".join(f"\n  {one_line(problem)}" for problem in result.problems)
    run = f"  {run_cell(result.run_id)}" if result.run_id is not None else ""
    return f"{'✔' if result.passed else '✘'} {name} #{result.trial.number}  {facts}{run}{why}"


def table_of(results: Sequence[TrialResult]) -> str:
    """Return a row for each case, agent and model: how many trials passed, their cost and mean time."""
    rows = [_HEADER, *(_row(*key, group) for key, group in _grouped(results).items())]
    rows.append(_row("all", "", "", results))
    gaps = len(GAP) * (len(_HEADER) - 1)
    room = max(_LEAST_OF_NAMES, line_width() - sum(_FIGURES) - gaps)
    return "\n".join(table(rows, (room * 2 // 5, room * 3 // 10, room * 3 // 10, *_FIGURES[:-1])))


def as_wire(results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return the same and each trial, for `--json`."""
    return {
        **_sums(results),
        "rows": [{**_names(key), **_sums(group)} for key, group in _grouped(results).items()],
        "runs": [_trial(result) for result in _in_order(results)],
    }


def as_junit(name: str, results: Sequence[TrialResult]) -> str:
    """Return JUnit XML: a suite for the file, a test case for each trial; what was not begun is skipped."""
    skipped = sum(result.is_skipped for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name=one_line(name),
        tests=str(len(results)),
        failures=str(sum(not result.passed for result in results) - skipped),
        skipped=str(skipped),
        time=f"{sum(result.seconds or 0 for result in results):.3f}",
    )
    for result in _in_order(results):
        case, agent, model = map(one_line, _key(result))
        test = ElementTree.SubElement(
            suite,
            "testcase",
            classname=agent if model == UNKNOWN else f"{agent}.{model}",
            name=f"{case} #{result.trial.number}",
            time=f"{result.seconds or 0:.3f}",
        )
        why = one_line("; ".join(result.problems))[:_REASON_CHARACTERS]
        if result.is_skipped:
            ElementTree.SubElement(test, "skipped", message=why)
        elif not result.passed:
            ElementTree.SubElement(test, "failure", message=why).text = f"run {result.run_id or UNKNOWN}"
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _trial(result: TrialResult) -> dict[str, Any]:
    return {
        **_names(_key(result)),
        "number": result.trial.number,
        **({"runId": result.run_id} if result.run_id is not None else {}),
        "passed": result.passed,
        "problems": list(result.problems),
        **({"costUsd": f"{result.cost_usd:f}"} if result.cost_usd is not None else {}),
        **({"seconds": round(result.seconds, 3)} if result.seconds is not None else {}),
    }


def _sums(results: Sequence[TrialResult]) -> dict[str, Any]:
    cost, seconds = _total(results), _mean(results)
    return {
        "passed": sum(result.passed for result in results),
        "trials": len(results),
        **({"costUsd": f"{cost:f}"} if cost is not None else {}),
        **({"atLeast": ["costUsd"]} if cost is not None and _costs_more(results) else {}),
        **({"meanSeconds": round(seconds, 3)} if seconds is not None else {}),
    }


def _names(key: Key) -> dict[str, str]:
    case, agent, model = key
    return {"case": case, "agent": agent, **({"model": model} if model != UNKNOWN else {})}


def _row(case: str, agent: str, model: str, group: Sequence[TrialResult]) -> tuple[str, ...]:
    passed = f"{sum(result.passed for result in group)}/{len(group)}"
    words = (one_line(text) for text in (case, agent, model))
    return (*words, passed, _cost(group), _time(_mean(group)))


def _key(result: TrialResult) -> Key:
    trial = result.trial
    return trial.case.name, trial.agent, trial.model or UNKNOWN


def _grouped(results: Sequence[TrialResult]) -> dict[Key, list[TrialResult]]:
    groups: dict[Key, list[TrialResult]] = {}
    for result in _in_order(results):
        groups.setdefault(_key(result), []).append(result)
    return groups


def _in_order(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the trials in the order in which they were to be, not in that of their ends."""
    return sorted(results, key=lambda result: result.trial.place)


def _total(results: Iterable[TrialResult]) -> Decimal | None:
    costs = [result.cost_usd for result in results if result.cost_usd is not None]
    return sum(costs, Decimal(0)) if costs else None


def _mean(results: Iterable[TrialResult]) -> float | None:
    seconds = [result.seconds for result in results if result.seconds is not None]
    return sum(seconds) / len(seconds) if seconds else None


def _cost(results: Iterable[TrialResult]) -> str:
    cost = _total(results)
    if cost is None:
        return UNKNOWN
    return least_mark(("costUsd",) if _costs_more(results) else (), "costUsd") + dollars(cost)


def _costs_more(results: Iterable[TrialResult]) -> bool:
    return any(result.costs_more for result in results)


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration(seconds)
