"""`subagent run`, `rerun` and `continue`: start a run, then follow it, wait for it or detach."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from subagent_server import extensions
from subagent_server.agents.formats import fault_of
from subagent_server.cli.console.app import (
    Session,
    complete_agents,
    complete_runs,
    json_option,
    pass_session,
    report,
    trust_option,
)
from subagent_server.cli.console.follow import (
    exit_of_run,
    exit_of_started,
    interrupts_kept,
    report_run,
    until_gone,
    wait_for,
    watching,
)
from subagent_server.cli.console.option_types import DIRECTORY, PATH_TEXT, SECONDS, TEXT, json_object
from subagent_server.cli.console.terminal import (
    ExitCode,
    OutputClosed,
    argument_or_stdin,
    cut,
    err,
    escape_lines,
    has_person,
    is_terminal,
    one_line,
    out,
    out_json,
)
from subagent_server.cli.inbox import ask_person
from subagent_server.cli.logs import EventText, LogFollower, log_next_to_result
from subagent_server.cli.trust import with_trust
from subagent_server.run.errors import BadArgument
from subagent_server.run.journal import latest_doing
from subagent_server.run.records import FlowOptions, RunMeta
from subagent_server.run.schemas import first_fault
from subagent_server.run.states import Status
from subagent_server.verbs.access import COMMAND_LINE
from subagent_server.verbs.continue_run import ContinueOrder, continue_run, order_of
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.reconcile import Observed
from subagent_server.verbs.service import PlayedScript
from subagent_server.verbs.start import StartOrder, start
from subagent_server.verbs.views import RunView

_DOING_CHARACTERS = 200
_OVERRIDES = {
    "--model": ("model", "MODEL", "Its model: an alias (opus, sonnet, haiku) or an id."),
    "--effort": ("effort", "EFFORT", "How hard it thinks: low, medium, high, xhigh or max."),
    "--budget": ("budgetUsd", "USD", "What the run and all runs below may cost."),
    "--timeout": ("timeoutSeconds", "SECONDS", "How long it may work; waits for an answer do not count."),
    "--max-turns": ("maxTurns", "N", "How many turns it may take."),
}
"""By option: the key of the agent's file that it sets, and its help."""
_COMPLETED = {"model": ("opus", "sonnet", "haiku"), "effort": ("low", "medium", "high", "xhigh", "max")}
"""By key: the values that the shell completes. Others may be valid too."""

V = TypeVar("V", bound=Callable[..., Any])
Begin = Callable[[], RunMeta]
"""Starts a run that has been ordered."""


# -- the options that the three verbs share


def _input_option(elsewhere: str) -> Callable[[V], V]:
    return click.option(
        "--input",
        "inputs",
        type=PATH_TEXT,
        multiple=True,
        metavar="FILE",
        help="A file that the agent may read: text, PDF or image; may be repeated. Looked for from here, "
        f"else from {elsewhere}.",
    )


_label_option = click.option(
    "-l", "--label", type=TEXT, help="What `subagent ls` calls it.  [default: as before]"
)


@dataclass(frozen=True)
class AfterStart:
    """What to do after the start: detach, wait silently for `seconds`, or (neither) follow the log.

    With `stops` a run that has not ended when the wait is over is stopped.
    """

    detach: bool
    seconds: float | None
    stops: bool


def _checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (fault := fault_of(param.name or "", value)) is not None:
        raise click.BadParameter(f"it {fault}.")
    return value


