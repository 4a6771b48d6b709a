"""The life of a run, and of a question, as two tables.

A run is accepted (`ready`), works (`running`), may wait for its parent (`waiting_parent_reply`) and find an
answer that it has not read yet (`parent_replied`), and ends once: `completed`, `failed` or `stopped`. Nothing
outside this module decides what may follow what; the diagram in docs/pictures.md is drawn from `TRANSITIONS`.

Standard library only: the shim imports this module.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from subagent_server.domain.errors import IllegalTransition


class Status(StrEnum):
    """How far a run is."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting_parent_reply"
    REPLIED = "parent_replied"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        """Whether no event leaves this status."""
        return self in TERMINAL


class Event(StrEnum):
    """An event of a run, by its name in the table."""

    WORKER_STARTED = "worker_started"
    QUESTION_ASKED = "question_asked"
    REPLY_GIVEN = "reply_given"
    REPLY_ACKNOWLEDGED = "reply_acknowledged"
    QUESTION_EXPIRED = "question_expired"
    PROGRESS_REPORTED = "progress_reported"
    FINISHED = "finished"
    USAGE_SETTLED = "usage_settled"
    RUN_FAILED = "failed"
    STOP_REQUESTED = "stop_requested"


class Target(StrEnum):
    """A next status that depends on the run itself."""

    DERIVED = "derived"  # from the questions that are open
    SAME = "same"


class MessageStatus(StrEnum):
    """How far a question is."""

    PENDING = "pending_parent_reply"
    REPLIED = "parent_replied"
    ACKNOWLEDGED = "acknowledged_by_subagent"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.STOPPED})

_ENDINGS: Mapping[Event, Status | Target] = {
    Event.RUN_FAILED: Status.FAILED,
    Event.STOP_REQUESTED: Status.STOPPED,
}
_WORKING: Mapping[Event, Status | Target] = {
    Event.QUESTION_ASKED: Target.DERIVED,
    Event.PROGRESS_REPORTED: Target.SAME,
    Event.FINISHED: Status.COMPLETED,
    **_ENDINGS,
}
_ASKING: Mapping[Event, Status | Target] = {
    **_WORKING,
    Event.REPLY_GIVEN: Target.DERIVED,
    Event.REPLY_ACKNOWLEDGED: Target.DERIVED,
    Event.QUESTION_EXPIRED: Target.DERIVED,
}

TRANSITIONS: Mapping[Status, Mapping[Event, Status | Target]] = {
    Status.READY: {Event.WORKER_STARTED: Status.RUNNING, **_ENDINGS},
    Status.RUNNING: _WORKING,
    Status.WAITING: _ASKING,
    Status.REPLIED: _ASKING,
    Status.COMPLETED: {},
    Status.FAILED: {},
    Status.STOPPED: {},
}

ALWAYS = frozenset({Event.USAGE_SETTLED})
"""Legal in every status, terminal ones too: adds usage and nothing else."""

TERMINAL_EVENTS = frozenset({Event.FINISHED, Event.RUN_FAILED, Event.STOP_REQUESTED})
"""The first of these wins; a later one on a run that has ended is a success that changes nothing."""

_IN_WORDS: Mapping[Event, str] = {
    Event.WORKER_STARTED: "begin",
    Event.QUESTION_ASKED: "ask",
    Event.REPLY_GIVEN: "be answered",
    Event.REPLY_ACKNOWLEDGED: "take an answer",
    Event.QUESTION_EXPIRED: "give up a question",
    Event.PROGRESS_REPORTED: "report progress",
    Event.FINISHED: "complete",
    Event.RUN_FAILED: "fail",
    Event.STOP_REQUESTED: "be stopped",
}
"""What a run can do, as a refusal says it."""

MESSAGE_TRANSITIONS: Mapping[MessageStatus, frozenset[MessageStatus]] = {
    MessageStatus.PENDING: frozenset({MessageStatus.REPLIED, MessageStatus.EXPIRED, MessageStatus.CANCELLED}),
    MessageStatus.REPLIED: frozenset({MessageStatus.ACKNOWLEDGED, MessageStatus.CANCELLED}),
    MessageStatus.ACKNOWLEDGED: frozenset(),
    MessageStatus.EXPIRED: frozenset(),
    MessageStatus.CANCELLED: frozenset(),
}


def is_settled(status: Status, event: Event) -> bool:
    """Whether `event` comes too late to matter: the run has ended, and another end changes nothing."""
    return status.is_terminal and event in TERMINAL_EVENTS


def legal_events(status: Status) -> list[Event]:
    """Return the events that would change a run in `status`, in the order of the table."""
    return list(TRANSITIONS[status])


def next_status(run_id: str, status: Status, event: Event, messages: Iterable[MessageStatus]) -> Status:
    """Return the status after `event`, given the statuses of the run's questions as they then are.

    Raises:
        IllegalTransition: the table has no such step. Ask `is_settled` first.
    """
    if event in ALWAYS:
        return status
    target = TRANSITIONS[status].get(event)
    if target is None:
        possible = [_IN_WORDS[legal] for legal in legal_events(status)]
        raise IllegalTransition(run_id, status.value, event.value, _IN_WORDS[event], possible)
    if target is Target.SAME:
        return status
    if target is Target.DERIVED:
        return derived_status(messages)
    return Status(target)


def derived_status(messages: Iterable[MessageStatus]) -> Status:
    """Return the status of a working run by its questions: an unread answer goes before an open question."""
    statuses = set(messages)
    if MessageStatus.REPLIED in statuses:
        return Status.REPLIED
    if MessageStatus.PENDING in statuses:
        return Status.WAITING
    return Status.RUNNING


def may_follow(current: MessageStatus, target: MessageStatus) -> bool:
    """Whether a question may go from `current` to `target`."""
    return target in MESSAGE_TRANSITIONS[current]
