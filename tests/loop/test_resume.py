"""A conversation that is carried on, case by case."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from subagent_server.extensions.simulator.model_request import signature_of
from subagent_server.loop.resume import (
    _MOST_LOST_CALLS,
    CUT_PROGRAM,
    NOT_BEGUN,
    NOT_STORED,
    UNKNOWN,
    Opening,
    Resumed,
    resume,
    sendable,
)
from subagent_server.run.agent_definition import CODE_TOOL_NAME
from subagent_server.run.history import PreviousCall, PreviousChild, PreviousRun
from subagent_server.run.states import MessageStatus, Status
from subagent_server.toolbox.basic import NO_ANSWER, FinalAnswer
from tests.helpers.api_checks import check_messages
from tests.helpers.runs import T0, make_message

Message = dict[str, Any]

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"verdict": {"type": "string"}},
    "required": ["verdict"],
}
TASK: Message = {"role": "user", "content": [{"type": "text", "text": "The task."}]}
THOUGHT = {"type": "thinking", "thinking": "Well.", "signature": signature_of("Well.")}


def used(call_id: str, name: str, **arguments: Any) -> Message:
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def said(*blocks: Any, stop: str = "tool_use") -> Message:
    """Return a message of the model; a text may be given as such."""
    content = [b if isinstance(b, dict) else {"type": "text", "text": b} for b in blocks]
    return {"role": "assistant", "content": content, "stopReason": stop}


def given(call_id: str, text: str) -> Message:
    part = {"type": "text", "text": text}
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": [part]}]}


def past(*messages: Message, **facts: Any) -> PreviousRun:
    """Return a run that failed after these messages."""
    calls = {call.call_id: call for call in facts.pop("calls", ())}
    run = {"run_id": "old", "status": Status.FAILED, "prompt": "The task.", "model": "m", **facts}
    return PreviousRun(messages=[TASK, *messages] if messages else [], calls=calls, **run)


def carried_on(*runs: PreviousRun, prompt: str = "", web_tools: bool = False, **opening: Any) -> Resumed:
    """Return how the last of these runs is carried on, after the API was asked whether it takes it."""
    words = [{"type": "text", "text": prompt}] if prompt else []
    found = asyncio.run(resume(runs, Opening(**{"words": words, "model": "m", **opening})))
    is_over = found.outcome is not None
    tools = [{"type": "web_search_20250305", "name": "web_search"}] if web_tools else []
    messages = sendable(found.messages)
    check_messages(messages, allow_prefill=is_over, body={"messages": messages, "tools": tools})
    return found


def results(found: Resumed) -> list[str]:
    """Return the texts of the last message, results first."""
    return [
        b["text"] if b["type"] == "text" else b["content"][0]["text"] for b in found.messages[-1]["content"]
    ]


def test_a_run_that_had_not_begun_begins_and_those_that_carried_it_on_add_their_prompts() -> None:
    found = carried_on(past(), past(prompt=""), past(prompt="More."), prompt="And now?")
    assert results(found) == ["The task.", "More.", "And now?"] and len(found.messages) == 1


def test_a_result_in_the_journal_is_given_whole_or_reported_as_incomplete() -> None:
    calls = [
        PreviousCall("a", "bash", finished=True, text="out", is_error=True),
        PreviousCall("b", "bash", finished=True, text="", is_error=False),
        PreviousCall("c", "view", finished=True, text="[image]", whole=False),
        PreviousCall("d", "bash"),
    ]
    uses = [used(name, "bash") for name in "abcde"]
    found = carried_on(past(said(THOUGHT, *uses), calls=calls))
    first, second, third, fourth, fifth = results(found)
    assert (first, second, fourth, fifth) == ("out", "(empty)", UNKNOWN, NOT_BEGUN)
    assert "whole result" in third and "[image]" in third
    flags = [block.get("is_error", False) for block in found.messages[-1]["content"]]
    assert flags == [True, False, True, True, True] and found.unknown == ["bash"]


def test_calls_whose_messages_are_lost_are_named_with_what_is_known_of_each() -> None:
    price = PreviousCall("", "shop.price", {"n": 1}, finished=True, text="7")
    calls = [
        PreviousCall("a", "bash", {"command": "ls"}, finished=True, text="out"),
        PreviousCall("b", "bash", finished=True, is_error=True),
        PreviousCall("c", "bash", {"command": "make"}),
        PreviousCall("d", CODE_TOOL_NAME, made={1: price, 2: PreviousCall("", "shop.hangs")}),
        *(PreviousCall(f"e{number}", "bash") for number in range(_MOST_LOST_CALLS)),
    ]
    found = carried_on(past(said("Begun.", used("seen", "bash")), given("seen", "x"), calls=calls))
    _, told = results(found)
    assert found.unknown == ["bash", CODE_TOOL_NAME, *["bash"] * (_MOST_LOST_CALLS - 4)]
    _, ended, failed, cut, program, made, hangs, *_, more = told.splitlines()
    assert ended == '- bash {"command": "ls"}: ended without an error: out'
    assert failed == "- bash null: ended with an error."
    assert cut.startswith('- bash {"command": "make"}: it is not known what it did;')
    assert CUT_PROGRAM in program and made.startswith('1. shop.price {"n": 1}')
    assert hangs.startswith("2. shop.hangs") and "it is not known what it did" in hangs
    assert more == "- and 4 more, of which the same is known."


def test_questions_are_reported_as_answered_expired_or_open_each_by_its_own_words_and_time() -> None:
    begun = T0 + timedelta(seconds=5)
    later, earlier = {"question_timestamp": begun}, {"question_timestamp": T0}
    questions = [
        make_message("q1", MessageStatus.ACKNOWLEDGED, question_content="Same?", **earlier),
        make_message(
            "q2", MessageStatus.CANCELLED, question_content="Answered?", answer_content="red", **later
        ),
        make_message("q3", MessageStatus.EXPIRED, question_content="Expired?", **later),
        make_message("q4", MessageStatus.CANCELLED, question_content="Open?", **later),
    ]
    names = ("Answered?", "Expired?", "Open?", "Same?")
    uses = [used(f"c{n}", "ask_parent", question=name) for n, name in enumerate(names)]
    calls = [PreviousCall(f"c{n}", "ask_parent", began_at=begun) for n in range(4)]
    answered, expired, unanswered, same = results(
        carried_on(past(said(*uses), calls=calls, questions=questions))
    )
    assert (answered, expired) == ("red", NO_ANSWER)
    assert "Ask again" in unanswered and "Ask again" in same, "the answer to an older question is not taken"


@pytest.mark.process
def test_a_final_answer_that_was_not_stored_is_taken_if_nothing_else_is_left_to_do() -> None:
    answer = used("f", "final_answer", verdict="good")
    for messages in ([said("Here.", answer)], [said("Here.", answer), given("f", "The answer is taken.")]):
        found = carried_on(past(*messages), final=FinalAnswer(SCHEMA))
        assert found.outcome is not None and found.outcome.output == {"verdict": "good"}
        assert found.outcome.text == "Here."
        asked = carried_on(past(*messages), final=FinalAnswer(SCHEMA), prompt="More.")
        assert asked.outcome is None and results(asked) == [NOT_STORED, "More."]
    beside = past(said(used("b", "bash"), answer), calls=[PreviousCall("b", "bash")])
    assert results(carried_on(beside, final=FinalAnswer(SCHEMA))) == [UNKNOWN, NOT_STORED]
    open_question = make_message("q1", MessageStatus.CANCELLED, question_content="Open?")
    asks = said(used("q", "ask_parent", question="Open?"), answer)
    asked_too = past(asks, calls=[PreviousCall("q", "ask_parent", began_at=T0)], questions=[open_question])
    assert carried_on(asked_too, final=FinalAnswer(SCHEMA)).outcome is None
    wrong = past(said(used("f", "final_answer", verdict=1)))
    assert "does not fit its schema" in results(carried_on(wrong, final=FinalAnswer(SCHEMA)))[0]
    stored = past(said(answer), given("f", "The answer is taken."), status=Status.COMPLETED)
    assert results(carried_on(stored, final=FinalAnswer(SCHEMA), prompt="More.")) == [
        "The answer is taken.",
        "More.",
    ]


@pytest.mark.parametrize(
    ("stop", "words"), [("max_tokens", "cut at the limit"), ("refusal", "Continue your task")]
)
def test_a_message_that_was_not_the_end_is_followed_by_the_word_to_go_on(stop: str, words: str) -> None:
    found = carried_on(past(said("Half of", stop=stop)))
    assert found.outcome is None and words in results(found)[0]
    assert [m["role"] for m in found.messages] == ["user", "assistant", "user"]
    unanswered = carried_on(past(said("Done.", stop="end_turn")), final=FinalAnswer(SCHEMA))
    assert "final_answer" in results(unanswered)[0]
    only_thought = carried_on(past(said(THOUGHT, stop=stop)))
    assert only_thought.messages == [TASK], "a message may not end with a thought"


def test_thoughts_go_back_only_to_the_model_that_had_them() -> None:
    run = past(said(THOUGHT, used("a", "bash")), given("a", "out"))
    same, other = carried_on(run), carried_on(run, model="another")
    assert THOUGHT in same.messages[1]["content"] and THOUGHT not in other.messages[1]["content"]
    assert same.text == "" and carried_on(past(said("So far.", used("a", "bash")))).text == "So far."


def test_runs_that_were_stopped_with_their_parent_are_named_to_an_agent_that_may_delegate() -> None:
    children = [
        PreviousChild("r1", "helper", "run_helper", "Help.", Status.STOPPED),
        PreviousChild("r2", "helper", "run_helper", "Help too.", Status.COMPLETED),
    ]
    calls = [PreviousCall("a", "run_helper"), PreviousCall("b", "run_helper"), PreviousCall("c", "run_agent")]
    uses = [used("a", "run_helper", prompt="Help."), used("b", "run_helper", prompt="Else.")]
    uses += [used("c", "run_agent", agent="helper", prompt="Help.")]
    run = past(said(*uses), calls=calls, children=children)
    known, unknown, of_many, named = results(carried_on(run, may_delegate=True))
    assert "It had started run r1, which is stopped." in known and "started" not in unknown
    assert "It had started run r1, which is stopped." in of_many
    assert "r1 (helper)" in named and "r2" not in named
    assert len(results(carried_on(run))) == 3


def test_any_remains_of_a_conversation_are_repaired_so_that_the_api_takes_them() -> None:
    text = {"type": "text", "text": "Hello."}
    broken: list[Message] = [
        said("It began somewhere.", used("a", "bash")),
        said(used("a", "bash"), used("b", "bash"), {"type": "tool_use", "id": "x"}),
        {"role": "user", "content": [text, *given("b", "two")["content"], *given("zz", "whose?")["content"]]},
        {"role": "user", "content": "As a text."},
        {"role": "user", "content": [None, {"type": 1}, {"type": "text", "text": " "}]},
        {"role": "system", "content": "No."},
        {"role": "assistant", "content": []},
        said("One.", stop="end_turn"),
        said("One.", stop="end_turn"),
        said("Two.", stop="end_turn"),
        given("b", "again"),
        {"nothing": "of the kind"},
    ]
    for start in range(len(broken)):
        for end in range(start + 1, len(broken) + 1):
            carried_on(
                PreviousRun("old", Status.FAILED, "The task.", messages=broken[start:end]), prompt="Go."
            )
            carried_on(PreviousRun("old", Status.FAILED, "The task.", messages=broken[start:end]))
    whole = carried_on(PreviousRun("old", Status.FAILED, "The task.", messages=broken), prompt="Go.")
    assert whole.messages[0] == TASK and "Two." in str(whole.messages) and "whose?" not in str(whole.messages)
    assert str(whole.messages).count("One.") == 1, "a disk may have refused a line that it had taken"
    assert "No." not in str(whole.messages)
