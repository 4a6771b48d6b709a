"""`subagent inbox`: the questions that wait for an answer."""

from typing import Any

import click

from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import escape_lines, facts, one_line
from subagent_server.service.inbox import OpenQuestion, open_questions


@click.command()
@click.option(
    "-w", "--watch", "watching", is_flag=True, help="Stay, and print each new question as it comes."
)
@json_option
@pass_session
def inbox(session: Session, watching: bool, as_json: bool) -> None:
    """List the questions that wait for an answer.

    Those of every tree of runs, the oldest first, each with its task and the command that answers it.
    With --json: a list of questions; with --watch a line of JSON for each. Ctrl-C ends the watching.
    """
    if watching:
        _watch(session, as_json)
    questions = open_questions(session.service, session.caller)
    if as_json:
        out_json([_wire(question) for question in questions])
    elif questions:
        out("\n\n".join(_text(session, question) for question in questions))
    else:
        err("No run waits for an answer.")


def _watch(session: Session, as_json: bool) -> None:
    """Print each question once."""
    shown: set[tuple[str, str]] = set()

    def show() -> None:
        for question in open_questions(session.service, session.caller):
            if (question.run_id, question.message_id) in shown:
                continue
            if as_json:
                out_json(_wire(question), indent=None)
            else:
                out(("\n" if shown else "") + _text(session, question))
            shown.add((question.run_id, question.message_id))

    from subagent_server.cli.console.watch import watch  # imports watchdog, which only the watching needs

    watch(session, show)


def _wire(question: OpenQuestion) -> dict[str, Any]:
    return question.model_dump(mode="json", exclude_none=True)


def _text(session: Session, question: OpenQuestion) -> str:
    label = f" · {one_line(question.label)}" if question.label else ""
    return facts(
        [
            ("run", f"{question.run_id}  {one_line(question.agent)}{label}"),
            ("below", " → ".join(f"{one_line(run.agent)} {run.run_id}" for run in question.path or [])),
            ("task", one_line(question.prompt or "")),
            (one_line(question.message_id), f"? {escape_lines(question.question)}"),
            ("options", " | ".join(one_line(option) for option in question.options or [])),
            ("answer", session.command("reply", question.run_id, question.message_id, "ANSWER")),
        ]
    )
