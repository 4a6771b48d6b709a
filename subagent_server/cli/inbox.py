"""`subagent inbox`, `reply` and `ask`: the questions of runs, seen, answered at a terminal, and asked."""

import os
import select
import shlex
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from subagent_server.cli.console.app import Session, complete_runs, json_session, pass_session, report
from subagent_server.cli.console.follow import wait_for, watch, watching
from subagent_server.cli.console.option_types import SECONDS, TEXT
from subagent_server.cli.console.terminal import (
    EarlyExit,
    ExitCode,
    argument_or_stdin,
    duration,
    err,
    escape_lines,
    facts,
    for_people,
    has_person,
    is_terminal,
    line_width,
    one_line,
    out,
    out_json,
    prose,
    run_cell,
    wrapped,
)
from subagent_server.run.bounded_command import start_for_event
from subagent_server.run.errors import BadArgument, MessageClosed, UnknownMessage
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.records import Message
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.verbs import questions as answering
from subagent_server.verbs.access import NotAllowed
from subagent_server.verbs.live_runs import environment_for_host, host_program
from subagent_server.verbs.questions import OpenQuestion, ask_as_child, open_questions
from subagent_server.verbs.reconcile import Observed
from subagent_server.verbs.views import AS_TOOLS, view_for

EXEC_SECONDS = 60.0


@click.command()
@click.option(
    "-w", "--watch", "watching", is_flag=True, help="Stay, and print each new question as it comes."
)
@click.option("--bell", is_flag=True, help="With --watch: ring the bell of the terminal at each question.")
@click.option(
    "--exec",
    "command",
    type=TEXT,
    metavar="CMD",
    help="With --watch: start this program at each question, for at most 60 s. The question is in "
    "SUBAGENT_EVENT_TEXT and, as JSON, on stdin. No shell reads CMD.",
)
@json_session
def inbox(session: Session, watching: bool, bell: bool, command: str | None) -> None:
    """List the questions that wait for an answer.

    Those of every tree of runs, the oldest first, each with its task and the command that answers it.
    `subagent reply` alone asks them one after the other. With --json: a list of questions; with --watch a
    line of JSON for each. Ctrl-C ends the watching.
    """
    if (bell or command is not None) and not watching:
        raise click.UsageError("--bell and --exec belong to --watch: they tell of questions as they come.")
    if watching:
        _watch(session, _words(session, command), bell=bell)
    questions = open_questions(session.service, session.caller)
    if session.as_json:
        out_json([question.to_wire() for question in questions])
    elif questions:
        out("\n\n".join(question_text(session, question) for question in questions))
    else:
        err("No run waits for an answer.")


def _words(session: Session, command: str | None) -> list[str]:
    """Return the program of --exec with its arguments. Raises UsageError."""
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--exec cannot be read ({error}): close its quotes.") from error
    try:
        return [str(host_program(session.settings, words[0])), *words[1:]]
    except (IndexError, NoHostProgram) as error:
        why = error.why if isinstance(error, NoHostProgram) else "it is empty"
        raise click.UsageError(f"--exec names no program that can be used ({why}): give its path.") from error


def _watch(session: Session, command: list[str], *, bell: bool) -> None:
    """Print each question once, ring the bell and start the command."""
    shown: set[tuple[str, str]] = set()
    started: list[subprocess.Popen[bytes]] = []

    def show() -> None:
        for question in open_questions(session.service, session.caller):
            if (question.run_id, question.message_id) in shown:
                continue
            if session.as_json:
                out_json(question.to_wire(), indent=None)
            else:
                out(("\n" if shown else "") + question_text(session, question))
            shown.add((question.run_id, question.message_id))
            if bell and is_terminal(sys.stderr):
                click.echo("\a", nl=False, err=True)
            started[:] = [each for each in started if not _has_ended(each)]
            if command:
                started.extend(_started(session, command, question))

    watch(session, show)


def _started(
    session: Session, command: list[str], question: OpenQuestion
) -> "Iterator[subprocess.Popen[bytes]]":
    environment, event = environment_for_host(session.settings), question.to_wire()
    here = sys.stderr.fileno()  # stdout has the questions, as a program may read them
    try:
        yield start_for_event(
            command, EXEC_SECONDS, environment, "onQuestion", event, with_starter=True, stdout=here
        )
    except OSError as error:
        report(f"--exec could not be started ({error.strerror}); the next question tries again.")


def _has_ended(started: "subprocess.Popen[bytes]") -> bool:
    code = started.poll()
    if code:
        report(f"--exec ended with code {code}.")
    return code is not None


