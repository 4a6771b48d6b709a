"""`subagent eval`: what is tried, what is resumed, and what the terminal shows of it."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import click

from subagent_server.cli.console.app import Session, json_session, trust_option
from subagent_server.cli.console.follow import until_gone
from subagent_server.cli.console.option_types import DIRECTORY, Count
from subagent_server.cli.console.terminal import EarlyExit, ExitCode, err, one_line, out, out_json
from subagent_server.cli.run import script_file
from subagent_server.cli.trust import with_trust
from subagent_server.extensions.evals.eval_file import EvalFile, Reach, reach_of, read_eval_file
from subagent_server.extensions.evals.kept import (
    EvalLog,
    done_before,
    held,
    logs_of,
    new_log,
    newest_log,
    read_log,
)
from subagent_server.extensions.evals.report import as_junit, as_wire, progress_line, table_against, table_of
from subagent_server.extensions.evals.trials import Evaluation, TrialResult, trials_of
from subagent_server.run.errors import choices, storing
from subagent_server.run.files import Entry
from subagent_server.run.processes import now
from subagent_server.run.states import timestamp
from subagent_server.verbs.service import PlayedScript
from subagent_server.verbs.trust_check import TrustCheck

DEFAULT_JOBS = 2


@click.command("eval")
@click.argument("file", type=DIRECTORY)
@click.option(
    "-j",
    "--jobs",
    type=Count(min=1, max=64),
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
@click.option("--limit", type=Count(min=1), metavar="N", help="Only the first N cases.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the last evaluation of FILE: only trials that did not end, were errors, or whose case "
    "has changed (not its agent or script).",
)
@click.option(
    "--log",
    type=DIRECTORY,
    metavar="LOG",
    help="Keep the trials in this file, and with --resume continue from it.  [default: a new one in "
    "~/.local/state/subagent/evals]",
)
@click.option(
    "--against",
    type=DIRECTORY,
    metavar="LOG",
    help="Show the trials of another evaluation next to these: its log, or its --json.",
)
@click.option(
    "--fail-on-error",
    is_flag=False,
    flag_value=1,
    type=Count(min=1),
    metavar="[N]",
    help="Begin no further trial after N trials (1) that could not be carried out or judged.",
)
@trust_option
@json_session
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
) -> ExitCode:
    """Try the cases of FILE with their agents and models, and say how often each passes.

    FILE is YAML (`subagent schema eval`): cases with a prompt and what the result has to be: a text, number
    or choice, a JSON Schema, a pattern, a command that ends with 0, or what judging agents say. Each is tried
    as an ordinary run, with each agent and model, so many times. 0 if all pass, 1 if not. Ctrl-C (or TERM)
    stops the runs that it has started; --resume continues. A log (.jsonl, .json) as FILE is shown again.
    """
    session.check_is_user()
    path = session.settings.cwd / file
    before = None if against is None else read_log(session.settings.cwd / against)[0]
    if path.suffix in {".jsonl", ".json"}:
        if junit or patterns or limit or resume or log or fail_on_error:
            raise click.UsageError("A log is shown as it is: of these options only --against fits.")
        _report(session, read_log(path)[0], before)
        return ExitCode.OK
    report_file = None if junit is None else Entry.at(session.settings.cwd / junit)
    if report_file is not None and not report_file.directory.exists():  # it stays open: a run may replace it
        raise click.UsageError(f"the directory of {one_line(str(junit))} is not there: make it first.")
    whole = read_eval_file(path)
    read = _chosen(whole, patterns, limit)
    reach = reach_of(path, whole)  # of the cases that are not chosen too: trust knows files
    with_trust(session, lambda: _check(session, read, reach))
    scripts = _scripts(session, path, read)
    evaluation = Evaluation(session.service, read, path, scripts, session.caller, most_errors=fail_on_error)
    trials = list(trials_of(read))
    kept, rows, began = _log_of(session, path, log, resume=resume)
    evaluation.began = began or timestamp(now())
    before_this = done_before(rows, trials_of(whole))
    evaluation.done = {trial.key: before_this[trial.key] for trial in trials if trial.key in before_this}
    results = list(evaluation.done.values())
    if resume:
        err(f"{len(results)} of {len(trials)} trials have ended before.")
    facts = {"evaluation": str(path), "planned": len(trials), "began": evaluation.began}
    # The cases that are not chosen now stay in the log: the next --resume continues with them too.
    with nullcontext() if kept is None else EvalLog(kept, facts, before_this.values()) as writer:
        stopped = _carried_out(session, evaluation, jobs, writer, results)
    order = {trial.key: index for index, trial in enumerate(trials)}
    results.sort(key=lambda result: order[result.key])
    if report_file is not None:
        _write(report_file, as_junit(file.name, results))
    _report(session, results, before, planned=len(trials), interrupted=stopped is not None)
    if stopped is not None:
        raise EarlyExit(
            ExitCode.INTERRUPTED,
            f"the evaluation was interrupted after {len(results)} of {len(trials)} trials; of its runs "
            f"{len(stopped)} were stopped. --resume continues with the others.",
        )
    if any(result.not_begun for result in results):
        err("Some trials were not begun, and count neither as passed nor as failed: --resume tries them.")
    return ExitCode.OK if all(result.passed for result in results) else ExitCode.FAILED


def _write(file: Entry, text: str) -> None:
    """Write a file that all may read, through no link: a run may have made one. Raises StorageFailed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with storing(file.path):
        descriptor = os.open(file.name, flags, 0o666, dir_fd=file.directory.descriptor)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)


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

    def terminated(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script has started it by `&`
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    interrupted, stopped = False, list[str]()
    # the runs of a CI job that is cancelled would continue, and cost
    signal.signal(signal.SIGTERM, terminated)
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


def _chosen(file: EvalFile, patterns: Sequence[str], limit: int | None) -> EvalFile:
    """Return the file with the chosen cases alone. Raises UsageError: there are none."""
    cases = file.cases
    if patterns:
        cases = [
            case
            for case in cases
            if case.name in patterns or any(fnmatchcase(case.name, pattern) for pattern in patterns)
        ]
    if not cases:
        known = choices("cases", patterns[0], [case.name for case in file.cases])
        raise click.UsageError(f"--case {one_line(patterns[0])} fits no case: {known}.")
    return file.model_copy(update={"cases": cases[:limit]})


def _log_of(
    session: Session, path: Path, log: Path | None, *, resume: bool
) -> tuple[Path | None, list[TrialResult], str | None]:
    """Return the path of the log (None: no log), and the trials and the beginning of a resumed evaluation.

    Raises:
        UsageError: there is nothing to resume.
        AtWork: what is to be resumed is not over.
        BadEvalFile: it is no log of this evaluation file.
    """
    state = session.settings.state_directory
    folder = None if state is None else logs_of(state, path)
    kept = None if folder is None else new_log(folder)
    last = None if folder is None else newest_log(folder)
    if log is not None:
        kept = session.settings.cwd / log
        last = kept if kept.exists() else None
        if last is not None and not resume:
            raise click.UsageError(f"{one_line(str(log))} is there: name another, or add --resume.")
    elif resume and last is None:
        raise click.UsageError("there is no earlier evaluation of this file to resume: leave --resume out.")
    if not resume or last is None:
        return kept, [], None
    click.get_current_context().with_resource(held(last))
    return kept, *read_log(last, None if log is None else path)


def _report(
    session: Session,
    results: Sequence[TrialResult],
    before: Sequence[TrialResult] | None,
    *,
    planned: int | None = None,
    interrupted: bool = False,
) -> None:
    if session.as_json:
        facts = {} if planned is None else {"planned": planned, "interrupted": interrupted}
        out_json({**facts, **as_wire(results, before)})
    elif results and before is not None:
        out(table_against(results, before))
    elif results:
        out(table_of(results))


def _check(session: Session, file: EvalFile, reach: tuple[str, Path, Reach]) -> None:
    """Refuse the whole file, before the first run, for an agent or a command that may not be used.

    Raises:
        NotTrusted, UnknownAgent.
    """
    trust_check = TrustCheck(session.service)
    own = [name for case in file.cases for name in case.agents or file.agents]
    for name in dict.fromkeys([*own, *(judge.agent for judge in file.judges)]):
        trust_check.check(session.service.registry.get(name))
    trust_check.check_reach(*reach)


def _scripts(session: Session, path: Path, file: EvalFile) -> dict[str, PlayedScript]:
    """Return the scripts that the cases name. Raises ScriptError."""
    cases, judges = (case.script for case in file.cases), (judge.script for judge in file.judges)
    names = dict.fromkeys([*cases, *judges])
    found = {name: script_file(session, path.parent / name) for name in names if name is not None}
    return {name: script for name, script in found.items() if script is not None}
