"""The real programs that `runner` names alone carry out runs: asks, permissions, stops, kills, a box."""

import re
from itertools import product

import pytest

from subagent_server.run import processes
from subagent_server.run.states import Status
from tests.clients.installed import Installed
from tests.clients.parent_model import Call, Heard, Say, call, steps
from tests.clients.presets import PRESETS, Preset
from tests.clients.scene import Scene
from tests.helpers.scale import sampled

ENDS = sampled([*product(PRESETS, ("stop", "kill"))], 6, lambda case: case[0], lambda case: case[1])
ASK = call("ask_parent", question="Which colour?", options=["red", "blue"])


@pytest.fixture(params=PRESETS)
def program(request: pytest.FixtureRequest, scene: Scene, clients: Installed) -> Preset:
    """Each program, one after the other."""
    return Preset(scene, clients, request.param)


def _asks_and_says(heard: Heard) -> Call | Say:
    if heard.calls == 0:
        return ASK
    answered = re.search(r'"answer": ?"(\w+)"', heard.answers[0])  # some add words of their own
    return Say(f"It is {answered[1]}." if answered else f"No answer: {heard.answers[0]}")


def test_it_asks_its_parent_and_its_last_message_is_the_result(program: Preset) -> None:
    world = program.world
    secret = world.home / "colour.txt"
    secret.write_text("ultramarine", encoding="utf-8")

    def plan(heard: Heard) -> Call | Say:
        assert "ultramarine" not in heard.conversation, "read without a question"
        return _asks_and_says(heard)

    with program.playing(plan):
        run_id = world.start(f"/compact @{secret}")
        assert world.asking(run_id).messages[0].question_content == "Which colour?"
        world.reply(run_id, "blue")
        assert world.completed(run_id) == "It is blue."
        world.gone(run_id)
    kinds = {event["type"] for event in world.events(run_id)}
    assert {"tool_call", "tool_result", "question", "reply", "text"} <= kinds


def test_what_it_may_not_do_by_itself_is_a_question(program: Preset) -> None:
    world = program.world
    allowed, denied = world.work / "allowed", world.work / "denied"
    touches = [program.shell(f"touch {place}", outside=True) for place in (allowed, denied)]
    with program.playing(steps(*touches, Say("Tried both."))):
        run_id = world.start()
        first = world.asking(run_id).messages[0]
        assert str(allowed) in first.question_content
        world.reply(run_id, "once", first.message_id)
        second = world.until(run_id, lambda meta: len(meta.messages) > 1).messages[1]
        assert str(denied) in second.question_content and not denied.exists()
        world.reply(run_id, "no", second.message_id)
        world.until(run_id, lambda meta: meta.status.is_terminal)
        world.gone(run_id)
    assert allowed.exists() and not denied.exists()


@pytest.mark.parametrize(("program", "end"), ENDS, indirect=["program"])
def test_stopped_or_killed_in_a_tool_call_it_leaves_nothing(program: Preset, end: str) -> None:
    world = program.world
    with program.playing(lambda _: program.stays()):
        run_id = world.start()
        world.asking(run_id)
        world.reply(run_id, "once")
        program.begun()
        if end == "stop":
            world.stop(run_id)
        else:
            processes.send_signal(program.itself(run_id), 9)
        meta = world.until(run_id, lambda meta: meta.status.is_terminal)
        assert meta.status is (Status.STOPPED if end == "stop" else Status.FAILED)
        world.gone(run_id)
    assert not program.command_lives()


def test_in_a_box_it_works_and_asks(program: Preset) -> None:
    world = program.world
    with program.playing(_asks_and_says):
        keys = program.in_a_box()
    with program.playing(_asks_and_says, **keys):
        run_id = world.start()
        world.asking(run_id)
        world.reply(run_id, "blue")
        assert world.completed(run_id) == "It is blue."
        world.gone(run_id)
