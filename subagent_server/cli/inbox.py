"""`subagent inbox`: the questions that wait for an answer."""

import shlex
import subprocess
import sys
from typing import Any

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.asking import question_text
from subagent_server.cli.console.output import TEXT, err, is_terminal, json_option, out, out_json, report
from subagent_server.run.bounded_command import start_for_event
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.verbs.live_runs import host_program
from subagent_server.verbs.questions import OpenQuestion, open_questions

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
@json_option
@pass_session
def inbox(session: Session, watching: bool, bell: bool, command: str | None, as_json: bool) -> None:
    """List the questions that wait for an answer.

    Those of every tree of runs, the oldest first, each with its task and the command that answers it.
    `subagent reply` alone asks them one after the other. With --json: a list of questions; with --watch a
    line of JSON for each. Ctrl-C ends the watching.
    """
    if (bell or command is not None) and not watching:
        raise click.UsageError("--bell and --exec belong to --watch: they tell of questions as they come.")
    words = _words(session, command)
    if watching:
        _watch(session, _Alarm(session, words, bell=bell), as_json)
    questions = open_questions(session.service, session.caller)
    if as_json:
        out_json([_wire(question) for question in questions])
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


class _Alarm:
    """Tells the person of a question: by the bell, and by a program."""

    def __init__(self, session: Session, command: list[str], *, bell: bool) -> None:
        self._session = session
        self._command = command
        self._bell = bell
        self._started: list[subprocess.Popen[bytes]] = []

    def ring(self, question: OpenQuestion) -> None:
        if self._bell and is_terminal(sys.stderr):
            sys.stderr.write("\a")
            sys.stderr.flush()
        self._started = [each for each in self._started if not self._has_ended(each)]
        if self._command:
            self._start(question)

    def _start(self, question: OpenQuestion) -> None:
        environment = self._session.settings.environment
        here = sys.stderr.fileno()  # stdout has the questions, as a program may read them
        try:
            started = start_for_event(
                self._command,
                EXEC_SECONDS,
                environment,
                "onQuestion",
                _wire(question),
                with_starter=True,
                stdout=here,
            )
        except OSError as error:
            report(f"--exec could not be started ({error.strerror}); the next question tries again.")
        else:
            self._started.append(started)

    def _has_ended(self, started: "subprocess.Popen[bytes]") -> bool:
        code = started.poll()
        if code:
            report(f"--exec ended with code {code}.")
        return code is not None


def _watch(session: Session, alarm: _Alarm, as_json: bool) -> None:
    """Print each question once."""
    shown: set[tuple[str, str]] = set()

    def show() -> None:
        for question in open_questions(session.service, session.caller):
            if (question.run_id, question.message_id) in shown:
                continue
            if as_json:
                out_json(_wire(question), indent=None)
            else:
                out(("\n" if shown else "") + question_text(session, question))
            shown.add((question.run_id, question.message_id))
            alarm.ring(question)

    from subagent_server.cli.console.follow import watch  # imports asyncio, which only the watching needs

    watch(session, show)


def _wire(question: OpenQuestion) -> dict[str, Any]:
    return question.model_dump(mode="json", exclude_none=True)