# -- Ask the person at the terminal.


_CHUNK = 65536
_PASTE_SECONDS = 0.05
"""Seconds. Lines that arrive closer together than this were pasted, not typed."""
_CUT_BYTES = 4_095
"""Bytes of a typed line; Linux drops the rest of a longer one, without a word."""


def ask_person(session: Session, run_id: str, message: Message) -> bool:
    """Ask on the terminal and record the answer. Returns False if the person closed the input.

    If the question is answered elsewhere or expires meanwhile, this returns True without an answer.
    """
    _show(message)
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # earlier input does not answer this question
    answer, odd = "", ""
    while not answer:
        err("Your answer (Ctrl-D leaves it open):")
        line = _typed(session, run_id, message.message_id)
        if line is None:
            return True
        if line == "":
            return False
        if any(len(each.encode()) >= _CUT_BYTES for each in line.split("\n")):
            command = session.command("reply", run_id, message.message_id, "-")
            err(f"The terminal has cut a line, so nothing was sent: `{command} < FILE` takes it from a file.")
            continue
        answer = chosen(line.strip(), message.options or [])
        if message.options and answer not in message.options and _is_number(answer) and answer != odd:
            err(f"There is no option {answer}: choose another, or type {answer} again to send it as it is.")
            answer, odd = "", answer
    try:
        caller = session.leader()
        question = message.message_id
        answering.reply(session.service, run_id, answer, question, answered_by="person", caller=caller)
    except MessageClosed as error:  # another answer was recorded first
        err(for_people(error.sentence))
    return True


def chosen(line: str, options: list[str]) -> str:
    """Return the answer that a typed line means: the option of that number, else the line itself."""
    if line not in options and _is_number(line) and 1 <= int(line) <= len(options):
        return options[int(line) - 1]
    return line


def _is_number(line: str) -> bool:
    return line.isascii() and line.isdecimal()


def _show(message: Message) -> None:
    question = escape_lines(f"? {message.question_content}")
    err("\n" + "\n".join(wrapped(question, line_width())))
    for number, option in enumerate(message.options or [], start=1):
        err(f"  {number}  {one_line(option)}")
    if message.options:
        err("  a number, or any other answer")


def _typed(session: Session, run_id: str, message_id: str) -> str | None:
    """Return the typed or pasted text, "" at Ctrl-D, None if the question is no longer open."""
    stdin = sys.stdin.fileno()
    while not select.select([stdin], [], [], SLOW_POLL_SECONDS)[0]:
        if not session.open_run(run_id).meta.is_pending(message_id):
            termios.tcflush(stdin, termios.TCIFLUSH)  # else the shell gets the unread rest, as a command
            err(f"\n{message_id} needs no answer any more.")
            return None
    typed = os.read(stdin, _CHUNK)
    while typed and select.select([stdin], [], [], _PASTE_SECONDS)[0]:  # all lines of a paste
        more = os.read(stdin, _CHUNK)
        if not more:
            break
        typed += more
    # Without a line end, Ctrl-D has ended a line that was begun: half an answer, which nobody has sent.
    return typed.decode("utf-8", "replace") if typed.endswith(b"\n") else ""


def question_text(session: Session, question: OpenQuestion) -> str:
    """Return a question with its context and the command that answers it."""
    run_id = run_cell(question.run_id)
    return facts(
        [
            *_context(question),
            (one_line(question.message_id), prose(f"? {escape_lines(question.question)}")),
            ("options", " | ".join(one_line(option) for option in question.options or [])),
            ("answer", session.command("reply", run_id, question.message_id, "ANSWER")),
        ]
    )


def _context(question: OpenQuestion) -> list[tuple[str, str]]:
    """Return what a person needs to know before the question itself is asked."""
    label = f" · {one_line(question.label)}" if question.label else ""
    path = " → ".join(f"{one_line(run.agent)} {run_cell(run.run_id)}" for run in question.path or [])
    return [
        ("run", f"{run_cell(question.run_id)}  {one_line(question.agent)}{label}"),
        ("below", path),
        ("task", prose(one_line(question.prompt or ""))),
        ("waits", _waits(question)),
    ]


def _waits(question: OpenQuestion) -> str:
    """Return since when a question waits, and when it expires."""
    now = datetime.now(UTC)
    since = f"for {duration((now - question.asked_at).total_seconds())}"
    if question.expires_at is None:
        return since
    left = (question.expires_at - now).total_seconds()
    return f"{since}, expires in {duration(left)}" if left > 0 else f"{since}, its time is over"


# -- Answer and ask by a command.


