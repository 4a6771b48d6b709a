"""The events of a run with their facts, and `apply`, the one step from a state to the next. Pure.

`Event` names the events in the table of `states.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from subagent_server.run.errors import BadArgument, MessageClosed, TooManyQuestions, UnknownMessage, shorten
from subagent_server.run.records import (
    Failure,
    Message,
    PayloadInfo,
    RunMeta,
    Transition,
    Usage,
    WorkerIdentity,
)
from subagent_server.run.states import (
    MAX_OPEN_QUESTIONS,
    MAX_QUESTIONS,
    MAX_TALK_CHARACTERS,
    PROGRESS_SECONDS,
    Event,
    MessageStatus,
    Status,
    is_settled,
    may_follow,
    next_status,
    timestamp,
)


@dataclass(frozen=True, kw_only=True)
class WorkerStarted:
    """The worker lives and begins."""

    event: ClassVar[Event] = Event.WORKER_STARTED
    worker: WorkerIdentity


@dataclass(frozen=True, kw_only=True)
class QuestionAsked:
    """The subagent asks; `options` are suggestions and never limit the answer."""

    event: ClassVar[Event] = Event.QUESTION_ASKED
    question: str
    options: tuple[str, ...] = ()
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class ReplyGiven:
    """The parent, or a person instead of it, answers. `answered_by` is `parent` or `person`."""

    event: ClassVar[Event] = Event.REPLY_GIVEN
    message_id: str
    answer: str
    answered_by: str = "parent"


@dataclass(frozen=True, kw_only=True)
class ReplyAcknowledged:
    """The subagent has read the answer. `masked` is it without the secrets that only the worker knows."""

    event: ClassVar[Event] = Event.REPLY_ACKNOWLEDGED
    message_id: str
    masked: str | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionExpired:
    """No answer came in time."""

    event: ClassVar[Event] = Event.QUESTION_EXPIRED
    message_id: str


@dataclass(frozen=True, kw_only=True)
class ProgressReported:
    """The subagent reports in a sentence how far it is.

    `external_session_id` is the conversation of a program that carries out the run, once it has one.
    """

    event: ClassVar[Event] = Event.PROGRESS_REPORTED
    summary: str | None = None
    external_session_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The work is done and its result is stored."""

    event: ClassVar[Event] = Event.FINISHED
    summary: str | None = None
    payload: PayloadInfo | None = None
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class RunFailed:
    """The run cannot continue. Summary and payload are those that it had reported before."""

    event: ClassVar[Event] = Event.RUN_FAILED
    failure: Failure
    summary: str | None = None
    payload: PayloadInfo | None = None
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class StopRequested:
    """Somebody wants the run to end."""

    event: ClassVar[Event] = Event.STOP_REQUESTED
    reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class UsageSettled:
    """A cost that was not yet written, of the run or of runs below it; `usage` is the total of the run."""

    event: ClassVar[Event] = Event.USAGE_SETTLED
    usage: Usage


RunEvent = (
    WorkerStarted
    | QuestionAsked
    | ReplyGiven
    | ReplyAcknowledged
    | QuestionExpired
    | ProgressReported
    | Finished
    | RunFailed
    | StopRequested
    | UsageSettled
)


# -- From one state of a run to the next: the only code that changes a `RunMeta`.


_OPEN = frozenset({MessageStatus.PENDING, MessageStatus.REPLIED})


def apply(meta: RunMeta, event: RunEvent, now: datetime, below: Usage | None = None) -> RunMeta:
    """Return the run after `event`; the very same object if the event changes nothing.

    `below` is what all runs below this one have cost, where somebody has added it up: like every total it
    only grows, so an older sum that comes late takes nothing away.

    The message table is asked first, so repeating an answer or an acknowledgement succeeds whatever the
    run's status. A second end of a run that has ended succeeds too (seed `agent_mcp_server`: idempotent).
    A report of progress with nothing new changes nothing; one within a second of the last transition
    for a report leaves its summary and takes no transition of its own.

    Raises:
        IllegalTransition, UnknownMessage, MessageClosed, TooManyQuestions, BadArgument: the event is refused;
            `meta` is as it was.
    """
    if is_settled(meta.status, event.event) or _is_known(meta, event, below):
        return meta
    changed = _change_messages(meta, event, now)
    if changed is None:
        return meta
    status = next_status(
        meta.run_id,
        meta.status,
        event.event,
        (m.message_status for m in changed.get("messages", meta.messages)),
    )
    _check_room(meta, event)
    changed |= _facts(meta, event, now) | _costs(meta, event, below)
    last_report = _last_report(meta) if isinstance(event, ProgressReported) else None
    if last_report is not None:
        if all(changed.get(name, getattr(meta, name)) == getattr(meta, name) for name in _REPORTED):
            return meta
        if now - last_report < timedelta(seconds=PROGRESS_SECONDS):
            return meta.model_copy(update={**changed, "revision": meta.revision + 1})
    if status.is_terminal and not meta.status.is_terminal:
        changed["messages"] = [_cancelled(message) for message in changed.get("messages", meta.messages)]
        changed["stopped_at" if status is Status.STOPPED else "completed_at"] = now
    return _advanced(meta, event, status, changed, now)


