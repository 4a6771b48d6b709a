"""The journal of a run, its log for people, and its transcript."""

import json
from decimal import Decimal
from typing import Any

import pytest

from subagent_server.run import journal
from subagent_server.run.journal import RunJournal, Transcript, read_transcript
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import Usage
from subagent_server.run.store import RunStore
from tests.helpers.runs import RUN_ID, T0, start_run


@pytest.fixture
def run(store: RunStore) -> RunPaths:
    """The paths of a run that has no journal yet."""
    start_run(store)
    return store.paths.run(RUN_ID)


def write(run: RunPaths, *happened: tuple[str, dict[str, Any]]) -> None:
    """Append these events by a writer of their own."""
    writer = RunJournal(run)
    for kind, facts in happened:
        writer.append(kind, T0, facts)


def events_of(run: RunPaths) -> list[dict[str, Any]]:
    """Return the events, all of which can be read."""
    return [json.loads(line) for line in run.events.path.read_text(encoding="utf-8").splitlines()]


def test_every_event_has_a_number_a_time_and_a_kind(run: RunPaths) -> None:
    write(run, ("turn", {"turn": 1}), ("text", {"text": "Hello"}))
    assert events_of(run) == [
        {"seq": 1, "at": "2026-11-22T09:30:15.417Z", "type": "turn", "turn": 1},
        {"seq": 2, "at": "2026-11-22T09:30:15.417Z", "type": "text", "text": "Hello"},
    ]


@pytest.mark.parametrize("left", ["", "{", '{"seq": 3, "at"', '{"seq": 3', "\0\0\0", '{"seq": 3}x'])
def test_numbers_are_dense_after_a_torn_line(run: RunPaths, left: str) -> None:
    write(run, ("turn", {}), ("turn", {}))
    with run.events.path.open("a", encoding="utf-8") as file:
        file.write(left)
    write(run, ("run_ended", {"status": "failed"}))
    assert [event["seq"] for event in events_of(run)] == [1, 2, 3]


def test_a_text_that_is_too_long_is_cut_in_the_middle_and_says_so(run: RunPaths) -> None:
    text = "a" * 40_000 + "b" * 60_000
    write(run, ("text", {"text": text, "deep": [{"er": text}], "short": "x", "number": 7}))
    (event,) = events_of(run)
    for shown in (event["text"], event["deep"][0]["er"]):
        assert shown.startswith("a" * 32_000)
        assert shown.endswith("b" * 32_000)
        assert "36000 characters left out" in shown
        assert len(shown) < 64_100
    assert (event["short"], event["number"]) == ("x", 7)


def test_the_log_says_the_same_as_the_journal_for_people(run: RunPaths) -> None:
    write(run, ("turn", {"turn": 1}), ("text", {"text": "Two\nlines"}))
    assert run.log.path.read_text(encoding="utf-8").splitlines() == [
        "09:30:15 ── turn 1",
        "09:30:15 Two",
        "           lines",
    ]


def test_a_torn_line_of_the_log_does_not_swallow_the_next(run: RunPaths) -> None:
    write(run, ("turn", {"turn": 1}))
    with run.log.path.open("a", encoding="utf-8") as file:
        file.write("09:30:16 cut o")
    write(run, ("turn", {"turn": 2}))
    assert run.log.path.read_text(encoding="utf-8").splitlines()[1:] == [
        "09:30:16 cut o",
        "09:30:15 ── turn 2",
    ]


def test_the_end_of_a_run_is_found_in_its_journal(run: RunPaths) -> None:
    assert not run.journal_has_ended()
    write(run, ("turn", {}))
    assert not run.journal_has_ended()
    write(run, ("run_ended", {"status": "completed"}))
    assert run.journal_has_ended()


def test_the_usage_of_a_run_is_that_of_the_last_entry_of_its_journal(run: RunPaths) -> None:
    assert journal.recorded_usage(run) is None
    write(run, ("usage", {"inputTokens": 1}), ("usage", {"inputTokens": 9, "costUsd": "0.25"}), ("turn", {}))
    assert journal.recorded_usage(run) == Usage(input_tokens=9, cost_usd=Decimal("0.25"))


def test_the_latest_words_are_what_the_agent_said_or_did_last(run: RunPaths) -> None:
    assert journal.latest_text(run) is None
    write(run, ("text", {"text": "I look."}), ("tool_call", {"toolName": "grep", "arguments": {"p": "x"}}))
    assert journal.latest_text(run) == "→ grep x"
    write(run, ("text", {"text": "Found."}), ("turn", {"turn": 2}))
    assert journal.latest_text(run) == "Found."


def test_a_transcript_is_read_back_without_what_was_torn(run: RunPaths) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Grüße\n\u2028"}]},
        {"role": "assistant", "content": []},
    ]
    transcript = Transcript(run)
    for message in messages:
        transcript.append(message)
    with run.transcript.path.open("a", encoding="utf-8") as file:
        file.write('{"role": "user", "cont')
    assert list(read_transcript(run)) == messages
    Transcript(run).append({"role": "user"})
    assert list(read_transcript(run)) == [*messages, {"role": "user"}]


def test_a_page_is_the_end_of_a_log_or_what_follows_a_cursor(run: RunPaths) -> None:
    write(run, *(("turn", {"turn": number}) for number in range(1, 6)))
    last = journal.page(run.log, None, 2)
    assert last.lines == ["09:30:15 ── turn 4", "09:30:15 ── turn 5"]
    assert journal.page(run.log, last.cursor, 2).lines == []
    assert journal.page(run.log, 0, 1).lines == ["09:30:15 ── turn 1"]


def test_what_a_run_does_is_its_question_its_last_words_or_its_task(run: RunPaths) -> None:
    assert journal.latest_doing(run) is None
    happened: list[tuple[str, dict[str, Any], str]] = [
        ("run_started", {"prompt": "Look at it."}, "Look at it."),
        ("turn", {"turn": 1}, "Look at it."),
        ("warning", {"message": "the connection failed; trying again in 6.5 s"}, "the connection failed"),
        ("question", {"question": "Which way?"}, "Which way?"),
    ]
    for kind, facts, expected in happened:
        write(run, (kind, facts))
        assert expected in (journal.latest_doing(run) or "")


def test_the_latest_step_of_a_journal_that_anybody_may_have_written_is_one_line(run: RunPaths) -> None:
    assert journal.latest_step(run) == (None, None)
    write(run, ("turn", {"turn": 2}), ("tool_call", {"toolName": "bash", "arguments": {"command": "a\nb"}}))
    assert journal.latest_step(run) == (2, "bash a ⏎ b")
    odd = [
        {"type": "turn", "turn": "\ud800" * 99},
        {"type": "turn", "turn": True},
        {"type": "text", "text": ["\ud83d\nx"]},
        {"type": "tool_call", "toolName": "\ud83d\n\x1b[2J", "arguments": 5},
    ]
    with run.events.path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in odd)
    turn, words = journal.latest_step(run)
    assert turn == 2 and words == "\\ud83d"
