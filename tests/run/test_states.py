"""Every pair of the run table and of the question table, written out by hand from SPEC section 4."""

from itertools import chain, combinations

import pytest

from subagent_server.run.errors import IllegalTransition
from subagent_server.run.states import (
    ALWAYS,
    MESSAGE_TRANSITIONS,
    TRANSITIONS,
    Event,
    MessageStatus,
    Status,
    derived_status,
    is_settled,
    legal_events,
    may_follow,
    next_status,
)

COLUMNS = ("ready", "running", "waiting_parent_reply", "parent_replied", "completed", "failed", "stopped")
TABLE = """
worker_started      running    -          -          -          -    -    -
question_asked      -          derived    derived    derived    -    -    -
reply_given         -          -          derived    derived    -    -    -
reply_acknowledged  -          -          derived    derived    -    -    -
question_expired    -          -          derived    derived    -    -    -
progress_reported   -          same       same       same       -    -    -
finished            completed  completed  completed  completed  late late late
usage_settled       same       same       same       same       same same same
failed              failed     failed     failed     failed     late late late
stop_requested      stopped    stopped    stopped    stopped    late late late
"""
"""`-` is illegal; `late` is a success that changes nothing; `derived` and `same` as in SPEC section 4."""

CELLS = [
    (status, event, cell)
    for event, *cells in (line.split() for line in TABLE.strip().splitlines())
    for status, cell in zip(COLUMNS, cells, strict=True)
]
LEGAL = {
    "ready": ["worker_started", "finished", "failed", "stop_requested"],
    "running": ["question_asked", "progress_reported", "finished", "failed", "stop_requested"],
    "waiting_parent_reply": [
        *["question_asked", "progress_reported", "finished", "failed", "stop_requested"],
        *["reply_given", "reply_acknowledged", "question_expired"],
    ],
    "parent_replied": [
        *["question_asked", "progress_reported", "finished", "failed", "stop_requested"],
        *["reply_given", "reply_acknowledged", "question_expired"],
    ],
    "completed": [],
    "failed": [],
    "stopped": [],
}

MESSAGE_TABLE = {
    "pending_parent_reply": {"parent_replied", "expired", "cancelled"},
    "parent_replied": {"acknowledged_by_subagent", "cancelled"},
    "acknowledged_by_subagent": set(),
    "expired": set(),
    "cancelled": set(),
}
MESSAGE_PAIRS = [(current, target) for current in MESSAGE_TABLE for target in MESSAGE_TABLE]

DERIVED = [
    ("", "running"),
    ("pending_parent_reply", "waiting_parent_reply"),
    ("parent_replied", "parent_replied"),
    ("acknowledged_by_subagent", "running"),
    ("expired", "running"),
    ("cancelled", "running"),
    ("pending_parent_reply pending_parent_reply", "waiting_parent_reply"),
    ("pending_parent_reply parent_replied", "parent_replied"),
    ("parent_replied pending_parent_reply", "parent_replied"),
    ("acknowledged_by_subagent pending_parent_reply", "waiting_parent_reply"),
    ("acknowledged_by_subagent parent_replied", "parent_replied"),
    ("expired pending_parent_reply", "waiting_parent_reply"),
    ("expired acknowledged_by_subagent", "running"),
    ("acknowledged_by_subagent expired cancelled", "running"),
    ("cancelled expired acknowledged_by_subagent parent_replied pending_parent_reply", "parent_replied"),
]


def test_the_tables_here_leave_no_pair_out() -> None:
    assert {(status, event) for status, event, _ in CELLS} == {
        (status.value, event.value) for status in Status for event in Event
    }
    assert set(MESSAGE_TABLE) == {status.value for status in MessageStatus}
    assert set(TRANSITIONS) == set(Status)


@pytest.mark.parametrize(("status", "event", "cell"), CELLS)
def test_every_pair_of_status_and_event_does_what_the_contract_says(
    status: str, event: str, cell: str
) -> None:
    assert is_settled(Status(status), Event(event)) == (cell == "late")
    if cell in ("-", "late"):
        with pytest.raises(IllegalTransition):
            next_status("r1", Status(status), Event(event), [])
        return
    after = {"same": status, "derived": "running"}.get(cell, cell)
    assert next_status("r1", Status(status), Event(event), []) == after


@pytest.mark.parametrize(("status", "event"), [(s, e) for s, e, cell in CELLS if cell == "derived"])
@pytest.mark.parametrize(("messages", "after"), DERIVED)
def test_a_derived_status_is_that_of_the_questions_whatever_it_was_before(
    status: str, event: str, messages: str, after: str
) -> None:
    asked = [MessageStatus(name) for name in messages.split()]
    assert next_status("r1", Status(status), Event(event), asked) == after


@pytest.mark.parametrize(("status", "event"), [(s, e) for s, e, cell in CELLS if cell == "-"])
def test_a_refusal_names_the_run_its_status_the_event_and_what_would_be_legal(
    status: str, event: str
) -> None:
    with pytest.raises(IllegalTransition) as refused:
        next_status("r1", Status(status), Event(event), [])
    error = refused.value
    assert (error.run_id, error.status, error.event, error.code) == ("r1", status, event, "wrong_state")
    assert error.sentence.startswith(f"Run r1 is {status}, so it cannot ")
    internal = {name for name in LEGAL["running"] + LEGAL["ready"] + [event] if "_" in name}
    assert not any(name in error.sentence for name in internal), "people do not know these names"
    assert "continue_run" in error.sentence if not LEGAL[status] else "it can " in error.sentence
    if status == "ready":
        assert ": it can begin, complete, fail or be stopped; check_status shows" in error.sentence


@pytest.mark.parametrize("status", COLUMNS)
def test_the_legal_events_are_those_of_the_row(status: str) -> None:
    assert sorted(legal_events(Status(status))) == sorted(LEGAL[status])


@pytest.mark.parametrize("status", COLUMNS)
def test_the_ends_are_terminal_and_nothing_else_is(status: str) -> None:
    assert Status(status).is_terminal == (status in ("completed", "failed", "stopped"))


def test_only_usage_is_legal_always() -> None:
    assert set(ALWAYS) == {"usage_settled"}


@pytest.mark.parametrize(("messages", "after"), DERIVED)
def test_an_unread_answer_goes_before_an_open_question(messages: str, after: str) -> None:
    assert derived_status(MessageStatus(name) for name in messages.split()) == after


def test_closed_questions_do_not_weigh_in_any_combination() -> None:
    closed = (MessageStatus.ACKNOWLEDGED, MessageStatus.EXPIRED, MessageStatus.CANCELLED)
    for some in chain.from_iterable(combinations(closed, size) for size in range(4)):
        assert derived_status(some) == "running"
        assert derived_status([*some, MessageStatus.PENDING]) == "waiting_parent_reply"
        assert derived_status([MessageStatus.REPLIED, *some]) == "parent_replied"


@pytest.mark.parametrize(("current", "target"), MESSAGE_PAIRS)
def test_every_pair_of_the_question_table_is_as_the_contract_says(current: str, target: str) -> None:
    legal = target in MESSAGE_TABLE[current]
    assert may_follow(MessageStatus(current), MessageStatus(target)) == legal
    assert (MessageStatus(target) in MESSAGE_TRANSITIONS[MessageStatus(current)]) == legal
