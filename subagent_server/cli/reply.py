"""`subagent reply`: answer a question of a run, or all open questions one after the other."""

import click

from subagent_server.cli.console.app import Session, complete_runs, pass_session
from subagent_server.cli.console.asking import ask_person, question_context
from subagent_server.cli.console.follow import watching
from subagent_server.cli.console.output import TEXT, err, has_person, json_option, out, out_json
from subagent_server.cli.run import argument_or_stdin
from subagent_server.run.errors import BadArgument
from subagent_server.verbs import questions as answering
from subagent_server.verbs.access import NotAllowed
from subagent_server.verbs.questions import open_questions

_USAGE = "Give the run, the question if several are open, and the answer in quotes."


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.argument("words", nargs=-1, type=TEXT, metavar="[MESSAGE] ANSWER|-")
@json_option
@pass_session
def reply(session: Session, run: str | None, words: tuple[str, ...], as_json: bool) -> None:
    """Answer a question of a run.

    MESSAGE is the id of the question (q1, ...); it may be left out if only one is open. `-` reads the answer
    from stdin. An answer that begins with a dash goes after `--`. Repeating an answer changes nothing.

    On a terminal, without an answer: ask the open questions of RUN, or of all runs, one after the other.
    """
    if len(words) > 2 or (not words and (as_json or not has_person())):
        raise click.UsageError(_USAGE)
    run_id = None if run is None else session.run_id(run)
    caller = session.leader()
    if run_id is not None and caller.run_id == run_id:
        raise NotAllowed(f"Run {run_id} asked that itself: its parent or a person answers it.")
    if not words:
        _walk(session, run_id)
        return
    assert run_id is not None  # words come behind it
    message_id = words[0] if len(words) == 2 else None
    if message_id is None:  # `reply RUN q1` forgets the answer; `reply RUN q1 q1` is possible
        pending = session.open_run(run_id).meta.pending
        if any(message.message_id == words[0] for message in pending):
            raise BadArgument(f"{words[0]} is the question: give the answer after it.")
    answer = argument_or_stdin(words[-1], "answer")
    if not answer.strip():
        raise BadArgument("The answer is empty. Pass the text in quotes.")
    observed = answering.reply(
        session.service,
        run_id,
        answer,
        message_id,
        answered_by="parent" if caller.is_child else "person",
        caller=caller,
    )
    if as_json:
        out_json(session.view(observed).to_wire())
        return
    still = observed.meta.pending_questions
    left = f"; {still} still wait{'s' if still == 1 else ''} for one" if still else ""
    out(f"The answer to run {run_id} is recorded{answering.masked_note(observed.meta, answer)}{left}.")


def _walk(session: Session, run_id: str | None) -> None:
    """Ask the person the open questions, the oldest first; Ctrl-D leaves one open and goes to the next."""
    met: set[tuple[str, str]] = set()
    while True:
        questions = [
            question
            for question in open_questions(session.service, session.caller)
            if run_id in (None, question.run_id) and (question.run_id, question.message_id) not in met
        ]
        if not questions:
            break
        question = questions[0]
        met.add((question.run_id, question.message_id))
        message = session.open_run(question.run_id).meta.message(question.message_id)
        if message is not None:
            err(f"\n{question_context(question)}")
            with watching(session, question.run_id):
                ask_person(session, question.run_id, message)
    if not met:
        err("No run waits for an answer." if run_id is None else f"Run {run_id} waits for no answer.")