def _complete_value(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [value for value in _COMPLETED.get(param.name or "", ()) if value.startswith(incomplete)]


_START_OPTIONS = (
    *(
        click.option(
            option,
            key,
            type=TEXT,
            metavar=metavar,
            help=f"{words}  [default: as its file says]",
            callback=_checked,
            shell_complete=_complete_value,
        )
        for option, (key, metavar, words) in _OVERRIDES.items()
    ),
    click.option(
        "--script",
        type=DIRECTORY,
        metavar="FILE",
        help="Let this script play the model: no key is needed, and nothing is billed.",
    ),
    trust_option,
    click.option("-d", "--detach", is_flag=True, help="Print the run's id and exit; the run continues."),
    click.option(
        "--wait",
        "seconds",
        type=SECONDS,
        help="Wait silently, at most so long; the run continues afterwards.  [default: follow, without end]",
    ),
    click.option(
        "--stop",
        "stops",
        is_flag=True,
        help="With --wait: stop the run if it has not ended by then, or asks.",
    ),
    json_option,
)


def _start_options(verb: Callable[..., Begin]) -> Callable[..., ExitCode]:
    """Add the options of all starts to a verb, and carry out the start that it returns.

    It gets its session, the keys of the agent's file that change for this run as `overrides`, and the script
    that plays the model.
    """

    @wraps(verb)
    @pass_session
    def with_options(
        session: Session,
        /,
        *,
        detach: bool,
        seconds: float | None,
        stops: bool,
        script: Path | None,
        **rest: Any,
    ) -> ExitCode:
        options = {key: rest.pop(key) for key, _, _ in _OVERRIDES.values()}
        overrides = {key: value for key, value in options.items() if value is not None}
        if detach and seconds is not None:
            raise click.UsageError("--detach exits at once and --wait waits: give one of them.")
        if stops and seconds is None:
            raise click.UsageError("--stop belongs to --wait SECONDS: say how long the run may take.")
        begin = verb(session, overrides=overrides, script=script_file(session, script), **rest)
        # A person is asked to trust a directory that is not trusted.
        return with_trust(session, lambda: _started(session, begin, AfterStart(detach, seconds, stops)))

    made: Callable[..., ExitCode] = with_options
    for option in reversed(_START_OPTIONS):
        made = option(made)
    return made


# -- the verbs


@click.command()
@click.argument("agent", type=TEXT, shell_complete=complete_agents)
@click.argument("prompt", required=False, type=TEXT, metavar="[PROMPT|-]")
@_input_option("--cwd")
@click.option("-l", "--label", type=TEXT, help="What `subagent ls` calls this run.")
@click.option(
    "--cwd",
    type=PATH_TEXT,
    metavar="DIR",
    help="Where the agent works.  [default: as its file says, else here]",
)
@click.option(
    "--arg",
    "named",
    type=TEXT,
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of a flow, instead of a prompt: JSON of its type, else a text; may be repeated.",
)
@click.option("--args", "whole", type=TEXT, metavar="JSON", help="All arguments of a flow, as an object.")
@_start_options
def run(
    session: Session,
    agent: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    label: str | None,
    cwd: str | None,
    named: tuple[str, ...],
    whole: str | None,
    script: PlayedScript | None,
    overrides: dict[str, str],
) -> Begin:
    """Start an agent and follow it until it ends.

    PROMPT says what it should do; `-` reads it from stdin, and without one it is written in $EDITOR. The log
    goes to stderr while it works, the result to stdout at the end, so `subagent run reviewer "..." > file`
    keeps the review. What the agent asks is asked on the terminal; without one the command exits with 5 and
    says how to answer. Ctrl-C stops the watching, never the run.
    """
    arguments = _arguments(session, agent, named, whole)
    if arguments is None and prompt is None and session.service.registry.get(agent).runner == "flow":
        arguments = {}
    order = StartOrder(
        agent=agent,
        prompt=_prompt(prompt) if arguments is None else prompt or "",
        arguments=arguments,
        inputs=inputs_from_here(session, inputs),
        cwd=cwd,
        label=label,
        client=COMMAND_LINE,
        overrides=overrides,
        script=script,
    )
    return lambda: start(session.service, order, session.caller)


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("-e", "--edit", is_flag=True, help="Change the prompt in $EDITOR first.")
@_label_option
@click.option(
    "--cwd",
    type=PATH_TEXT,
    metavar="DIR",
    help="Where the agent works.  [default: as before]",
)
@_start_options
def rerun(
    session: Session,
    run: str,
    edit: bool,
    label: str | None,
    cwd: str | None,
    script: PlayedScript | None,
    overrides: dict[str, str],
) -> Begin:
    """Start the task of a run once more, as a new run.

    The prompt, the inputs and the directory are those of RUN; the agent and the inputs are read as they are
    now. The new run knows nothing of the old one: `subagent continue` continues a conversation. The rest
    is as with `subagent run`.
    """
    run_id = session.run_id(run)
    order = order_of(session.service, run_id, session.caller, cwd=cwd, script=script)
    order = replace(
        order,
        prompt=_edited(order.prompt) if edit else order.prompt,
        label=label or order.label,
        overrides=overrides,
        client=COMMAND_LINE,
    )
    return lambda: start(session.service, order, session.caller)


@click.command("continue")
@click.argument("run", shell_complete=complete_runs)
@click.argument("prompt", required=False, type=TEXT, metavar="[PROMPT|-]")
@_input_option("where the run worked")
@_label_option
@click.option(
    "--stored-agent",
    is_flag=True,
    help="If the file of the agent is gone, take the definition that the run was started with.",
)
@click.option("--dry-run", is_flag=True, help="Of a flow: start nothing, and list what each call would be.")
@click.option(
    "--fresh",
    type=TEXT,
    shell_complete=complete_agents,
    multiple=True,
    metavar="AGENT",
    help="Of a flow: ask this agent anew; may be repeated.",
)
@click.option("--retry-failed", is_flag=True, help="Of a flow: start calls anew that failed by themselves.")
@_start_options
def continue_(
    session: Session,
    run: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    label: str | None,
    stored_agent: bool,
    dry_run: bool,
    fresh: tuple[str, ...],
    retry_failed: bool,
    script: PlayedScript | None,
    overrides: dict[str, str],
) -> Begin:
    """Continue a run that has ended, as a new run.

    It has the whole conversation and works in the same directory, with the agent as its file is now. PROMPT
    says what to do next; `-` reads it from stdin. Without one the run continues where it was cut; a run that
    has completed needs one. Options such as --model are for the new run; those of the old one are not kept.
    The rest is as with `subagent run`.

    A flow is run again with the program as it is now: calls whose runs have completed return their results,
    those that were cut continue, and only new ones start.
    """
    options = FlowOptions(retry_failed=retry_failed, fresh=list(fresh), dry_run=dry_run)
    order = ContinueOrder(
        session.run_id(run),
        None if prompt is None else argument_or_stdin(prompt, "prompt"),
        inputs_from_here(session, inputs),
        label,
        stored_agent,
        client=COMMAND_LINE,
        overrides=overrides,
        script=script,
        flow=options if options != FlowOptions() else None,
    )
    return lambda: continue_run(session.service, order, session.caller)


# -- the arguments


def script_file(session: Session, file: Path | None) -> PlayedScript | None:
    """Return the script of a file, or None without a file. Raises BadArgument, ScriptError."""
    if file is None:
        return None
    if (where := extensions.script_reader()) is None:
        raise BadArgument("--script needs the simulator, which is not in this installation: leave it out.")
    path = session.settings.cwd / file
    return PlayedScript(path.name, extensions.imported(where)(path))


def inputs_from_here(session: Session, inputs: tuple[str, ...]) -> list[str]:
    """Make paths of files that exist here absolute; the others are looked for where the agent works."""

    def from_here(name: str) -> str:
        with suppress(OSError):  # too long a name, or no permission: the service reports it
            if name and (session.settings.cwd / name).exists():
                return str(session.settings.cwd / name)
        return name

    return [from_here(name) for name in inputs]


def _has_editor() -> bool:
    return bool(os.environ.get("VISUAL") or os.environ.get("EDITOR"))


def _edited(prompt: str) -> str:
    """Return a prompt after the person has edited it. Raises BadArgument."""
    if not _has_editor():
        raise BadArgument("The prompt cannot be edited, because no editor is named: set EDITOR.")
    try:
        written = click.edit(prompt, extension=".md", require_save=False)
    except (click.ClickException, ValueError) as error:  # a quote in EDITOR, or what it wrote
        why = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise BadArgument(f"The prompt was not edited ({why}): set EDITOR, and save UTF-8.") from error
    return (written or "").rstrip("\r\n")


def _arguments(
    session: Session, agent: str, named: tuple[str, ...], whole: str | None
) -> dict[str, Any] | None:
    """Return the arguments of a flow, None if there are none. Raises UsageError."""
    if whole is None and not named:
        return None
    found = {} if whole is None else json_object(whole, "--args")
    schema: Any = session.service.registry.get(agent).input_schema or {}
    for each in named:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--arg {each}: give NAME=VALUE.")
        if name in found:
            raise click.UsageError(f"--arg {each}: {name} has a value already; give it once.")
        found[name] = text
        with suppress(ValueError, RecursionError):
            value, kind = json.loads(text), schema.get("properties", {}).get(name, True)
            if first_fault(value, kind) is None or first_fault(text, kind) is not None:
                found[name] = value  # else a text that looks like a number stays one
    return found


def _prompt(argument: str | None) -> str:
    if argument is not None or not is_terminal(sys.stdin):
        return argument_or_stdin("-" if argument is None else argument, "prompt")
    if _has_editor() and is_terminal(sys.stdout):
        return _edited("")
    raise click.UsageError(
        'The prompt is missing: say in quotes what the agent should do ("Review the last commit"), '
        "give - and type it, or set EDITOR to write it there."
    )


# -- the start, and what follows


def _started(session: Session, begin: Begin, how: AfterStart) -> ExitCode:
    """Start a run, wait or follow as `how` asks, print the outcome and return the exit code."""
    # Until the id is known, by which the run can be watched or stopped.
    with interrupts_kept(held=True) as release:
        run_id = begin().run_id
    log = log_next_to_result()
    with watching(session, run_id):
        if how.detach:
            return _detached(session, session.open_run(run_id))
        release()
        if how.seconds is None:
            report(f"run {run_id} has started; Ctrl-C stops the watching, never the run.")
            observed = _follow(session, run_id, log)
        else:
            observed = _wait(session, run_id, how.seconds)
        code = exit_of_started(observed.meta)
        if how.stops and observed.meta.ended_at is None:
            observed = _stopped(session, observed, how.seconds or 0)
    return _finished(session, observed, how, code, log)


def _follow(session: Session, run_id: str, writer: EventText) -> Observed:
    """Print the log until the run ends; ask a person at the terminal its questions."""

    def show(_: str, line: str) -> None:
        for each in writer.lines_of(line):
            err(each, is_escaped=True)

    left_open: set[str] = set()
    with LogFollower(session) as follower:
        follower.add(run_id, 0)
        while True:
            observed = follower.until(lambda seen: bool(seen.meta.pending), show)
            new = [each for each in observed.meta.pending if each.message_id not in left_open]
            if not new or not has_person():
                return observed
            if not ask_person(session, run_id, new[0]):
                left_open.add(new[0].message_id)


def _wait(session: Session, run_id: str, seconds: float) -> Observed:
    def check() -> Observed | None:
        observed = session.open_run(run_id)
        return observed if exit_of_run(observed.meta) is not None else None

    return wait_for(session.service, [run_id], check, seconds) or session.open_run(run_id)


def _stopped(session: Session, observed: Observed, seconds: float) -> Observed:
    """Stop a run that has not ended, and return it when its processes are gone."""
    if observed.meta.pending:
        asked = one_line(observed.meta.pending[0].question_content)
        reason = f"It asked, and nobody answers here: {cut(asked, _DOING_CHARACTERS)}"
    else:
        reason = f"It had not ended after {seconds:g} s{_doing(session, observed)}"
    stop(session.service, observed.meta.run_id, reason, session.leader())
    (gone,) = until_gone(session, [observed.meta.run_id])
    return gone


def _doing(session: Session, observed: Observed) -> str:
    """Return the present step of a run, for the sentence about a run that has not ended."""
    doing = latest_doing(session.service.store.paths.run(observed.meta.run_id))
    return f"; last: {cut(one_line(doing), _DOING_CHARACTERS).rstrip('.')}" if doing else ""


def _detached(session: Session, observed: Observed) -> ExitCode:
    """Print the id or view of a detached run; a run that was refused has failed already."""
    view = session.view(observed)
    code = exit_of_started(observed.meta)
    has_failed = code in (ExitCode.FAILED, ExitCode.ENVIRONMENT)
    with suppress(OutputClosed):
        if session.as_json:
            out_json(view.to_wire())
        else:
            out(view.run_id)
        if has_failed:
            report_run(session, view)
    return code if code is not None and has_failed else ExitCode.OK


def _finished(
    session: Session, observed: Observed, how: AfterStart, code: ExitCode | None, log: EventText
) -> ExitCode:
    """Print the result and remarks, and return the exit code; `code` is None if the wait was over first.

    What `log` has shown already is not repeated.
    """
    view = session.view(observed)
    with suppress(OutputClosed):  # a closed output does not change how the run ended
        if session.as_json:
            out_json(view.to_wire())
        elif view.status is Status.COMPLETED:
            _print_result(session, view, log.last_text)
        report_run(session, view, is_known=log.has_ended and not session.as_json)
        if code is None and not how.stops:
            report(
                f"run {view.run_id} has not ended after {how.seconds or 0:g} s and continues"
                f"{_doing(session, observed)}. `{session.command('logs', '-f', view.run_id)}` watches it.",
                code="timed_out",
                next_step=session.command("wait", view.run_id),
            )
    return ExitCode.TIMED_OUT if code is None else code


def _print_result(session: Session, view: RunView, shown: str) -> None:
    """Print the whole result: unchanged into a file or a pipe, escaped on a terminal that lacks it."""
    result = session.service.store.read_result(view.run_id)
    if result is None:
        return
    if result.has_output:
        out_json(result.output, indent=2)
    elif result.text and not is_terminal(sys.stdout):
        out(result.text)
    elif result.text.strip() != shown.strip():
        out(escape_lines(result.text))
