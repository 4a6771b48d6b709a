"""What each event does to a run: its status, its facts, and nothing else."""

from decimal import Decimal
from typing import Any

import pytest

from subagent_server.run import transitions
from subagent_server.run.errors import IllegalTransition
from subagent_server.run.records import UNKNOWN_USAGE, Failure, RunMeta, Usage
from subagent_server.run.states import Event, MessageStatus, Status, derived_status
from subagent_server.run.transitions import RunEvent, apply
from tests.helpers.runs import ASKED, LATER, RUN_ID, STARTED, make_message, make_meta

FAILURE = Failure(code="model_error", message="The model is gone.", hint="Try again.")
USAGE = Usage(input_tokens=10, output_tokens=2, turns=1, cost_usd=Decimal("0.01"))

EVENTS: dict[str, RunEvent] = {
    "worker_started": STARTED,
    "question_asked": ASKED,
    "reply_given": transitions.ReplyGiven(message_id="q1", answer="blue"),
    "reply_acknowledged": transitions.ReplyAcknowledged(message_id="q2"),
    "question_expired": transitions.QuestionExpired(message_id="q1"),
    "progress_reported": transitions.ProgressReported(summary="half way"),
    "finished": transitions.Finished(summary="done"),
    "usage_settled": transitions.UsageSettled(usage=USAGE),
    "failed": transitions.RunFailed(failure=FAILURE),
    "stop_requested": transitions.StopRequested(reason="enough"),
}

W, R = "waiting_parent_reply", "parent_replied"
COLUMNS = ("ready", "running", W, R, "completed", "failed", "stopped")
TABLE: dict[str, tuple[str, ...]] = {
    "worker_started": ("running", "-", "-", "-", "-", "-", "-"),
    "question_asked": ("-", R, R, R, "-", "-", "-"),
    "reply_given": ("-", "-", R, R, "-", "-", "-"),
    "reply_acknowledged": ("-", "-", W, W, "-", "-", "-"),
    "question_expired": ("-", "-", R, R, "-", "-", "-"),
    "progress_reported": ("-", "running", W, R, "-", "-", "-"),
    "finished": ("completed", "completed", "completed", "completed", "late", "late", "late"),
    "usage_settled": COLUMNS,
    "failed": ("failed", "failed", "failed", "failed", "late", "late", "late"),
    "stop_requested": ("stopped", "stopped", "stopped", "stopped", "late", "late", "late"),
}
"""By hand from SPEC section 4, for a run whose `q1` waits for an answer and whose `q2` has one unread."""

NEXT_STEPS = {
    "ready": ": it can begin, complete, fail or be stopped; check_status shows",
    "running": ": it can ask, report progress, complete, fail or be stopped; check_status shows",
    **dict.fromkeys((W, R), "give up a question; check_status shows"),
    **dict.fromkeys(("completed", "failed", "stopped"), "it has ended; start a new run, or continue it with"),
}
CELLS = [(COLUMNS[i], name, cell) for name, row in TABLE.items() for i, cell in enumerate(row)]


def scene(status: str) -> RunMeta:
    """Return a run in `status` with an open question and an unread answer, whether or not that can be."""
    messages = [make_message("q1", MessageStatus.PENDING), make_message("q2", MessageStatus.REPLIED)]
    return make_meta(status=status, messages=messages, pending_questions=1, revision=7)


def facts(meta: RunMeta) -> dict[str, Any]:
    """Return what a state says beside the count and the list of its changes."""
    return meta.model_dump(exclude={"revision", "transitions"})


@pytest.mark.parametrize(("status", "event", "cell"), CELLS)
def test_every_pair_of_status_and_event_ends_where_the_contract_says(
    status: str, event: str, cell: str
) -> None:
    before = scene(status)
    written = before.to_json()
    if cell == "-":
        with pytest.raises(IllegalTransition, match=f"Run {RUN_ID} is {status}, so it cannot ") as refused:
            apply(before, EVENTS[event], LATER)
        error = refused.value
        assert error.code == "wrong_state"
        assert not any(name in error.sentence for name in EVENTS if "_" in name), "people do not know them"
        assert NEXT_STEPS[status] in error.sentence
    elif cell == "late":
        assert apply(before, EVENTS[event], LATER) is before
    else:
        after = apply(before, EVENTS[event], LATER)
        step = after.transitions[-1]
        assert after.status == cell
        assert (step.event, step.from_status, step.to_status, step.at) == (event, status, cell, LATER)
        assert after.revision == 8
    assert before.to_json() == written


@pytest.mark.parametrize("status", COLUMNS)
def test_settled_usage_adds_usage_in_every_status_and_nothing_else(status: str) -> None:
    before = scene(status)
    after = apply(before, EVENTS["usage_settled"], LATER)
    assert after.usage == after.with_descendants == USAGE
    unchanged = {"usage": before.usage, "with_descendants": before.with_descendants}
    assert facts(after.model_copy(update=unchanged)) == facts(before)


