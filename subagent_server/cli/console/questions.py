"""Open questions as a person reads them: of which run, about what, and until when."""

from datetime import UTC, datetime

from subagent_server.cli.console.row_cells import run_cell
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import duration, escape_lines, facts, one_line, prose
from subagent_server.service.inbox import OpenQuestion


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
