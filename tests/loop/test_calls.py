"""An agent that misbehaves, in every way the simulator can play, comes to one outcome within its limits."""

import asyncio
from typing import Any

import pytest

from subagent_server.loop.loop import MOST_AT_ONCE, MOST_CALLS, TURN_CHARACTERS
from tests.helpers.turns import Turn, call, calls, says, tool_results, use
from tests.loop.scripted_run import Played, ScriptedTool, echo

ECHO = ScriptedTool("echo", echo)
FOR_EVER: Turn = {"after": "repeat_last", "allow_prefill": True}


class Counted:
    """A tool that counts its calls, and how many are open at once."""

    def __init__(self) -> None:
        self.calls = self.open = self.most = 0

    async def work(self, arguments: dict[str, Any]) -> str:
        self.calls += 1
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return "x" * 2000


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (calls(use("echo"), text="Still at it."), "Still at it."),
        (call("nothing"), ""),
        (calls(use("echo"), text="Again.", stop_reason="max_tokens"), "Again."),
        (says("Half.", stop_reason="pause_turn"), "\n\n".join(["Half."] * 4)),
        ({"content": [], "stop_reason": "pause_turn"}, ""),
        (call("echo", text="a long text") | {"fault": {"malformed_tool_json": True, "times": "always"}}, ""),
    ],
    ids=["calls", "unknown tools", "cut calls", "pauses", "empty pauses", "malformed arguments"],
)
def test_the_limit_of_turns_ends_an_endless_conversation(turn: Turn, text: str) -> None:
    played = Played(turn, script=FOR_EVER, tools=[ECHO], max_turns=4)
    assert played.failure.code == "max_turns" and len(played.bodies) == 4
    assert "4 turns" in played.failure.message and played.outcome.text == text


@pytest.mark.parametrize(
    "arguments", [{}, {"command": "rm -r build", "target": "all"}], ids=["empty", "begun"]
)
def test_a_call_that_the_limit_of_tokens_cut_is_not_run_and_those_before_it_are(arguments: Turn) -> None:
    ran = Counted()
    tool = ScriptedTool("tool", ran.work)
    cut = calls(use("echo", n=1), use("tool", **arguments), stop_reason="max_tokens")
    cut["fault"] = {"malformed_tool_json": True} if arguments else []
    played = Played(cut, call("tool"), says("Done."), tools=[ECHO, tool])
    assert played.outcome.text == "Done." and ran.calls == 1, "only the call of the second turn"
    results = played.bodies[1]["messages"][-1]["content"]
    assert [bool(result.get("is_error")) for result in results] == [bool(arguments), True]
    assert "not run" in tool_results(played.bodies[1])[1] and "smaller" in tool_results(played.bodies[1])[1]


@pytest.mark.parametrize("reason", ["refusal", "model_context_window_exceeded"])
def test_the_calls_of_a_reply_that_was_refused_or_has_no_room_are_not_run(reason: str) -> None:
    ran = Counted()
    turn = calls(use("tool"), text="I begin.", stop_reason=reason)
    played = Played(turn, says("Never said."), tools=[ScriptedTool("tool", ran.work)])
    assert played.failure.code == "model_error" and played.outcome.text == "I begin."
    assert not ran.calls and len(played.bodies) == 1


def test_ids_that_stand_twice_become_different_and_each_call_has_its_own_result() -> None:
    same = [{"name": "echo", "input": {"n": n}, "id": "toolu_same"} for n in (1, 2)]
    twice = {"tool_use": same, "keep_ids": True}
    played = Played(twice, twice, says("Done."), tools=[ECHO])
    assert played.outcome.text == "Done.", "the API refuses an id that appears twice, and did not"
    assert tool_results(played.bodies[2]) == ["got {'n': 1}", "got {'n': 2}"]
    ids = [facts["toolCallId"] for facts in played.run.recorded("tool_call")]
    assert len(set(ids)) == 4 and ids[0] == "toolu_same"


def test_thousands_of_calls_in_one_turn_run_a_few_at_a_time_up_to_a_limit_that_the_model_reads() -> None:
    ran = Counted()
    many = calls(*(use("tool", n=n) for n in range(MOST_CALLS + 500)))
    played = Played(many, says("Done."), tools=[ScriptedTool("tool", ran.work)])
    assert played.outcome.text == "Done."
    assert ran.calls == MOST_CALLS and ran.most <= MOST_AT_ONCE
    results = tool_results(played.bodies[1])
    assert len(results) == MOST_CALLS + 500
    assert all("Not run" in result for result in results[MOST_CALLS:])
    assert sum(map(len, results)) < 2 * TURN_CHARACTERS, "together no more than a model can read"
