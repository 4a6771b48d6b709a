"""Ask the person at the terminal the questions of a run."""

import os
import select
import sys
import termios
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import click

from subagent_server.cli.console.app import Session
from subagent_server.cli.console.output import err, has_person
from subagent_server.cli.console.show_text import run_cell
from subagent_server.cli.console.terminal import (
    coloured,
    duration,
    escape_lines,
    facts,
    folded,
    for_people,
    line_width,
    one_line,
    prose,
    wrapped,
)
from subagent_server.run.errors import BadArgument, MessageClosed
from subagent_server.run.records import Message
from subagent_server.run.states import MessageStatus
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.verbs.questions import OpenQuestion, reply
from subagent_server.verbs.trust_check import Coverage, NotTrusted, coverage, trust

_CHUNK = 65536
_PASTE_SECONDS = 0.05
"""Lines that arrive closer together than this were pasted, not typed."""


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
        answer = chosen(line.strip(), message.options or [])
        if _is_no_option(answer, message.options or []) and answer != odd:
            err(f"There is no option {answer}: choose another, or type {answer} again to send it as it is.")
            answer, odd = "", answer
    try:
        reply(
            session.service,
            run_id,
            answer,
            message.message_id,
            answered_by="person",
            caller=session.leader(),
        )
    except MessageClosed as error:  # another answer was recorded first
        err(for_people(error.sentence))
    return True


def chosen(line: str, options: list[str]) -> str:
    """Return the answer that a typed line means: the option of that number, else the line itself."""
    if line not in options and line.isascii() and line.isdecimal() and 1 <= int(line) <= len(options):
        return options[int(line) - 1]
    return line


def _is_no_option(answer: str, options: list[str]) -> bool:
    """Whether an answer looks like the number of an option, but no option has that number."""
    return bool(options) and answer not in options and answer.isascii() and answer.isdecimal()


def _show(message: Message) -> None:
    question = escape_lines(f"? {message.question_content}")
    err("\n" + "\n".join(wrapped(question, line_width())))
    for number, option in enumerate(message.options or [], start=1):
        err(f"  {number}  {one_line(option)}")
    if message.options:
        err("  a number, or any other answer")


def _typed(session: Session, run_id: str, message_id: str) -> str | None:
    """Return the typed or pasted text, "" at the end of input, None if the question is no longer open."""
    stdin = sys.stdin.fileno()
    while not select.select([stdin], [], [], SLOW_POLL_SECONDS)[0]:
        now = session.open_run(run_id).meta.message(message_id)
        if now is None or now.message_status is not MessageStatus.PENDING:
            err(f"{message_id} needs no answer any more.")
            return None
    typed = os.read(stdin, _CHUNK)
    while typed and select.select([stdin], [], [], _PASTE_SECONDS)[0]:  # all lines of a paste
        more = os.read(stdin, _CHUNK)
        if not more:
            break
        typed += more
    return typed.decode("utf-8", "replace")


# -- Open questions as a person reads them: of which run, about what, and until when.


def question_text(session: Session, question: OpenQuestion) -> str:
    """Return a question with its context and the command that answers it."""
    run_id = run_cell(question.run_id)
    return facts(
        [
            *_context(question),
            ("waits", _waits(question)),
            (one_line(question.message_id), prose(f"? {escape_lines(question.question)}")),
            ("options", " | ".join(one_line(option) for option in question.options or [])),
            ("answer", session.command("reply", run_id, question.message_id, "ANSWER")),
        ]
    )


def question_context(question: OpenQuestion) -> str:
    """Return what a person needs to know before the question itself is asked."""
    return facts([*_context(question), ("waits", _waits(question))])


def _context(question: OpenQuestion) -> list[tuple[str, str]]:
    label = f" · {one_line(question.label)}" if question.label else ""
    path = " → ".join(f"{one_line(run.agent)} {run_cell(run.run_id)}" for run in question.path or [])
    return [
        ("run", f"{run_cell(question.run_id)}  {one_line(question.agent)}{label}"),
        ("below", path),
        ("task", prose(one_line(question.prompt or ""))),
    ]


def _waits(question: OpenQuestion) -> str:
    """Return since when a question waits, and when it expires."""
    now = datetime.now(UTC)
    since = f"for {duration((now - question.asked_at).total_seconds())}"
    if question.expires_at is None:
        return since
    left = (question.expires_at - now).total_seconds()
    return f"{since}, expires in {duration(left)}" if left > 0 else f"{since}, its time is over"


# -- Ask the person whether to trust a directory, with a list of what trust covers.


T = TypeVar("T")

_MOST_QUESTIONS = 2
"""An agent and the servers that it names may come with two directories."""
_LEAST_WIDTH = 40
_COLOURS = {"+": "green", "-": "red"}


def with_trust(session: Session, act: Callable[[], T], *, may_ask: bool = True) -> T:
    """Call `act`; if it raises NotTrusted, ask the person and call it again after a yes.

    The refusal comes before anything is created, so calling it again repeats nothing.

    Raises:
        NotTrusted: there is no terminal to ask at, or the answer is no.
        BadArgument: there is too much to show.
    """
    for _ in range(_MOST_QUESTIONS):
        try:
            return act()
        except NotTrusted as doubt:
            if not (may_ask and has_person()) or session.settings.is_of_a_run:
                raise
            covered = coverage(session.settings, doubt.project)
            for line in coverage_lines(covered, asking=True):
                err(line)
            if not click.confirm("Trust this directory?", err=True):
                raise
            trust(session.settings, covered)
    return act()


def coverage_lines(covered: Coverage, *, asking: bool) -> list[str]:
    """Return the lines that list what trust in a directory covers: all of it, or why that is too much.

    A long line is folded, its further pieces deeper than any line begins: no value can look like two.

    Raises:
        BadArgument: the person is to be asked, and there is too much to show.
    """
    if covered.too_much is not None:
        if asking:
            raise BadArgument(covered.too_much)
        return [covered.too_much]
    agents = ", ".join(map(one_line, covered.agents)) or "none yet"
    begin = "What has changed in" if covered.is_trusted else "To be trusted:"
    lines = [f"{begin} {one_line(str(covered.project))}", f"  agents: {agents}"]
    for change in covered.changes:
        shown = one_line(change)
        lines.append(f"  {coloured(shown, _COLOURS[shown[0]]) if shown[0] in _COLOURS else shown}")
    if not covered.is_trusted:
        lines.append(
            "  Prompts and tools may change later; what starts a program or sends a key elsewhere asks again."
        )
    width = max(_LEAST_WIDTH, line_width())
    return [piece for line in lines for piece in folded(line, width, "      ")] if has_person() else lines
