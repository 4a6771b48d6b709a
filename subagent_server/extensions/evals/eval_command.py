"""`subagent eval`: its command, and its trials as a table, as JSON and as JUnit XML."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from decimal import Decimal
from fnmatch import fnmatchcase
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
from subagent_server.extensions.evals.kept import (
    EvalLog,
    done_before,
    logs_of,
    new_log,
    newest_log,
    read_log,
    result_of,
    wire_of,
)
from subagent_server.extensions.evals.scorers import pass_at, standard_error
from subagent_server.extensions.evals.trials import Evaluation, TrialResult
from subagent_server.run.errors import choices
from subagent_server.run.processes import now
from subagent_server.run.states import dollars, least_mark, timestamp
from subagent_server.verbs.scripts import PlayedScript
from subagent_server.verbs.trust_check import TrustCheck

DEFAULT_JOBS = 2
_HEADER = ("CASE", "AGENT", "MODEL", "PASS", "RATE", "COST", "TIME")
_FIGURES = (7, 9, 9, 8)
"""The columns of PASS, RATE, COST and TIME; the names share the rest of the line."""
_COMPARED = 8
"""The columns of a comparison."""
_TRIES = (1, 2, 4, 8, 16, 32, 64)
"""The k of pass@k."""
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
@click.option(
    "--case",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only the cases whose name is so, such as `math-*`; may be repeated.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N cases.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the last evaluation of FILE: only what did not end, was an error, or has changed.",
)
@click.option(
    "--log",
    type=DIRECTORY,
    metavar="LOG",
    help="Keep the trials in this file, and with --resume go on from it.  [default: a new one in "
    "~/.local/state/subagent/evals]",
)
@click.option(
    "--against",
    type=DIRECTORY,
    metavar="LOG",
    help="Show the trials of another evaluation beside these: its log, or its --json.",
)
@click.option(
    "--fail-on-error",
    is_flag=False,
    flag_value=1,
    type=click.IntRange(min=1),
    metavar="[N]",
    help="Begin no further trial after N trials (1) that could not be carried out or judged.",
)
@trust_option
@json_option
@pass_session
def eval_(
    session: Session,
    file: Path,
    jobs: int,
    junit: Path | None,
    patterns: tuple[str, ...],
    limit: int | None,
    resume: bool,
    log: Path | None,
    against: Path | None,
    fail_on_error: int | None,
    as_json: bool,
) -> ExitCode:
    """Try the cases of FILE with their agents and models, and say how often each passes.

    FILE is YAML (`subagent schema eval`): cases with a prompt and what the result has to be: a text, number
    or choice, a JSON Schema, a pattern, a command that ends with 0, or what judging agents say. Each is tried
    as an ordinary run, with each agent and model, so many times. 0 if all pass, 1 if not. Ctrl-C stops the
    runs that it has started; --resume goes on. If FILE is a log (.jsonl, .json), it is shown again.
    """
    session.check_is_user()
    path = session.settings.cwd / file
    before = None if against is None else _kept_results(session.settings.cwd / against)
    if path.suffix in {".jsonl", ".json"}:
        _report(_kept_results(path), before, as_json=as_json)
        return ExitCode.OK
    if junit is not None and not (session.settings.cwd / junit).parent.is_dir():
        raise click.UsageError(f"the directory of {one_line(str(junit))} is not there: make it first.")
    read = _chosen(read_eval_file(path), patterns, limit)
    with_trust(session, lambda: _check(session, path, read), may_ask=not as_json)
    scripts = _scripts(session, path, read)
    evaluation = Evaluation(session.service, read, path, scripts, session.caller, most_errors=fail_on_error)
    trials = list(evaluation.trials())
    kept, rows = _log_of(session, path, log, resume=resume)
    evaluation.done = done_before(rows, trials)
    results = list(evaluation.done.values())
    if resume:
        err(f"{len(results)} of {len(trials)} trials have ended before.")
    facts = {"evaluation": str(path), "planned": len(trials), "began": timestamp(now())}
    with nullcontext() if kept is None else EvalLog(kept, facts, results) as writer:
        stopped = _carried_out(session, evaluation, jobs, writer, results)
    if junit is not None:
        (session.settings.cwd / junit).write_text(as_junit(file.name, results), encoding="utf-8")
    _report(results, before, as_json=as_json, planned=len(trials), interrupted=stopped is not None)
    if stopped is not None:
        raise EarlyExit(
            ExitCode.INTERRUPTED,
            f"the evaluation was interrupted after {len(results)} of {len(trials)} trials; of its runs "
            f"{len(stopped)} were stopped. --resume goes on with the others.",
        )
    if any(result.is_skipped for result in results):
        err("Some trials were not begun, and count neither as passed nor as failed: --resume tries them.")
    return ExitCode.OK if all(result.passed for result in results) else ExitCode.FAILED


def _carried_out(
    session: Session,
    evaluation: Evaluation,
    jobs: int,
    log: EvalLog | None,
    results: list[TrialResult],
) -> list[str] | None:
    """Carry out an evaluation and add its trials to `results`. None: no Ctrl-C; else the runs it stopped."""

    def ended(result: TrialResult) -> None:
        results.append(result)
        if log is not None:
            log.add(result)
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
    return stopped if interrupted else None


def _kept_results(path: Path) -> list[TrialResult]:
    return [result_of(row, place) for place, row in enumerate(read_log(path))]


def _chosen(file: EvalFile, patterns: Sequence[str], limit: int | None) -> EvalFile:
    """Return the file with the chosen cases alone. Raises UsageError: there are none."""
    cases = file.cases
    if patterns:
        cases = [case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in patterns)]
    if not cases:
        known = choices("cases", patterns[0], [case.name for case in file.cases])
        raise click.UsageError(f"--case {one_line(patterns[0])} fits no case: {known}.")
    return file.model_copy(update={"cases": cases[:limit]})


def _log_of(
    session: Session, path: Path, log: Path | None, *, resume: bool
) -> tuple[Path | None, list[dict[str, Any]]]:
    """Return where the trials are kept, None if nowhere, and the trials of the evaluation that is resumed.

    Raises:
        UsageError: there is nothing to resume.
    """
    state = session.settings.state_directory
    folder = None if state is None else logs_of(state, path)
    if log is not None:
        kept = session.settings.cwd / log
        if kept.exists() and not resume:
            raise click.UsageError(f"{one_line(str(log))} is there: name another, or add --resume.")
        return kept, read_log(kept) if resume and kept.exists() else []
    last = None if folder is None else newest_log(folder)
    if resume and last is None:
        raise click.UsageError("there is no earlier evaluation of this file to resume: leave --resume out.")
    return None if folder is None else new_log(folder), read_log(last) if resume and last is not None else []


def _report(
    results: Sequence[TrialResult],
    before: Sequence[TrialResult] | None,
    *,
    as_json: bool,
    planned: int | None = None,
    interrupted: bool = False,
) -> None:
    if as_json:
        facts = {} if planned is None else {"planned": planned, "interrupted": interrupted}
        out_json({**facts, **as_wire(results, before)})
    elif results and before is not None:
        out(table_against(results, before))
    elif results:
        out(table_of(results))


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
    sign = "○" if result.is_skipped else "✔" if result.passed else "✘"
    return f"{sign} {name} #{result.trial.number}  {facts}{run}{why}"


def table_of(results: Sequence[TrialResult]) -> str:
    """Return a row for each case, agent and model: how many trials passed, their cost and mean time."""
    rows = [_HEADER, *(_row(*key, group) for key, group in _grouped(results).items())]
    rows.append(_row("all", "", "", results))
    gaps = len(GAP) * (len(_HEADER) - 1)
    room = max(_LEAST_OF_NAMES, line_width() - sum(_FIGURES) - gaps)
    return "\n".join(table(rows, (room * 2 // 5, room * 3 // 10, room * 3 // 10, *_FIGURES[:-1])))


def table_against(results: Sequence[TrialResult], before: Sequence[TrialResult]) -> str:
    """Return a row for each case, agent and model of either evaluation: how many passed now, and before."""
    now, then = _grouped(results), _grouped(before)
    rows: list[tuple[str, ...]] = [("CASE", "AGENT", "MODEL", "NOW", "BEFORE", "CHANGE")]
    for key in dict.fromkeys([*now, *then]):
        rows.append((*map(one_line, key), *_compared(now.get(key, []), then.get(key, []))))
    rows.append(("all", "", "", *_compared(results, before)))
    gaps = len(GAP) * (len(rows[0]) - 1)
    room = max(_LEAST_OF_NAMES, line_width() - 3 * _COMPARED - gaps)
    widths = (room * 2 // 5, room * 3 // 10, room * 3 // 10, _COMPARED, _COMPARED)
    return "\n".join(table(rows, widths))


def _compared(now: Sequence[TrialResult], before: Sequence[TrialResult]) -> tuple[str, str, str]:
    new, old = _rates(now), _rates(before)
    change = "" if not new or not old else f"{100 * (_average(new) - _average(old)):+.0f}%"
    return _passed(now), _passed(before), change


def as_wire(results: Sequence[TrialResult], before: Sequence[TrialResult] | None = None) -> dict[str, Any]:
    """Return the same and each trial, for `--json`."""
    then = _grouped(before or ())
    rows = [
        {**_names(key), **_sums(group), **({"before": _sums(then[key])} if key in then else {})}
        for key, group in _grouped(results).items()
    ]
    compared = {} if before is None else {"before": _sums(before)}
    return {**_sums(results), **compared, "rows": rows, "runs": [*map(wire_of, _in_order(results))]}


def as_junit(name: str, results: Sequence[TrialResult]) -> str:
    """Return JUnit XML: a suite for the file, a test case for each trial; what was not begun is skipped."""
    skipped = sum(result.is_skipped for result in results)
    errors = sum(result.is_error for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name=one_line(name),
        tests=str(len(results)),
        failures=str(sum(not result.passed for result in results) - skipped - errors),
        errors=str(errors),
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
            kind = "error" if result.is_error else "failure"
            ElementTree.SubElement(test, kind, message=why).text = f"run {result.run_id or UNKNOWN}"
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _sums(results: Sequence[TrialResult]) -> dict[str, Any]:
    cost, seconds = _total(results), _mean(results)
    begun, rates = _begun(results), _rates(results)
    passed, spread = sum(result.passed for result in begun), standard_error(rates)
    skipped, errors = len(results) - len(begun), sum(result.is_error for result in results)
    is_one_row = len(_grouped(begun)) == 1
    tries = [number for number in _TRIES if number <= len(begun)] if is_one_row else []
    return {
        "passed": passed,
        "trials": len(begun),
        **({"notBegun": skipped} if skipped else {}),
        **({"errors": errors} if errors else {}),
        **({"passRate": round(_average(rates), 4)} if rates else {}),
        **({"standardError": round(spread, 4)} if spread is not None else {}),
        **({"passAt": {str(k): round(pass_at(len(begun), passed, k), 4) for k in tries}} if tries else {}),
        **({"costUsd": f"{cost:f}"} if cost is not None else {}),
        **({"atLeast": ["costUsd"]} if cost is not None and _costs_more(results) else {}),
        **({"meanSeconds": round(seconds, 3)} if seconds is not None else {}),
    }


def _names(key: Key) -> dict[str, str]:
    case, agent, model = key
    return {"case": case, "agent": agent, **({"model": model} if model != UNKNOWN else {})}


def _row(case: str, agent: str, model: str, group: Sequence[TrialResult]) -> tuple[str, ...]:
    words = (one_line(text) for text in (case, agent, model))
    spread = standard_error(_rates(group))
    rate = "" if spread is None else f"{100 * _average(_rates(group)):.0f}±{100 * spread:.0f}%"
    return (*words, _passed(group), rate, _cost(group), _time(_mean(group)))


def _begun(results: Iterable[TrialResult]) -> list[TrialResult]:
    return [result for result in results if not result.is_skipped]


def _passed(group: Sequence[TrialResult]) -> str:
    begun = _begun(group)
    return f"{sum(result.passed for result in begun)}/{len(begun)}" if begun else UNKNOWN


def _rates(results: Sequence[TrialResult]) -> list[float]:
    """Return the rates whose mean is the pass rate: of each row, or of each trial where there is one row.

    The trials of one case are no independent ones of many, so rows are the units of a standard error.
    """
    rows = list(_grouped(_begun(results)).values())
    if len(rows) == 1:
        return [float(result.passed) for result in rows[0]]
    return [sum(result.passed for result in row) / len(row) for row in rows]


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