_GRAMMAR = "Give the run, the question if several are open, and the answer in quotes."


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.argument("words", nargs=-1, type=TEXT, metavar="[MESSAGE] ANSWER|-")
@json_session
def reply(session: Session, run: str | None, words: tuple[str, ...]) -> None:
    """Answer a question of a run.

    MESSAGE is the id of the question (q1, ...); it may be left out if only one is open. `-` reads the answer
    from stdin. An answer that begins with a dash goes after `--`. Repeating an answer changes nothing.

    On a terminal, without an answer: ask the open questions of RUN, or of all runs, one after the other.
    """
    if len(words) > 2 or (not words and (session.as_json or not has_person())):
        raise click.UsageError(_GRAMMAR)
    run_id = None if run is None else session.run_id(run)
    caller = session.leader()
    if not words:
        _walk(session, run_id)
        return
    assert run_id is not None  # words come behind it
    message_id = words[0] if len(words) == 2 else None
    # `reply RUN q1` forgets the answer; `reply RUN q1 q1` is possible
    if message_id is None and session.open_run(run_id).meta.is_pending(words[0]):
        raise BadArgument(f"{words[0]} is the question: give the answer after it.")
    answer = argument_or_stdin(words[-1], "answer")
    by = "parent" if caller.is_child else "person"
    try:
        observed = answering.reply(session.service, run_id, answer, message_id, answered_by=by, caller=caller)
    except UnknownMessage as error:  # two words of an answer, most often
        raise click.UsageError(f"{error.sentence} {_GRAMMAR}") from error
    if session.as_json:
        out_json(session.view(observed).to_wire())
        return
    still = observed.meta.pending_questions
    left = f"; {still} still wait{'s' if still == 1 else ''} for one" if still else ""
    out(f"The answer to run {run_id} is recorded{answering.masked_note(observed.meta, answer)}{left}.")


def _walk(session: Session, run_id: str | None) -> None:
    """Ask the person the open questions, the oldest first; Ctrl-D leaves one open and goes to the next."""
    met: set[tuple[str, str]] = set()
    while True:
        every = open_questions(session.service, session.caller)
        here = (each for each in every if run_id in (None, each.run_id))
        question = next((each for each in here if (each.run_id, each.message_id) not in met), None)
        if question is None:
            break
        met.add((question.run_id, question.message_id))
        message = session.open_run(question.run_id).meta.message(question.message_id)
        if message is not None:
            err(f"\n{facts(_context(question))}")
            with watching(session, question.run_id):
                ask_person(session, question.run_id, message)
    if not met:
        err("No run waits for an answer." if run_id is None else f"Run {run_id} waits for no answer.")


@click.command()
@click.argument("question", type=TEXT)
@click.option("--option", "options", multiple=True, type=TEXT, help="A likely answer; may be repeated.")
@click.option(
    "--timeout",
    type=SECONDS,
    help="Wait at most so long.  [default: as its agent file says]",
)
@pass_session
def ask(session: Session, question: str, options: tuple[str, ...], timeout: float | None) -> None:
    """Ask the parent of this run one question, wait, and print the answer alone.

    For scripts with `runner: command`. Exits with 1 if the question expires or the run ends first, and with
    124 if --timeout is over; the question stays open then.
    """
    run_id = session.caller.run_id
    if run_id is None:
        way = "use `subagent reply` to answer a run"
        if "SUBAGENT_MCP_CONFIG" in session.settings.environment:  # as in a box, which shows no token
            way = "let it ask by the MCP server of SUBAGENT_MCP_CONFIG, or its agent file say `sandbox: none`"
        raise NotAllowed(
            "Only a program of a run can ask its parent, and SUBAGENT_RUN_ID and SUBAGENT_RUN_TOKEN are not "
            f"set here: {way}."
        )
    asked = ask_as_child(session.service, run_id, question, list(options) or None, session.caller)
    message_id = asked.meta.messages[-1].message_id

    def check() -> Observed | None:
        observed = session.open_run(run_id)
        waits = observed.meta.is_pending(message_id) and not observed.meta.status.is_terminal
        return None if waits else observed

    found = wait_for(session.service, [run_id], check, timeout)
    if found is None:
        raise EarlyExit(ExitCode.TIMED_OUT, f"the {timeout:g} s are over, and nobody has answered.")
    view = view_for(session.service, found, AS_TOOLS, message_id, session.caller, is_asker=True)
    answer = next((each.answer for each in view.messages or [] if each.message_id == message_id), None)
    if answer is None:
        raise EarlyExit(ExitCode.FAILED, "nobody answered in time.")
    out(answer)
