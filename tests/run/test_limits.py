"""How many questions and how many steps the state of a run takes, and that larger ones of before are read."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from subagent_server.run import transitions
from subagent_server.run.errors import BadArgument, IllegalTransition, TooManyQuestions
from subagent_server.run.records import RunMeta
from subagent_server.run.states import (
    MAX_OPEN_QUESTIONS,
    MAX_QUESTIONS,
    MessageStatus,
    Status,
    check_answer,
    check_payload_size,
    check_question,
    check_reason,
    check_summary,
    cut,
)
from subagent_server.run.transitions import apply
from tests.helpers.runs import ASKED, LATER, make_message, make_meta


def asked(count: int, status: MessageStatus) -> RunMeta:
    """Return a run that has asked so many questions."""
    messages = [make_message(f"q{number}", status) for number in range(1, count + 1)]
    is_open = status is MessageStatus.PENDING and count > 0
    return make_meta(status=Status.WAITING if is_open else Status.RUNNING, messages=messages)


def test_a_question_beyond_those_that_may_be_open_or_be_at_all_is_refused_and_changes_nothing() -> None:
    for most, status, word in (
        (MAX_OPEN_QUESTIONS, MessageStatus.PENDING, "16 open"),
        (MAX_QUESTIONS, MessageStatus.EXPIRED, "asked 200"),
    ):
        assert len(apply(asked(most - 1, status), ASKED, LATER).messages) == most
        with pytest.raises(TooManyQuestions, match=word):
            apply(asked(most, status), ASKED, LATER)
    over = asked(MAX_QUESTIONS, MessageStatus.CANCELLED).model_copy(update={"status": Status.STOPPED})
    with pytest.raises(IllegalTransition):
        apply(over, ASKED, LATER)


def test_a_state_with_more_than_this_version_would_write_is_read_and_can_end() -> None:
    large = asked(300, MessageStatus.PENDING)
    large = large.model_copy(update={"summary": "x" * 10_000, "pending_questions": 300})
    read = RunMeta.model_validate_json(large.to_json())
    assert read == large and apply(read, transitions.StopRequested(), LATER).pending_questions == 0


def test_reports_within_a_second_are_one_step_and_the_latest_summary_stands() -> None:
    meta = make_meta(status=Status.RUNNING)
    for number in range(100):
        meta = apply(meta, transitions.ProgressReported(summary=f"{number}"), LATER + number * TENTH)
        assert meta.summary == f"{number}" and meta.revision >= len(meta.transitions)
    assert [step.at for step in meta.transitions] == [LATER + n * timedelta(seconds=1) for n in range(10)]


def test_a_report_that_says_nothing_new_changes_nothing_however_late_it_comes() -> None:
    first = apply(make_meta(status=Status.RUNNING), transitions.ProgressReported(), LATER)
    assert len(first.transitions) == 1
    said = apply(first, transitions.ProgressReported(summary="half"), LATER + timedelta(hours=1))
    for again in (transitions.ProgressReported(summary="half"), transitions.ProgressReported()):
        assert apply(said, again, LATER + timedelta(hours=2)) is said


def test_a_text_that_is_cut_says_so() -> None:
    assert cut("abc", 3) == "abc" and cut("abcd", 3) == "ab…"


TENTH = timedelta(milliseconds=100)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: check_question("x" * 20_001, []), "The question has 20,001 of at most 20,000 characters"),
        (lambda: check_question(" ", []), "The question is empty"),
        (lambda: check_question("Which?", ["a"] * 21), "has 21 of at most 20 options"),
        (lambda: check_question("Which?", ["a", "b" * 201]), "Option 2 has 201 of at most 200 characters"),
        (lambda: check_answer("x" * 200_001), "The answer has 200,001"),
        (lambda: check_answer(" \n"), "The answer is empty"),
        (lambda: check_summary("x" * 200_001), "The summary has 200,001"),
        (lambda: check_reason("x" * 4_001), "The reason has 4,001"),
        (lambda: check_payload_size((64 << 20) + 1), "The payload has 67,108,865"),
    ],
)
def test_words_that_are_too_many_are_refused_with_their_number(check: Callable[[], None], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        check()
