"""The life of a run, and of a question, as two tables.

A run is accepted (`ready`), works (`running`), may wait for its parent (`waiting_parent_reply`) and find an
answer that it has not read yet (`parent_replied`), and ends once: `completed`, `failed` or `stopped`. Nothing
outside this module decides what may follow what; the diagram in docs/pictures.md is drawn from `TRANSITIONS`.

Standard library only: the shim imports this module.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TypeVar

from subagent_server.run.errors import BadArgument, IllegalTransition, InvalidRunId

LAUNCHER = r"local|slurm|ssh:[A-Za-z0-9_][A-Za-z0-9_.@-]{0,252}"
"""A host of the user's own `ssh` configuration never begins like an option of `ssh`."""


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
    # `agent_complete` may come while the run still waits for a slot.
    Status.READY: {Event.WORKER_STARTED: Status.RUNNING, Event.FINISHED: Status.COMPLETED, **_ENDINGS},
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
"""What a run can do, in the words of a refusal."""

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


def next_status(run_id: str, status: Status, event: Event, messages: Iterable[MessageStatus]) -> Status:
    """Return the status after `event`; `messages` are the statuses of the run's questions as they then are.

    Raises:
        IllegalTransition: the table has no such step. Ask `is_settled` first.
    """
    if event in ALWAYS:
        return status
    target = TRANSITIONS[status].get(event)
    if target is None:
        possible = [_IN_WORDS[legal] for legal in TRANSITIONS[status]]
        raise IllegalTransition(run_id, status.value, _IN_WORDS[event], possible)
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


# -- Run ids: made to sort by time, checked before any path is built from one.


MAX_LENGTH = 32
RUN_ID_PATTERN = rf"[a-z0-9][a-z0-9-]{{0,{MAX_LENGTH - 1}}}"
_RUN_ID = re.compile(RUN_ID_PATTERN)
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no letter that is taken for a digit


def make_run_id(now: datetime, entropy: bytes) -> str:
    """Return an id that sorts by `now` (milliseconds, UTC), such as `20261122-093015-417-k3f9qz`.

    `entropy` is at least six random bytes; they make two ids of one millisecond differ.
    """
    utc = now.astimezone(UTC)
    tail = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in entropy[:6])
    return f"{utc:%Y%m%d-%H%M%S}-{utc.microsecond // 1000:03d}-{tail}"


def check_run_id(text: str) -> str:
    """Return `text` if it may name a run directory.

    Raises:
        InvalidRunId: it holds anything but 1 to 32 of `[a-z0-9-]`, or starts with a dash.
    """
    if not is_run_id(text):
        raise InvalidRunId(text)
    return text


def is_run_id(text: str) -> bool:
    """Whether `text` may name a run directory."""
    return _RUN_ID.fullmatch(text) is not None


# -- How this product writes times.


def timestamp(moment: datetime) -> str:
    """Return `moment` as text: UTC, milliseconds, `Z`."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"


# -- The version of the stored records.


SCHEMA_VERSION = 2
"""Version 2 added `rootRunId`, `depth`, `withDescendants` and `launch`; version 1 files load."""


# -- How much of a run's state a model, a child or a caller may fill: every number is here alone.
#
# The doors refuse an excess before anything changes. What the built-in loop itself reports of its run is cut
# instead, because nothing that was paid for may be lost. Reading knows no such bounds: a state that an
# earlier version wrote is read as it is; views and lists show as much of it as they would of a new one.


MAX_PROMPT_CHARACTERS = 1_000_000
MAX_LABEL_CHARACTERS = 200
MAX_QUESTION_CHARACTERS = 20_000
MAX_OPTIONS = 20
MAX_OPTION_CHARACTERS = 200
MAX_OPEN_QUESTIONS = 16
MAX_QUESTIONS = 200
MAX_ANSWER_CHARACTERS = 200_000
MAX_TALK_CHARACTERS = 4_000_000
"""Of all questions, options and answers of a run: its state stays far below what readers take."""
MAX_SUMMARY_CHARACTERS = 4_000
"""Of a summary, a failure's message, and the reason of a stop."""
MAX_REPORT_CHARACTERS = 200_000
"""Of a summary as a program reports it: the state has its beginning, and the result of an end all of it."""
MAX_PAYLOAD_BYTES = 64 << 20
PROGRESS_SECONDS = 1.0
"""Reports of progress that come closer together are one transition, with the latest summary."""

