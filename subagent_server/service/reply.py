"""Asking and answering. An answer never depends on anybody being there to take it."""

from datetime import timedelta

from pydantic import ValidationError

from subagent_server.domain import events
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument, MessageClosed, UnreadableMeta
from subagent_server.domain.limits import check_answer, check_question
from subagent_server.domain.records import Message, RunMeta
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller, NotAllowed, check_open
from subagent_server.service.context import Service
from subagent_server.service.masking import masker_at_door
from subagent_server.service.reconcile import Observed, observe
from subagent_server.store.runs import RunStore


def ask(
    store: RunStore, run_id: str, question: str, options: list[str] | None, timeout_seconds: float
) -> Message:
    """Record a question and return it. `timeout_seconds` is how long an answer is waited for.

    Raises:
        BadArgument: the question is empty or too long, or has too many options.
        TooManyQuestions: the run has as many as it may.
        IllegalTransition: the run has ended or has not begun.
    """
    check_question(question, options or ())
    moment = now()
    event = events.QuestionAsked(
        question=question,
        options=tuple(options or ()),
        expires_at=moment + timedelta(seconds=timeout_seconds),
    )
    return store.update(run_id, event, moment).messages[-1]


def ask_as_child(
    service: Service, run_id: str, question: str, options: list[str] | None, caller: Caller = USER
) -> Message:
    """Record a question that a run asks through a tool; it waits as long as its agent's file says.

    Raises:
        BadArgument, TooManyQuestions, IllegalTransition, InvalidRunId, UnknownRun, UnreadableMeta.
        NotAllowed: it is another run's.
    """
    check_open(caller, service.store.read(run_id))
    observe(service.store, run_id)
    masker = masker_at_door(service, run_id)
    question, masked = masker.text(question), masker.data(options)
    return ask(service.store, run_id, question, masked, _patience(service.store, run_id))


def _patience(store: RunStore, run_id: str) -> float:
    """Return how long a question of a run waits for its answer, in seconds."""
    try:
        agent = AgentDefinition.model_validate(store.read_request(run_id).agent)
    except ValidationError as error:
        path = store.paths.run(run_id).request.path
        raise UnreadableMeta(run_id, path, "the agent in it is none") from error
    return agent.limits.ask_timeout_seconds


def reply(
    service: Service,
    run_id: str,
    answer: str,
    message_id: str | None = None,
    *,
    answered_by: str = "parent",
    caller: Caller = USER,
) -> Observed:
    """Record an answer. `message_id` may be left out where exactly one question is open.

    Repeating the same answer succeeds and changes nothing. A secret in it is masked, as everywhere on disk.

    Raises:
        BadArgument, UnknownMessage, MessageClosed, InvalidRunId, UnknownRun, NotAllowed, ForeignRoot.
    """
    check_answer(answer)
    service.store.paths.check_ours()
    check_open(caller, service.store.read(run_id))
    if caller.run_id == run_id:
        raise NotAllowed(f"Run {run_id} asked that itself: its answer comes from its parent; wait for it.")
    meta = observe(service.store, run_id).meta
    named = message_id or _the_only_open_one(meta)
    masked = masker_at_door(service, run_id).text(answer)
    event = events.ReplyGiven(message_id=named, answer=masked, answered_by=answered_by)
    service.store.update(run_id, event, now())
    return observe(service.store, run_id)


def _the_only_open_one(meta: RunMeta) -> str:
    if not meta.pending:
        raise MessageClosed(
            f"Run {meta.run_id} ({meta.status.value}) has no open question: check_status shows what it does."
        )
    if len(meta.pending) > 1:
        names = ", ".join(f'{m.message_id} "{m.question_content[:60]}"' for m in meta.pending)
        raise BadArgument(f"Run {meta.run_id} has several open questions ({names}): name one with messageId.")
    return meta.pending[0].message_id
