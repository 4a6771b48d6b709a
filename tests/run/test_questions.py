"""Questions and answers: what each event does to a question in each of its statuses."""

from datetime import timedelta

import pytest

from subagent_server.run import transitions
from subagent_server.run.errors import BadArgument, MessageClosed, UnknownMessage
from subagent_server.run.records import RunMeta
from subagent_server.run.states import MAX_TALK_CHARACTERS, MessageStatus, Status
from subagent_server.run.transitions import RunEvent, apply
from tests.helpers.runs import ASKED, LATER, RUN_ID, STARTED, T0, make_message, make_meta

BLUE = transitions.ReplyGiven(message_id="q1", answer="blue")
RED = transitions.ReplyGiven(message_id="q1", answer="red", answered_by="person")
READ = transitions.ReplyAcknowledged(message_id="q1")
EXPIRED = transitions.QuestionExpired(message_id="q1")
STOP = transitions.StopRequested()
HAPPENINGS: dict[str, RunEvent] = {
    "same answer": BLUE,
    "other answer": RED,
    "acknowledged": READ,
    "expired": EXPIRED,
    "run ends": STOP,
}

TABLE = {
    #                             same answer       other answer      acknowledged   expired    run ends
    "pending_parent_reply": ("parent_replied", "parent_replied", "refused", "expired", "cancelled"),
    "parent_replied": ("nothing", "refused", "acknowledged_by_subagent", "nothing", "cancelled"),
    "acknowledged_by_subagent": ("nothing", "refused", "nothing", "nothing", "acknowledged_by_subagent"),
    "expired": ("refused", "refused", "refused", "nothing", "expired"),
    "cancelled": ("refused", "refused", "refused", "nothing", "cancelled"),
}
"""By hand from SPEC section 4. `nothing`: a success that changes nothing."""

CELLS = [(status, name, row[i]) for status, row in TABLE.items() for i, name in enumerate(HAPPENINGS)]


def asking(status: str) -> RunMeta:
    """Return a run whose `q1` is in `status`, and whose open `q2` keeps it from simply running."""
    messages = [make_message("q1", MessageStatus(status)), make_message("q2", MessageStatus.PENDING)]
    return make_meta(status=Status.WAITING, messages=messages)


def after(*happened: RunEvent) -> RunMeta:
    """Return a run that has started and to which `happened` has happened, a second apart."""
    meta = apply(make_meta(), STARTED, T0)
    for number, event in enumerate(happened, start=1):
        meta = apply(meta, event, T0 + timedelta(seconds=number))
    return meta


@pytest.mark.parametrize(("status", "name", "cell"), CELLS)
def test_every_event_on_a_question_in_every_status_does_what_the_contract_says(
    status: str, name: str, cell: str
) -> None:
    before = asking(status)
    written = before.to_json()
    if cell == "refused":
        with pytest.raises(MessageClosed):
            apply(before, HAPPENINGS[name], LATER)
    elif cell == "nothing":
        assert apply(before, HAPPENINGS[name], LATER) is before
    else:
        assert apply(before, HAPPENINGS[name], LATER).messages[0].message_status == cell
    assert before.to_json() == written


def test_a_question_says_all_that_its_answerer_needs() -> None:
    asked = transitions.QuestionAsked(
        question="Which?", options=("a", "b"), expires_at=LATER + timedelta(minutes=1)
    )
    before = make_meta(status="running", revision=4)
    meta = apply(before, asked, LATER)
    (message,) = meta.pending
    assert (message.message_id, message.question_content, message.options) == ("q1", "Which?", ["a", "b"])
    assert (message.question_timestamp, message.expires_at) == (LATER, LATER + timedelta(minutes=1))
    assert message.asked_revision == meta.revision == 5


def test_options_never_limit_the_answer() -> None:
    asked = transitions.QuestionAsked(question="Which?", options=("red", "green"), expires_at=LATER)
    assert after(asked, BLUE).messages[0].answer_content == "blue"


def test_options_count_among_the_words_that_a_run_may_hold() -> None:
    long = "x" * (MAX_TALK_CHARACTERS // 2)

    def asked(question: str) -> RunEvent:
        return transitions.QuestionAsked(question=question, options=(long,), expires_at=LATER)

    offered = apply(after(), asked("Which?"), LATER)
    with pytest.raises(BadArgument, match="characters of questions and answers"):
        apply(offered, asked("And?"), LATER)
    with pytest.raises(BadArgument, match="characters of questions and answers"):
        apply(offered, transitions.ReplyGiven(message_id="q1", answer=long), LATER)


def test_an_answer_names_its_author_and_its_time() -> None:
    message = after(ASKED, RED).messages[0]
    assert (message.answer_content, message.answered_by) == ("red", "person")
    assert message.answer_timestamp == T0 + timedelta(seconds=2)


def test_an_answer_that_comes_before_the_expiry_is_written_counts() -> None:
    late = ASKED.expires_at + timedelta(hours=1)
    answered = apply(after(ASKED), BLUE, late)
    assert answered.status is Status.REPLIED
    assert apply(answered, EXPIRED, late) is answered


def test_an_unknown_question_is_refused_with_the_open_ones() -> None:
    with pytest.raises(UnknownMessage, match=r"no question 'q9': open are q1, q2\."):
        apply(after(ASKED, ASKED), transitions.ReplyGiven(message_id="q9", answer="x"), LATER)
    with pytest.raises(UnknownMessage, match=r"no question '\.\./x': none is open\."):
        apply(after(), transitions.ReplyAcknowledged(message_id="../x"), LATER)


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        ((RED,), f"Question q1 of run {RUN_ID} was answered by the person at 2026-11-22T09:30:17"),
        ((BLUE, STOP), "was answered by the parent"),
        ((EXPIRED,), "expired without an answer and the agent went on"),
        ((EXPIRED, STOP), r"expired without an answer before the run ended \(stopped\)"),
        ((STOP,), r"cancelled when the run ended \(stopped\)"),
    ],
)
def test_an_answer_that_is_refused_says_what_became_of_its_question(
    happened: tuple[RunEvent, ...], reason: str
) -> None:
    other = transitions.ReplyGiven(message_id="q1", answer="green")
    with pytest.raises(MessageClosed, match=reason):
        apply(after(ASKED, *happened), other, LATER)
