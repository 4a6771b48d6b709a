"""Model, tools, model, tools: the loop with every kind of reply (SPEC sections 6 and 7)."""

import asyncio
from typing import Any

import pytest

from subagent_server.run.errors import BadArgument, RunRefused
from subagent_server.run.records import Usage
from subagent_server.toolbox.run_context import RunOver
from tests.helpers.turns import Turn, call, calls, says, tool_results, use
from tests.loop.scripted_run import BOUND, Played, ScriptedTool, echo

ECHO = ScriptedTool("echo", echo)


class Meeting:
    """A tool whose calls wait for each other: they end only if they are all open at once."""

    def __init__(self, parties: int) -> None:
        self._barrier = asyncio.Barrier(parties)

    async def meet(self, arguments: dict[str, Any]) -> str:
        async with asyncio.timeout(BOUND / 2):
            await self._barrier.wait()
        return "met"


def test_the_calls_of_one_turn_overlap_and_their_results_keep_their_order() -> None:
    meeting = ScriptedTool("meet", Meeting(3).meet)
    turn = calls(use("meet"), use("echo", n=1), use("meet"), use("meet"))
    played = Played(turn, says("Done."), tools=[meeting, ECHO])
    assert played.outcome.text == "Done."
    assert tool_results(played.bodies[1]) == ["met", "got {'n': 1}", "met", "met"]


def test_sequential_calls_of_one_turn_run_in_their_order_while_others_go_on() -> None:
    trace: list[str] = []
    last_is_done = asyncio.Event()

    async def step(arguments: dict[str, Any]) -> str:
        trace.append(f"begin {arguments['n']}")
        await asyncio.sleep(0.01 * (3 - arguments["n"]))
        trace.append(f"end {arguments['n']}")
        if arguments["n"] == 3:
            last_is_done.set()
        return str(arguments["n"])

    async def patient(arguments: dict[str, Any]) -> str:
        await last_is_done.wait()
        return "the last"

    tools = [ScriptedTool("step", step, sequential=True), ScriptedTool("patient", patient)]
    turn = calls(use("patient"), use("step", n=1), use("step", n=2), use("step", n=3))
    played = Played(turn, says("Done."), tools=tools)
    assert trace == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]
    assert tool_results(played.bodies[1]) == ["the last", "1", "2", "3"]


def test_an_unknown_tool_is_answered_in_few_words_among_however_many() -> None:
    many = [ScriptedTool(f"tool_{number}", echo) for number in range(2_000)]
    played = Played(calls(use("t" * 60_000)), says("Sorry."), tools=many)
    (result,) = tool_results(played.bodies[1])
    assert len(result) < 1_000 and "of the 2,000 tools here" in result


def test_an_unknown_tool_and_arguments_that_are_not_json_are_errors_that_the_model_reads() -> None:
    broken = call("echo", text="a long enough text") | {"fault": {"malformed_tool_json": "garbled"}}
    played = Played(calls(use("nothing"), use("functions.echo")), broken, says("Sorry."), tools=[ECHO])
    assert played.outcome.text == "Sorry."
    for name, result in zip(("nothing", "functions.echo"), tool_results(played.bodies[1]), strict=True):
        assert f"There is no tool {name!r}: the tools here are echo." in result
    assert "not valid JSON" in tool_results(played.bodies[2])[0]
    results = [body["messages"][-1]["content"][0] for body in played.bodies[1:]]
    assert all(result["is_error"] for result in results)
    assert [told["isError"] for told in played.run.recorded("tool_result")] == [True, True, True]


def test_what_a_tool_refuses_is_an_error_that_the_model_reads() -> None:
    async def refuse(arguments: dict[str, Any]) -> str:
        raise BadArgument("Give a number.")

    played = Played(call("picky"), says("Done."), tools=[ScriptedTool("picky", refuse)])
    (result,) = played.run.recorded("tool_result")
    assert (result["isError"], result["text"]) == (True, "Give a number.")


async def _without_room(arguments: dict[str, Any]) -> str:
    raise RuntimeError("can't start new thread")


