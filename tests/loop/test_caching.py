"""The prompt cache: the part that a request shares with the one before is read, whatever lies between."""

from itertools import pairwise
from typing import Any

from subagent_server.loop.request import marked
from tests.helpers.turns import Turn, calls, says, use
from tests.loop.scripted_run import Played, ScriptedTool

MARK = {"type": "ephemeral"}


async def long_answer(arguments: dict[str, Any]) -> str:
    """Say something long, so that every prefix is long enough."""
    return f"{arguments} " + "x" * 4000


LONG = ScriptedTool("long", long_answer)


def marks(body: Turn) -> int:
    """Return how many marks a request carries."""
    return str(body).count("'cache_control'")


def test_each_of_ten_turns_reads_the_whole_turn_before_it_from_the_cache_also_after_thirty_calls() -> None:
    turns = [calls(use("long", n=n), thinking="Hm. " * 20) for n in range(9)]
    turns[4] = calls(*(use("long", n=n) for n in range(30)))
    played = Played(
        *turns, says("Done."), tools=[LONG], max_turns=20, settings={"model": "claude-sonnet-5-5"}
    )
    assert played.outcome.text == "Done." and len(played.bodies) == 10
    assert all(marks(body) <= 4 for body in played.bodies)
    usages = played.run.recorded("usage")
    sizes = [fact["cacheReadTokens"] + fact["cacheWriteTokens"] + fact["inputTokens"] for fact in usages]
    read = [after["cacheReadTokens"] - before["cacheReadTokens"] for before, after in pairwise(usages)]
    whole = [sizes[0], *(after - before for before, after in pairwise(sizes))]
    for number in range(2, 9):
        assert read[number] >= whole[number] - 100, f"call {number + 2} reads what call {number + 1} was"
    usage = played.loop.usage
    assert (usage.cache_read_tokens or 0) > 10 * (usage.input_tokens or 0)
    assert all("cache_control" not in str(message) for message in played.run.transcript)


def test_the_marks_stand_at_the_end_of_the_request_before_and_of_the_part_that_all_runs_share() -> None:
    text: Turn = {"type": "text", "text": "x"}
    thought: Turn = {"type": "thinking", "thinking": "x", "signature": "s"}
    first = {"role": "user", "content": [text, text]}
    answer = {"role": "assistant", "content": [text, thought]}
    tool = {"name": "t"}
    system: list[Turn] = [text | {"cache_control": MARK}, text]

    alone = marked(system, [tool], [first])
    assert alone["messages"] == [first] and alone["tools"] == [tool] and alone["cache_control"] == MARK
    without_prompt = marked([text], [tool, tool], [first])
    assert without_prompt["tools"] == [tool, tool | {"cache_control": MARK}]
    assert "tools" not in marked([text], [], [first])

    later = marked(system, [tool], [first, answer, first])
    assert later["messages"] == [
        {"role": "user", "content": [text, text | {"cache_control": MARK}]},
        answer,
        first,
    ]
    paused = marked(system, [tool], [first, answer, answer])
    assert paused["messages"][1]["content"] == [text | {"cache_control": MARK}, thought], (
        "thoughts take no mark"
    )
    assert first == {"role": "user", "content": [text, text]}, "the conversation itself stays as it is"