def test_usage_counts_totals_so_that_less_never_takes_anything_away() -> None:
    meta = make_meta(status="running", usage=USAGE, with_descendants=Usage(input_tokens=50, turns=4))
    more = Usage(input_tokens=9, output_tokens=3, turns=2, cost_usd=Decimal("0.009"))
    after = apply(meta, transitions.UsageSettled(usage=more), LATER)
    assert after.usage == Usage(input_tokens=10, output_tokens=3, turns=2, cost_usd=Decimal("0.01"))
    assert after.with_descendants.input_tokens == 50
    assert after.with_descendants.turns == 5, "three below, and two of its own"


def test_what_the_runs_below_have_cost_is_added_to_the_own_and_an_older_sum_takes_nothing_away() -> None:
    below = Usage(input_tokens=7, turns=3, cost_usd=Decimal("0.5"))
    meta = apply(make_meta(status="running", usage=USAGE), transitions.Finished(usage=USAGE), LATER, below)
    assert meta.usage == USAGE and meta.with_descendants == USAGE.plus(below)
    again = transitions.UsageSettled(usage=Usage())
    for known in (None, Usage(turns=1), below):
        assert apply(meta, again, LATER, known) is meta
    more = apply(meta, again, LATER, below.plus(Usage(turns=1)))
    assert more.usage == USAGE and more.with_descendants.turns == 5
    assert more.status == "completed" and more.revision == meta.revision + 1


@pytest.mark.parametrize(
    ("end", "completed_at", "stopped_at", "error"),
    [
        (transitions.Finished(usage=USAGE), LATER, None, None),
        (transitions.RunFailed(failure=FAILURE, usage=USAGE), LATER, None, FAILURE),
        (transitions.StopRequested(usage=USAGE), None, LATER, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_end_says_when_it_was_what_it_cost_and_which_failure_it_is(
    end: RunEvent, completed_at: object, stopped_at: object, error: Failure | None
) -> None:
    after = apply(make_meta(status="running"), end, LATER)
    assert (after.completed_at, after.stopped_at, after.ended_at) == (completed_at, stopped_at, LATER)
    assert (after.usage, after.error) == (USAGE, error)


def test_a_summary_stays_until_a_newer_one_comes() -> None:
    halfway = apply(scene("running"), EVENTS["progress_reported"], LATER)
    assert halfway.summary == "half way"
    assert apply(halfway, transitions.ProgressReported(), LATER).summary == "half way"
    assert apply(halfway, transitions.Finished(), LATER).summary == "half way"
    assert apply(halfway, transitions.StopRequested(), LATER).summary == "half way"
    assert apply(halfway, EVENTS["failed"], LATER).summary == "half way"
    assert apply(halfway, EVENTS["finished"], LATER).summary == "done"
    assert apply(halfway, EVENTS["stop_requested"], LATER).summary == "enough"


@pytest.mark.parametrize("status", ["running", W, R])
@pytest.mark.parametrize("name", ["finished", "failed", "stop_requested"])
def test_the_end_of_a_run_cancels_what_is_open_and_keeps_the_answers(status: str, name: str) -> None:
    closed = [make_message("q3", MessageStatus.ACKNOWLEDGED), make_message("q4", MessageStatus.EXPIRED)]
    before = scene(status).model_copy(update={"messages": [*scene(status).messages, *closed]})
    after = apply(before, EVENTS[name], LATER)
    assert [m.message_status for m in after.messages] == [
        *["cancelled", "cancelled"],
        *["acknowledged_by_subagent", "expired"],
    ]
    assert after.pending_questions == 0
    assert [m.answer_content for m in after.messages] == [None, "blue", "blue", None]


@pytest.mark.parametrize("first", [UNKNOWN_USAGE, Usage(turns=2), Usage()])
@pytest.mark.parametrize(
    "below", [UNKNOWN_USAGE, UNKNOWN_USAGE.plus(Usage(turns=7)), Usage(turns=7), Usage(), None]
)
@pytest.mark.parametrize("at_last", [UNKNOWN_USAGE, Usage(turns=9, input_tokens=4)])
def test_a_figure_that_is_told_late_leaves_the_sum_of_the_tree_right(
    first: Usage, below: Usage | None, at_last: Usage
) -> None:
    meta = make_meta(status="running", usage=first, with_descendants=first.plus(below or Usage()))
    after = apply(meta, transitions.UsageSettled(usage=at_last), LATER, below)
    assert after.with_descendants == after.usage.plus(below or Usage())
    assert apply(after, transitions.UsageSettled(usage=at_last), LATER, below) is after
    late = apply(
        after, transitions.UsageSettled(usage=at_last), LATER, (below or Usage()).plus(UNKNOWN_USAGE)
    )
    assert late.with_descendants.tool_calls is None, "of a run that came later nothing is known"


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


@pytest.mark.parametrize(("messages", "after"), DERIVED)
def test_an_unread_answer_goes_before_an_open_question(messages: str, after: str) -> None:
    assert derived_status(MessageStatus(name) for name in messages.split()) == after


def test_the_table_here_leaves_no_pair_out() -> None:
    assert set(TABLE) == {event.value for event in Event} and set(COLUMNS) == {s.value for s in Status}