_REPORTED = ("summary", "external_session_id")
"""The fields that a report of progress may set."""


def _is_known(meta: RunMeta, event: RunEvent, below: Usage | None) -> bool:
    """Whether the event only repeats the known cost of the run and of the runs below it."""
    if not isinstance(event, UsageSettled):
        return False
    costs = _costs(meta, event, below)
    return costs["usage"] == meta.usage and costs["with_descendants"] == meta.with_descendants


def _check_room(meta: RunMeta, event: RunEvent) -> None:
    """Refuse a question beyond the number that a run may have, and words beyond what its state holds."""
    if isinstance(event, QuestionAsked | ReplyGiven):
        _check_talk(meta, event)
    if not isinstance(event, QuestionAsked):
        return
    if len(meta.pending) >= MAX_OPEN_QUESTIONS:
        raise TooManyQuestions(meta.run_id, len(meta.pending), still_open=True)
    if len(meta.messages) >= MAX_QUESTIONS:
        raise TooManyQuestions(meta.run_id, len(meta.messages), still_open=False)


def _check_talk(meta: RunMeta, event: QuestionAsked | ReplyGiven) -> None:
    recorded = sum(
        len(text)
        for m in meta.messages
        for text in (m.question_content, m.answer_content or "", *(m.options or ()))
    )
    new = [event.answer] if isinstance(event, ReplyGiven) else [event.question, *event.options]
    if recorded + sum(map(len, new)) > MAX_TALK_CHARACTERS:
        raise BadArgument(
            f"Run {meta.run_id} may hold {MAX_TALK_CHARACTERS:,} characters of questions and answers, and "
            "this goes beyond them: shorten it, and put the material into a file that it names."
        )


def _last_report(meta: RunMeta) -> datetime | None:
    """Return when a report of progress was last taken down as a transition."""
    reports = (step.at for step in reversed(meta.transitions) if step.event is Event.PROGRESS_REPORTED)
    return next(reports, None)


def _costs(meta: RunMeta, event: RunEvent, below: Usage | None) -> dict[str, Usage]:
    """Return what the run has cost after `event`, alone and with all runs below it."""
    usage = meta.usage.merged(getattr(event, "usage", None))
    descendants = meta.with_descendants.less(meta.usage).caught_up(below)
    return {"usage": usage, "with_descendants": usage.plus(descendants)}


def _advanced(
    meta: RunMeta, event: RunEvent, status: Status, changed: dict[str, Any], now: datetime
) -> RunMeta:
    step = Transition(event=event.event, from_status=meta.status, to_status=status, at=now)
    messages: list[Message] = changed.get("messages", meta.messages)
    return meta.model_copy(
        update={
            **changed,
            "status": status,
            "revision": meta.revision + 1,
            "pending_questions": sum(m.message_status is MessageStatus.PENDING for m in messages),
            "transitions": [*meta.transitions, step],
        }
    )


def _change_messages(meta: RunMeta, event: RunEvent, now: datetime) -> dict[str, Any] | None:
    """Return the questions as `event` leaves them, or None if it has already happened."""
    if isinstance(event, QuestionAsked):
        return {"messages": [*meta.messages, _asked(meta, event, now)]}
    change = _MESSAGE_CHANGES.get(type(event))
    if change is None:
        return {}
    message = _named(meta, event)
    after = change(meta, message, event, now)
    if after is message:
        return None
    return {"messages": [after if m is message else m for m in meta.messages]}


