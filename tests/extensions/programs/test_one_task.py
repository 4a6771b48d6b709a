"""The same task through every runner: a call of a tool, a question, its answer, a result."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extensions.programs.test_acp import acp
from tests.extensions.programs.test_claude import BASH, plays, result, says, text
from tests.extensions.programs.test_codex import codex
from tests.helpers import turns
from tests.helpers.world import World

HERE = str(Path(__file__).parent)
QUESTION = "Which colour?"
KINDS = {"run_started", "question", "reply", "text", "run_ended"}
CALLS = {"tool_call", "tool_result"}
ALLOWED = {"turn", "usage", "thought", "server_log", "warning"}


def _loop(world: World) -> None:
    world.agent_saying(turns.shell("echo hi"), turns.asks(QUESTION), turns.says("It is blue."))


def _claude(world: World) -> None:
    ended = {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "hi"}]},
    }
    ask = {"ask": QUESTION, "helpers": HERE}
    plays(world, says(BASH), ended, ask, says(text("It is blue."), number=2), result(result="It is blue."))


def _command(world: World) -> None:
    code = (
        f"import sys; sys.path.insert(0, {HERE!r}); from asking_parent import Server\n"
        f"print('It is ' + Server().ask({QUESTION!r}) + '.')"
    )
    world.agent("worker", "", runner="command", command=sys.executable, args=["-c", code])


RUNNERS: dict[str, Callable[[World], None]] = {
    "messages": _loop,
    "claude": _claude,
    "codex": codex,
    "acp": acp,
    "command": _command,
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_same_task_leaves_the_same_events_and_views_whoever_carries_it_out(
    world: World, runner: str
) -> None:
    RUNNERS[runner](world)
    run_id = world.start_asking(f"ask: {QUESTION}")
    world.reply(run_id, "blue")
    assert world.completed_and_gone(run_id) == "It is blue."
    kinds = [event["type"] for event in world.events(run_id)]
    expected = KINDS if runner == "command" else KINDS | CALLS  # it does not tell of its calls
    assert expected <= set(kinds) <= expected | ALLOWED
    (asked,), (replied,) = world.events(run_id, "question"), world.events(run_id, "reply")
    assert {**asked, **replied, "seq": 0, "at": ""} == {
        "seq": 0,
        "at": "",
        "type": "reply",
        "messageId": "q1",
        "question": QUESTION,
        "answer": "blue",
        "answeredBy": "parent",
    }
    assert kinds.index("question") < kinds.index("reply") < len(kinds) - 1 - kinds[::-1].index("text")
    view = json.loads(world.cli("show", run_id, "--json").stdout)
    unasked = {"warnings"} if runner == "acp" else set()  # this one offers no mode that asks
    assert set(view) == VIEW | unasked


VIEW = {
    *("agent", "elapsedSeconds", "instructions", "live", "result", "revision", "runId", "sandbox", "status"),
    *("summary", "usage"),
}
