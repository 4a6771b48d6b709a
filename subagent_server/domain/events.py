"""The events of a run, each with its facts. `Event` names them in the table."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from subagent_server.domain.records import Failure, PayloadInfo, Usage, WorkerIdentity
from subagent_server.domain.states import Event


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
    """The parent, or a person in its place, answers. `answered_by` is `parent` or `person`."""

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
    """The subagent says in a sentence how far it is.

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
    """The run cannot go on. Summary and payload are those that it had given before."""

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