_INTO_A_FILE = "shorten it, and put the material into a file that it names."


def check_question(question: str, options: Sequence[str]) -> None:
    """Refuse a question that is empty or too large.

    Raises:
        BadArgument.
    """
    if not question.strip():
        raise BadArgument("The question is empty: say what the parent should decide.")
    _check("The question", question, MAX_QUESTION_CHARACTERS)
    if len(options) > MAX_OPTIONS:
        raise BadArgument(
            f"The question has {len(options):,} of at most {MAX_OPTIONS} options: offer the likeliest."
        )
    for number, option in enumerate(options, start=1):
        _check(f"Option {number}", option, MAX_OPTION_CHARACTERS)


def check_answer(answer: str) -> None:
    """Refuse an answer that is empty or too long. Raises BadArgument."""
    if not answer.strip():
        raise BadArgument("The answer is empty: give the text that the agent is to read.")
    _check("The answer", answer, MAX_ANSWER_CHARACTERS)


def check_summary(summary: str | None) -> None:
    """Refuse a summary that is too long even for a result. Raises BadArgument."""
    _check("The summary", summary or "", MAX_REPORT_CHARACTERS, "shorten it; `payload` takes the whole.")


def check_reason(reason: str | None) -> None:
    """Refuse the reason of a stop that is too long. Raises BadArgument."""
    _check("The reason", reason or "", MAX_SUMMARY_CHARACTERS, "shorten it.")


def check_payload_size(size: int) -> None:
    """Refuse a payload of so many bytes if they are too many. Raises BadArgument."""
    if size > MAX_PAYLOAD_BYTES:
        raise BadArgument(
            f"The payload has {size:,} of at most {MAX_PAYLOAD_BYTES:,} bytes: leave it in a file, "
            "and name that in the summary."
        )


def cut(text: str, most: int = MAX_SUMMARY_CHARACTERS) -> str:
    """Return at most `most` characters of a text that its run itself has made."""
    return text if len(text) <= most else text[: most - 1] + "…"


def maybe_cut(text: str | None, most: int = MAX_SUMMARY_CHARACTERS) -> str | None:
    """The same of a text that may be missing."""
    return None if text is None else cut(text, most)


def _check(what: str, text: str, most: int, instead: str = _INTO_A_FILE) -> None:
    if len(text) > most:
        raise BadArgument(f"{what} has {len(text):,} of at most {most:,} characters: {instead}")


# -- Numbers of runs that may be unknown: tokens, turns, calls, money.
#
# An unknown number is None, never 0. A sum with an unknown part is the sum of the other parts, marked as
# "at least".


N = TypeVar("N", int, Decimal)
TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
"""The counts of tokens of every kind, as files and views name them."""


def added(one: N | None, other: N | None) -> tuple[N | None, bool]:
    """Return the sum of two numbers, and whether a part of it is missing.

    The sum of an unknown number and 0 is unknown: "at least 0" would mean no more.
    """
    if one is None and other is None:
        return None, True
    if one is None or other is None:
        known = other if one is None else one
        return (known, True) if known else (None, False)
    return one + other, False


def left_of(total: int | None, part: int | None, *, is_least: bool) -> tuple[int | None, bool]:
    """Return what the rest of a sum is without one of its parts, and whether some of the rest is missing.

    With `is_least` some of the sum is missing. If that may be the `part` alone, the rest is marked all
    the same, until somebody adds it up anew.
    """
    if total is None:
        return (None, False) if is_least or part is not None else (0, False)
    rest = max(0, total - (part or 0))
    return (None, False) if is_least and not rest else (rest, is_least)


def least_mark(at_least: Collection[str], *names: str) -> str:
    """Return the sign before a sum of which a part is not known, in tables."""
    return "≥" if any(name in at_least for name in names) else ""


def known_sum(*counts: int | None) -> int | None:
    """Return the sum of the known values; None if all are unknown."""
    known = [figure for figure in counts if figure is not None]
    return sum(known) if known else None


# -- Amounts of money as people read them: in dollars, with as many digits as matter.


_EXACT = Decimal("0.0001")


def dollars(amount: object) -> str:
    """Return an amount in USD to a hundredth of a cent, `$0.0123`; what is no number is shown as it is."""
    try:
        value = Decimal(str(amount))
        if 0 < value < _EXACT:
            return f"<${_EXACT}"
        return f"${value.quantize(_EXACT).normalize():f}"
    except InvalidOperation:
        return f"${amount}"
