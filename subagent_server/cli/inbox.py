"""`subagent inbox`: the questions that wait for an answer."""

from typing import Any

import click

from subagent_server.cli.flags import json_option
from subagent_server.cli.output import out, out_json, talk
from subagent_server.cli.session import Session, pass_session
from subagent_server.cli.text import escape_lines, facts, one_line
from subagent_server.service.listing import Listing
from subagent_server.service.status import check_status
from subagent_server.service.views import MessageView, RunView


@click.command()
@json_option
@pass_session
def inbox(session: Session, as_json: bool) -> None:
    """List the questions that wait for an answer.

    Each with the command that answers it. With --json: a list of questions.
    """
    listing = Listing(session.service.store.paths, caller=session.caller)
    views = [
        check_status(session.service, row.run_id, caller=session.caller)
        for row in listing.active
        if row.pending_questions
    ]
    found = [(view, message) for view in views for message in view.messages or []]
    if as_json:
        out_json([_wire(view, message) for view, message in found])
    elif found:
        out("\n\n".join(_letter(session, view, message) for view, message in found))
    else:
        talk("No run waits for an answer.")


def _wire(view: RunView, message: MessageView) -> dict[str, Any]:
    whose = {"runId": view.run_id, "agent": view.agent}
    label = {"label": view.label} if view.label else {}
    return {**whose, **label, **message.model_dump(mode="json", exclude_none=True)}


def _letter(session: Session, view: RunView, message: MessageView) -> str:
    label = f" · {one_line(view.label)}" if view.label else ""
    return facts(
        [
            ("run", f"{view.run_id}  {one_line(view.agent)}{label}"),
            (one_line(message.message_id), f"? {escape_lines(message.question)}"),
            ("options", " | ".join(one_line(option) for option in message.options or [])),
            ("answer", session.command("reply", view.run_id, message.message_id, "ANSWER")),
        ]
    )