def _named(meta: RunMeta, event: Any) -> Message:
    message = meta.message(event.message_id)
    if message is None:
        raise UnknownMessage(meta.run_id, event.message_id, [m.message_id for m in meta.pending])
    return message


def _asked(meta: RunMeta, event: QuestionAsked, now: datetime) -> Message:
    return Message(
        message_id=f"q{len(meta.messages) + 1}",
        question_content=event.question,
        options=list(event.options) or None,
        question_timestamp=now,
        asked_revision=meta.revision + 1,
        expires_at=event.expires_at,
        message_status=MessageStatus.PENDING,
    )


def _answered(meta: RunMeta, message: Message, event: ReplyGiven, now: datetime) -> Message:
    if message.answer_content == event.answer:
        return message
    if not may_follow(message.message_status, MessageStatus.REPLIED):
        raise MessageClosed(_why_closed(meta, message))
    return message.model_copy(
        update={
            "answer_content": event.answer,
            "answer_timestamp": now,
            "answered_by": event.answered_by,
            "message_status": MessageStatus.REPLIED,
        }
    )


def _acknowledged(meta: RunMeta, message: Message, event: ReplyAcknowledged, now: datetime) -> Message:
    if message.message_status is MessageStatus.ACKNOWLEDGED:
        return message
    if not may_follow(message.message_status, MessageStatus.ACKNOWLEDGED):
        raise MessageClosed(
            f"Question {message.message_id} of run {meta.run_id} is {message.message_status.value}, "
            "so there is no answer to acknowledge: check_status shows what it waits for."
        )
    answer = message.answer_content if event.masked is None else event.masked
    return message.model_copy(update={"answer_content": answer, "message_status": MessageStatus.ACKNOWLEDGED})


def _expired(meta: RunMeta, message: Message, event: QuestionExpired, now: datetime) -> Message:
    """An answer that came first counts: only a question that is still pending expires."""
    if not may_follow(message.message_status, MessageStatus.EXPIRED):
        return message
    return message.model_copy(update={"message_status": MessageStatus.EXPIRED})


_MESSAGE_CHANGES: dict[type[Any], Callable[[RunMeta, Message, Any, datetime], Message]] = {
    ReplyGiven: _answered,
    ReplyAcknowledged: _acknowledged,
    QuestionExpired: _expired,
}


def _cancelled(message: Message) -> Message:
    if message.message_status not in _OPEN:
        return message
    return message.model_copy(update={"message_status": MessageStatus.CANCELLED})


_GO_ON = "start or continue a run instead"


def _why_closed(meta: RunMeta, message: Message) -> str:
    where = f"Question {message.message_id} of run {meta.run_id}"
    if message.answer_content is not None:
        at = f"at {timestamp(message.answer_timestamp)}" if message.answer_timestamp else "earlier"
        more = _GO_ON if meta.status.is_terminal else "tell the agent more with its next question"
        return (
            f"{where} was answered by the {message.answered_by or 'parent'} {at} with "
            f"{shorten(message.answer_content)} and keeps that answer: {more}."
        )
    if message.message_status is MessageStatus.EXPIRED:
        if meta.status.is_terminal:
            return f"{where} expired without an answer before the run ended ({meta.status.value}): {_GO_ON}."
        return f"{where} expired without an answer and the agent went on: wait for its next question."
    return f"{where} was cancelled when the run ended ({meta.status.value}): {_GO_ON}."


def _facts(meta: RunMeta, event: RunEvent, now: datetime) -> dict[str, Any]:
    """Return the fields that `event` brings along, whatever the status becomes."""
    match event:
        case WorkerStarted(worker=worker):
            return {"worker": worker, "started_at": now}
        case Finished(summary=summary, payload=payload):
            return {"summary": summary or meta.summary, "payload": payload or meta.payload}
        case RunFailed(failure=failure, summary=summary, payload=payload):
            end = {"summary": summary or meta.summary, "payload": payload or meta.payload}
            return {"error": failure, **end}
        case StopRequested(reason=str(reason)):
            return {"summary": reason}
        case ProgressReported(summary=summary, external_session_id=session):
            reported = {"summary": summary, "external_session_id": session}
            return {name: value for name, value in reported.items() if value is not None}
        case _:
            return {}
