"""`subagent reply`: answer a question of a run."""

import click

from subagent_server.cli.console.complete import complete_runs
from subagent_server.cli.console.flags import TEXT, json_option
from subagent_server.cli.console.output import out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.stdin import argument_or_stdin
from subagent_server.domain.errors import BadArgument
from subagent_server.service import reply as answering
from subagent_server.service.access import NotAllowed
from subagent_server.service.open_run import open_run


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("words", nargs=-1, type=TEXT, metavar="[MESSAGE] ANSWER|-")
@json_option
@pass_session
def reply(session: Session, run: str, words: tuple[str, ...], as_json: bool) -> None:
    """Answer a question of a run.

    MESSAGE is the id of the question (q1, ...); it may be left out if only one is open. `-` reads the answer
    from stdin. An answer that begins with a dash goes after `--`. Repeating an answer changes nothing.
    """
    if not 1 <= len(words) <= 2:
        raise click.UsageError("Give the run, the question if several are open, and the answer in quotes.")
    run_id = session.run_id(run)
    message_id = words[0] if len(words) == 2 else None
    caller = session.leader()
    if caller.run_id == run_id:
        raise NotAllowed(f"Run {run_id} asked that itself: its parent or a person answers it.")
    if message_id is None:
        _refuse_a_question_for_an_answer(session, run_id, words[0])
    answer = argument_or_stdin(words[-1], "answer")
    if not answer.strip():
        raise BadArgument("The answer is empty, and the agent would go on with nothing: give it in quotes.")
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


def _refuse_a_question_for_an_answer(session: Session, run_id: str, word: str) -> None:
    """Refuse `reply RUN q1`, which forgets the answer; `reply RUN q1 q1` is possible.

    Raises:
        BadArgument: the only word is the id of an open question.
    """
    pending = open_run(session.service, run_id, session.caller).meta.pending
    if any(message.message_id == word for message in pending):
        raise BadArgument(f"{word} is the question: give the answer behind it.")
