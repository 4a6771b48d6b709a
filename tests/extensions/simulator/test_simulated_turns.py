"""Which turn answers, and what its captures put into it."""

from typing import Any

import httpx2
import pytest

from subagent_server.extensions.simulator import Simulator, Turn
from tests.extensions.simulator.clients import post

Message = dict[str, Any]

BASH = {"name": "bash", "type": "bash_20250124"}


def talk(*texts: str) -> list[Message]:
    """Return a conversation of these texts, the user's first."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


def with_result(content: Any, *, is_error: bool = False, prompt: str = "go") -> list[Message]:
    """Return a conversation whose one call was answered with `content`."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": is_error}
    return [*talk(prompt), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def text_of(response: httpx2.Response) -> str:
    """Return the text of the first block of an answer that must be one."""
    assert response.status_code == 200, response.text
    return str(response.json()["content"][0]["text"])


def test_the_number_of_assistant_messages_picks_the_turn_however_often_it_is_asked() -> None:
    with Simulator({"turns": [{"text": "first"}, {"text": "second"}]}) as simulator:
        for _ in range(3):
            assert text_of(post(simulator, messages=talk("a", "first", "b"))) == "second"
            assert text_of(post(simulator, messages=talk("a"))) == "first"


def test_after_repeat_last_the_last_turn_answers_for_ever_with_new_ids() -> None:
    turn = {"tool_use": {"name": "bash", "input": {"command": "ls"}, "id": "same"}}
    messages = talk("go")
    ids = []
    with Simulator({"turns": [turn], "after": "repeat_last"}) as simulator:
        for _ in range(4):
            content = post(simulator, messages=messages).json()["content"]
            ids.append(content[0]["id"])
            result = {"type": "tool_result", "tool_use_id": ids[-1], "content": "x"}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    assert ids[0] == "same" and len(set(ids)) == 4


def test_two_calls_of_one_turn_with_one_id_get_two() -> None:
    calls = [{"name": "bash", "id": "same"}, {"name": "bash", "id": "same"}]
    with Simulator({"turns": [{"tool_use": calls}]}) as simulator:
        ids = [block["id"] for block in post(simulator).json()["content"]]
    assert ids[0] == "same" and len(set(ids)) == 2


def test_a_retry_gets_the_same_ids_and_another_conversation_others() -> None:
    with Simulator({"turns": [{"tool_use": {"name": "bash"}}]}) as simulator:
        asked = ("one", "one", "two")
        ids = [post(simulator, messages=talk(t)).json()["content"][0]["id"] for t in asked]
    assert ids[0] == ids[1] != ids[2]


def test_repeat_answers_that_many_turns() -> None:
    with Simulator({"turns": [{"text": "a", "repeat": 3}, {"text": "b"}]}) as simulator:
        heard = [text_of(post(simulator, messages=talk(*["x"] * (2 * n + 1)))) for n in range(5)]
    assert heard == ["a", "a", "a", "b", "(the script has no further turn)"]


@pytest.mark.parametrize(
    ("when", "yes", "no"),
    [
        ({}, {}, None),
        ({"turn": 1}, {"messages": talk("a", "b", "c")}, {}),
        ({"model": "^claude-h"}, {"model": "claude-haiku"}, {"model": "claude-opus"}),
        ({"system": "rev(iew)?er$"}, {"system": "You are a\nreviewer\nfor Rust"}, {"system": "reviewers"}),
        ({"system": "b"}, {"system": [{"type": "text", "text": x} for x in "abc"]}, {}),
        (
            {"prompt": "^Fix"},
            {"messages": talk("Do\nFix it", "x", "y")},
            {"messages": talk("a", "b", "Fix")},
        ),
        ({"last": "done"}, {"messages": talk("a", "b", "done")}, {"messages": talk("done", "b", "c")}),
        ({"last": "No such"}, {"messages": with_result([{"type": "text", "text": "No such file"}])}, {}),
        ({"tool": "bash"}, {"tools": [BASH]}, {}),
        ({"tool_error": True}, {"messages": with_result("x", is_error=True)}, {"messages": with_result("x")}),
        ({"turn": 0, "prompt": "a"}, {"messages": talk("a")}, {"messages": talk("a", "b", "c")}),
    ],
)
def test_a_rule_answers_before_the_turns_when_all_of_its_when_holds(
    when: dict[str, Any], yes: dict[str, Any], no: dict[str, Any] | None
) -> None:
    script = {"turns": [{"text": "turn", "repeat": 9}], "rules": [{"when": when, "text": "rule"}]}
    with Simulator(script) as simulator:
        assert text_of(post(simulator, **yes)) == "rule"
        assert no is None or text_of(post(simulator, **no)) == "turn"


def test_the_first_rule_that_holds_wins() -> None:
    whens: list[dict[str, int]] = [{"turn": 9}, {}, {"turn": 0}]
    rules = [{"when": when, "text": text} for when, text in zip(whens, "abc", strict=True)]
    with Simulator({"rules": rules}) as simulator:
        assert text_of(post(simulator)) == "b"
        assert simulator.requests[0].answer == "rules[1]"


def test_the_first_conversation_that_fits_is_used_and_else_the_top_level() -> None:
    review = {
        "when": {"prompt": "^Review", "tool": "bash"},
        "turns": [{"text": "reviewing"}],
        "rules": [{"when": {"last": "stop"}, "text": "stopped"}],
        "after": "repeat_last",
    }
    other = {"when": {"system": "writer"}, "turns": [{"text": "writing"}]}
    script = {"conversations": [review, other], "turns": [{"text": "anything"}]}
    with Simulator(script) as simulator:
        asked: dict[str, Any] = {"tools": [BASH], "system": "a writer"}
        assert text_of(post(simulator, messages=talk("Review it"), **asked)) == "reviewing"
        assert text_of(post(simulator, messages=talk("Review it", "x", "y"), **asked)) == "reviewing"
        assert text_of(post(simulator, messages=talk("Review it", "x", "stop"), **asked)) == "stopped"
        assert text_of(post(simulator, messages=talk("Review it"), system="a writer")) == "writing"
        assert text_of(post(simulator, messages=talk("Review it"))) == "anything"
        assert simulator.requests[0].answer == "conversations[0].turns[0]"


def test_a_function_may_answer_with_a_turn_or_a_dict() -> None:
    def respond(request: dict[str, Any]) -> Turn | dict[str, Any]:
        if request["model"] == "m":
            return Turn(text=f"{len(request['messages'])} messages")
        return {"text": "a dict", "fault": {"status": 429}}

    with Simulator(respond) as simulator:
        assert text_of(post(simulator, messages=talk("a", "b", "c"))) == "3 messages"
        assert post(simulator, model="other").status_code == 429
        assert text_of(post(simulator, model="other")) == "a dict"


def test_a_function_that_gives_no_turn_is_a_500_that_says_so() -> None:
    with Simulator(lambda request: {"txt": "?"}) as simulator:
        response = post(simulator)
    assert response.status_code == 500
    assert "has no key 'txt' (did you mean 'text'?)" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("capture", "messages", "expected"),
    [
        (r"run id: (\S+)", with_result("run id: abc"), "abc"),
        (r"run id: \S+", with_result("run id: abc"), "run id: abc"),
        (r"^id (\S+)$", with_result([{"type": "text", "text": "x\nid abc\ny"}]), "abc"),
        (r"(\d+)", with_result("new 22", prompt="old 11"), "22"),
        (r"old (\d+)", with_result("new 22", prompt="old 11"), "11"),
        (r"(\d+)", talk("1", "99", "no digit"), "1"),
        ("nothing", talk("a"), ""),
        ({"pattern": "nothing", "default": "none"}, talk("a"), "none"),
        ({"pattern": "a(b)?", "default": "no b"}, talk("a"), "no b"),
        (r"(\$\{x\})", talk("${x}"), "${x}"),
    ],
)
def test_a_capture_puts_what_it_found_newest_first_into_texts_and_inputs(
    capture: Any, messages: list[Message], expected: str
) -> None:
    arguments = {"a": ["${x}", 1], "b": {"c": "<${x}>"}, "${x}": None}
    turn = {"capture": {"x": capture}, "text": "<${x}>", "tool_use": {"name": "bash", "input": arguments}}
    with Simulator({"rules": [turn | {"when": {}}]}) as simulator:
        text, call = post(simulator, messages=messages).json()["content"]
    assert text["text"] == f"<{expected}>"
    assert call["input"] == {"a": [expected, 1], "b": {"c": f"<{expected}>"}, expected: None}


def test_an_escaped_or_unknown_placeholder_stays() -> None:
    turn = {"capture": {"x": "(a)"}, "text": "${HOME} $${x} ${x} $x $$ ${ $$${x}"}
    with Simulator({"turns": [turn]}) as simulator:
        assert text_of(post(simulator, messages=talk("a"))) == "${HOME} ${x} a $x $$ ${ $${x}"


def test_a_text_that_a_capture_leaves_empty_is_left_out() -> None:
    turn = {"capture": {"x": "nothing"}, "text": "${x}", "tool_use": {"name": "bash"}}
    with Simulator({"turns": [turn]}) as simulator:
        assert [block["type"] for block in post(simulator).json()["content"]] == ["tool_use"]