def test_a_machine_without_room_for_a_call_is_an_error_that_the_model_reads() -> None:
    played = Played(call("thread"), says("Without it."), tools=[ScriptedTool("thread", _without_room)])
    assert played.outcome.text == "Without it."
    assert "No process or thread can be started" in tool_results(played.bodies[1])[0]


def test_an_empty_last_reply_gives_the_text_before_it_with_a_warning() -> None:
    talkative = calls(use("echo"), text="I look.")
    played = Played(talkative, {"content": []}, tools=[ECHO])
    assert played.outcome.text == "I look." and "was empty" in played.outcome.warnings[0]
    assert played.run.recorded("warning") == [{"message": played.outcome.warnings[0]}]
    assert not Played(talkative, says("Done."), tools=[ECHO]).outcome.warnings


def test_a_run_without_a_word_has_failed() -> None:
    silent = Played({"content": []})
    assert silent.failure.code == "agent_error"


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "model_context_window_exceeded"])
def test_a_reply_that_the_api_cut_or_refused_is_a_model_error_with_its_text(reason: str) -> None:
    played = Played(says("As far as I came.", stop_reason=reason))
    assert played.failure.code == "model_error" and played.failure.hint
    assert played.outcome.text == "As far as I came."


def _call_block(name: str) -> list[Turn]:
    return [{"type": "tool_use", "name": name, "input": {}}]


def test_usage_is_the_sum_of_all_turns_with_the_cache_figures() -> None:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    first, second = (
        dict(zip(names, (10, 20, 0, 300), strict=True)),
        dict(zip(names, (1, 2, 300, 40), strict=True)),
    )
    played = Played(calls(use("echo"), use("echo"), usage=first), says("Done.", usage=second), tools=[ECHO])
    assert played.loop.usage == Usage(
        input_tokens=11,
        output_tokens=22,
        cache_read_tokens=300,
        cache_write_tokens=340,
        turns=2,
        tool_calls=2,
    )
    assert played.run.recorded("usage")[-1]["turns"] == 2


def test_the_conversation_is_remembered_message_by_message() -> None:
    played = Played(calls(use("echo", n=1), text="I look."), says("Done."), tools=[ECHO])
    assert [message["role"] for message in played.run.transcript] == ["assistant", "user", "assistant"]
    assert played.run.transcript[:2] == played.bodies[1]["messages"][1:]


def test_a_run_that_was_ended_makes_no_further_call() -> None:
    runs = []

    class Stopped(Played):
        async def _carried_on(self, base_url: str) -> Any:
            self.run.over_at = lambda: bool(self.run.recorded("tool_result"))
            runs.append(self.run)
            return await super()._carried_on(base_url)

    with pytest.raises(RunOver):
        Stopped(call("echo"), says("Never said."), tools=[ECHO])
    assert [run.sent for run in runs] == [1]


# -- structured results

COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.mark.process
def test_a_valid_final_answer_ends_the_run_after_the_calls_beside_it() -> None:
    turn = calls(use("final_answer", colour="blue"), use("echo", n=1), text="That is it.")
    played = Played(turn, says("Never said."), tools=[ECHO], schema=COLOUR)
    assert played.outcome.output == {"colour": "blue"} and played.outcome.text == "That is it."
    assert len(played.bodies) == 1
    assert [told["toolName"] for told in played.run.recorded("tool_result")].count("echo") == 1


@pytest.mark.process
def test_an_invalid_final_answer_is_an_error_that_the_model_may_mend() -> None:
    played = Played(call("final_answer", colour="green"), call("final_answer", colour="red"), schema=COLOUR)
    (result,) = tool_results(played.bodies[1])
    assert "$.colour" in result and "'green' is not one of" in result
    assert played.outcome.output == {"colour": "red"} and played.outcome.failure is None


