"""`subagent eval`: try cases with agents and models, as ordinary runs."""

import asyncio
from pathlib import Path

import click

from subagent_server.catalog.eval_file import EvalFile, read_eval_file
from subagent_server.cli.console.ask_trust import with_trust
from subagent_server.cli.console.eval_report import as_junit, as_wire, progress_line, table_of
from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.flags import DIRECTORY, json_option, trust_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.script_file import script_file
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import one_line
from subagent_server.cli.console.until_gone import until_gone
from subagent_server.service.evaluation import Evaluation, TrialResult
from subagent_server.service.scripted import PlayedScript
from subagent_server.service.trusting import TrustCheck

DEFAULT_JOBS = 2


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
    judges = [each.judge.agent for case in file.cases for each in case.expect if each.judge is not None]
    own = [name for case in file.cases for name in case.agents or file.agents]
    for name in dict.fromkeys([*own, *judges]):
        trust_check.check(session.service.registry.get(name))
    trust_check.check_evaluation(path, file)


def _scripts(session: Session, path: Path, file: EvalFile) -> dict[str, PlayedScript]:
    """Return the scripts that the cases name. Raises ScriptError."""
    judges = [each.judge.script for case in file.cases for each in case.expect if each.judge is not None]
    names = dict.fromkeys([*(case.script for case in file.cases), *judges])
    found = {name: script_file(session, path.parent / name) for name in names if name is not None}
    return {name: script for name, script in found.items() if script is not None}