@pytest.mark.process
def test_of_several_final_answers_the_latest_valid_one_counts() -> None:
    turn = calls(*(use("final_answer", colour=colour) for colour in ("red", "blue", "green")))
    assert Played(turn, schema=COLOUR).outcome.output == {"colour": "blue"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}, [1, 2]),
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]]),
        ({"type": ["string", "null"]}, None),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, 7),
        ({"anyOf": [{"type": "object"}, {"type": "boolean"}]}, False),
    ],
    ids=["array", "recursive", "null", "reference", "union"],
)
def test_a_schema_whose_root_is_not_an_object_is_wrapped_and_unwrapped(schema: Turn, value: Any) -> None:
    played = Played(call("final_answer", value=1.5), call("final_answer", value=value), schema=schema)
    assert len(played.bodies) == 2 and played.run.recorded("tool_result")[0]["isError"]
    (tool,) = played.bodies[0]["tools"]
    assert tool["input_schema"]["type"] == "object" and tool["input_schema"]["required"] == ["value"]
    assert played.outcome.has_output and played.outcome.output == value


@pytest.mark.process
def test_names_that_the_api_refuses_in_a_tool_are_asked_for_inside_a_wrapper() -> None:
    schema: Turn = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}
    played = Played(
        call("final_answer", value={"größe": "x"}), call("final_answer", value={"größe": 3}), schema=schema
    )
    assert played.outcome.output == {"größe": 3} and len(played.bodies) == 2


@pytest.mark.process
def test_an_answer_that_cannot_be_checked_is_an_error_that_the_model_reads() -> None:
    endless: Turn = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    played = Played(call("final_answer", value=1), says("I give up."), schema=endless)
    assert "too deep" in tool_results(played.bodies[1])[0]
    assert played.failure.code == "invalid_output" and played.outcome.text == "I give up."


@pytest.mark.process
def test_an_end_after_invalid_answers_says_what_was_wrong_with_the_last() -> None:
    wrong = call("final_answer", colour="green")
    for code, played in (
        ("max_turns", Played(wrong, schema=COLOUR, max_turns=1)),
        ("invalid_output", Played(wrong, says("Green."), schema=COLOUR)),
    ):
        assert played.failure.code == code and not played.outcome.has_output
        assert played.outcome.text == ("Green." if code == "invalid_output" else "")
        said = played.failure.message
        assert "without a valid final_answer; its last one does not fit its schema: $.colour: 'green'" in said


@pytest.mark.process
def test_an_answer_in_the_last_turn_is_in_time() -> None:
    played = Played(
        call("echo"), call("final_answer", colour="red"), schema=COLOUR, tools=[ECHO], max_turns=2
    )
    assert played.outcome.output == {"colour": "red"} and played.outcome.failure is None


@pytest.mark.process
def test_a_valid_answer_whose_turn_is_cut_short_is_kept_beside_the_failure() -> None:
    async def refuse(arguments: Turn) -> str:
        raise RunRefused("ask_timeout", "Nobody answered.")

    turn = calls(use("final_answer", colour="blue"), use("refuse"), text="Blue.")
    played = Played(turn, schema=COLOUR, tools=[ScriptedTool("refuse", refuse, sequential=True)])
    assert played.failure.code == "ask_timeout" and played.outcome.text == "Blue."
    result = played.outcome.to_result()
    assert result.output == {"colour": "blue"} and result.error is not None


# -- thinking


def test_thinking_between_calls_goes_back_block_by_block_and_the_effort_is_asked_for() -> None:
    first: Turn = {
        "content": [
            {"type": "thinking", "thinking": "One."},
            *_call_block("echo"),
            {"type": "thinking", "thinking": "Two."},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "text", "text": "Now this."},
            {"type": "thinking", "thinking": ""},
            *_call_block("echo"),
        ]
    }
    played = Played(first, first, says("Done."), tools=[ECHO], settings={"effort": "high"})
    assert played.outcome.text == "Done.", (
        "the simulator refuses a block that was changed, left out of its row"
    )
    answers = [m["content"] for m in played.bodies[2]["messages"] if m["role"] == "assistant"]
    kinds = [block["type"] for block in first["content"]]
    assert [[block["type"] for block in content] for content in answers] == [kinds, kinds]
    assert all(block["signature"] for content in answers for block in content if block["type"] == "thinking")
    assert answers[0] == played.run.transcript[0]["content"]
    assert played.bodies[0]["output_config"] == {"effort": "high"}
    assert [told["text"] for told in played.run.recorded("thought")] == ["One.", "Two."] * 2
