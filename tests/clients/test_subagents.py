"""The real Claude Code, Codex and Gemini CLI carry out runs of the built-in loop and of one another.

All models are scripted.
"""

import json
from itertools import permutations, product

import pytest

from subagent_server.run import processes
from tests.clients.installed import Installed
from tests.clients.parent_model import Call, Heard, Say, call, steps
from tests.clients.programs import PROGRAMS, Program
from tests.clients.scene import AGENT, AGENT_PROMPT, Scene
from tests.helpers import turns
from tests.helpers.scale import sampled

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string"}},
    "required": ["colour"],
    "additionalProperties": False,
}
WAIT = {"waitSeconds": 200}
"""A continuation of Gemini CLI begins in the next minute."""
RUN = turns.call("run_worker", prompt="Paint the door.", **WAIT)
ASK = call("ask_parent", question="Which colour?", options=["red", "blue"])
GO_ON = "Paint the other side, too."
IN_WORDS = "This is what was said before"
UNKNOWN = "It is not known what they did"
ENDS = {"program": "agent_error", "worker": "crashed", "shim": "lost"}
"""How a run ends whose process was killed."""
KILLED = sampled([*product(PROGRAMS, ENDS)], 3, lambda case: case[0], lambda case: case[1])
PAIRS = sampled([*permutations(PROGRAMS, 2)], 3, lambda pair: pair[0], lambda pair: pair[1])


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest, scene: Scene, clients: Installed) -> Program:
    """Each program, one after the other."""
    return Program(scene, clients, request.param)


@pytest.fixture
def loop(scene: Scene) -> Scene:
    """The built-in loop may start the agent `worker`."""
    scene.world.agent(AGENT, AGENT_PROMPT, agents=["worker"])
    return scene


def test_it_works_for_the_built_in_loop_asks_and_gives_its_output(program: Program, loop: Scene) -> None:
    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return program.shell("echo hi")
        return ASK if heard.calls == 1 else program.gives(heard, {"colour": heard.answer(1)["answer"]})

    world = program.world
    given = {"colour": '"output": ?{"colour": ?"([^"]+)"}'}
    loop.plays(RUN, replies("blue"), turns.says("It is ${colour}.", capture=given))
    with program.playing(plan, outputSchema=SCHEMA):
        run_id = world.start(agent=AGENT)
        assert world.completed(run_id) == "It is blue."
    child = below(loop, run_id)
    world.gone(child)
    kinds = {event["type"] for event in world.events(child)}
    assert {"run_started", "tool_call", "tool_result", "question", "reply", "usage", "run_ended"} <= kinds
    usage = world.meta(child).usage
    assert (usage.output_tokens or 0) > 0 and (usage.cost_usd is not None) is (program.name == "claude")


@pytest.mark.parametrize(("above", "below_it"), PAIRS)
def test_one_program_has_another_do_a_part_of_its_work_and_answers_it(
    scene: Scene, clients: Installed, above: str, below_it: str
) -> None:
    def lead_does(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return call("run_hand", prompt="Paint the door.", waitSeconds=60)
        if heard.calls == 1:
            view = heard.answer()
            assert view["status"] == "waiting_parent_reply", view
            return call("reply_subagent", runId=view["runId"], answer="blue", waitSeconds=60)
        return Say(f"The hand gave {heard.answer()['updatedMetadata']['output']['colour']}.")

    def hand_does(heard: Heard) -> Call | Say:
        return ASK if heard.calls == 0 else hand.gives(heard, {"colour": heard.answer(0)["answer"]})

    world = scene.world
    lead, hand = (Program(scene, clients, name) for name in (above, below_it))
    with hand.playing(hand_does, "hand", outputSchema=SCHEMA), lead.playing(lead_does, agents=["hand"]):
        run_id = world.start()
        assert world.completed(run_id) == "The hand gave blue."
        child = below(scene, run_id)
        assert world.meta(child).parent_run_id == run_id
        world.gone(child)


def test_what_it_may_not_do_by_itself_is_a_question_to_the_loop(program: Program, loop: Scene) -> None:
    world = program.world
    allowed, denied = world.work / "allowed", world.work / "denied"
    loop.plays(RUN, replies("once"), replies("no"), turns.says("${last}", capture={"last": "(Tried both)"}))
    touches = [program.shell(f"touch {place}", outside=True) for place in (allowed, denied)]
    with program.playing(steps(*touches, Say("Tried both."))):
        run_id = world.start(agent=AGENT)
        assert world.completed(run_id) == "Tried both"
    asked = [message.question_content for message in world.meta(below(loop, run_id)).messages]
    assert len(asked) == 2 and str(allowed) in asked[0] and str(denied) in asked[1]
    assert allowed.exists() and not denied.exists()


def test_stopped_by_the_loop_in_a_tool_call_it_leaves_nothing_and_is_carried_on(
    program: Program, loop: Scene
) -> None:
    def plan(heard: Heard) -> Call | Say:
        told.append(heard.conversation)
        return Say("Again.") if GO_ON in heard.conversation else program.stays()

    world, told = program.world, list[str]()
    loop.plays(
        RUN,
        replies("once", waitSeconds=0),
        turns.shell("until [ -e begun ]; do sleep 0.1; done"),
        captured("stop_run"),
        carries_on(),
        turns.says("${last}", capture={"last": "(Again)"}),
    )
    with program.playing(plan):
        run_id = world.start(agent=AGENT)
        assert world.completed(run_id) == "Again"
    assert not program.command_lives()
    assert "Paint the door." in told[-1] and IN_WORDS not in told[-1]
    if program.name == "claude":
        assert UNKNOWN not in told[-1], "it has given its stopped call a result"


@pytest.mark.parametrize(("program", "victim"), KILLED, indirect=["program"])
def test_after_kill_9_the_loop_hears_of_it_and_carries_the_session_on(
    program: Program, loop: Scene, victim: str
) -> None:
    def plan(heard: Heard) -> Call | Say:
        told.append(heard.conversation)
        return Say("Again.") if GO_ON in heard.conversation else program.stays()

    world, told = program.world, list[str]()
    loop.plays(RUN, replies("once"), carries_on(), turns.says("${last}", capture={"last": "(Again)"}))
    with program.playing(plan):
        run_id = world.start(agent=AGENT)
        program.begun()
        child = below(loop, run_id)
        targets = {"program": program.itself, "worker": world.worker, "shim": world.shim}
        processes.send_signal(targets[victim](child), 9)
        assert world.completed(run_id) == "Again"
    assert world.failed(child)[0] == ENDS[victim]
    assert not program.command_lives()
    assert "Paint the door." in told[-1] and IN_WORDS not in told[-1] and UNKNOWN in told[-1]


def test_after_kill_9_of_the_server_it_asks_by_the_model_is_told_and_the_run_goes_on(
    program: Program,
) -> None:
    def plan(heard: Heard) -> Call | Say:
        if heard.calls < 2:
            return call("ask_parent", question=f"Which colour for side {heard.calls}?")
        return Say("It is blue." if "blue" in heard.answers[1] else "I could not ask.")

    world = program.world
    with program.playing(plan):
        run_id = world.start()
        world.asking(run_id)
        servers = program.servers(run_id)
        for server in servers:
            processes.send_signal(server, 9)
        said = "I could not ask."
        if program.name == "claude":  # it starts its server anew for the next call
            said = "It is blue."
            world.reply(run_id, "blue", world.asking(run_id, 2).messages[1].message_id)
        assert servers and world.completed(run_id) == said
        assert [event for event in world.events(run_id, "tool_result") if event["isError"]]
        world.gone(run_id)
        assert world.completed(world.continued(run_id, GO_ON)) == said


def test_in_a_box_it_works_asks_and_its_session_is_carried_on(program: Program) -> None:
    def plan(heard: Heard) -> Call | Say:
        told.append(heard.conversation)
        if heard.calls == 0:
            return program.shell(f"touch {world.work}/made; touch {world.home}/escaped")
        return ASK if heard.calls == 1 else Say(f"In {heard.answer()['answer']}.")

    world, told = program.world, list[str]()
    with program.playing(plan, **program.in_a_box()):
        run_id = world.start()
        assert world.asking(run_id).messages[0].question_content == "Which colour?"
        world.reply(run_id, "blue")
        assert world.completed(run_id) == "In blue."
        world.gone(run_id)
        assert world.completed(world.continued(run_id, "Which one was it?")) == "In blue."
    assert IN_WORDS not in told[-1], "its own session, not words about it"
    assert (world.work / "made").exists() and not (world.home / "escaped").exists()


def captured(tool: str, **arguments: object) -> turns.Turn:
    """Return a call about the run that was shown last."""
    turn = turns.call(tool, runId="${run}", **arguments)
    return {**turn, "capture": {"run": '"runId": ?"([^"]+)"'}}


def carries_on() -> turns.Turn:
    """Return a call that follows the words of the view that was shown last: it names `continue_run`."""
    turn = turns.call("continue_run", runId="${next}", prompt=GO_ON, **WAIT)
    return {**turn, "capture": {"next": r'continue_run\(runId=\\*"([^"\\]+)'}}


def replies(answer: str, **more: object) -> turns.Turn:
    """Return a call that answers the run that was shown last, and waits for it."""
    return captured("reply_subagent", answer=answer, **{**WAIT, **more})


def below(scene: Scene, run_id: str) -> str:
    """Return the run that another run has started."""
    (child,) = (name for name in scene.run_ids() if name != run_id)
    return child


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_settings_that_came_with_the_directory_start_nothing(
    scene: Scene, clients: Installed, name: str
) -> None:
    world, program = scene.world, Program(scene, clients, name)
    hook = {"hooks": [{"type": "command", "command": "touch started"}]}
    planted = {
        ".claude/settings.json": json.dumps({"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}}),
        ".mcp.json": json.dumps({"mcpServers": {"x": {"command": "touch", "args": ["started"]}}}),
        ".codex/config.toml": 'mcp_servers.x = {command = "touch", args = ["started"]}',
    }
    for file, text in planted.items():
        (world.work / file).parent.mkdir(exist_ok=True)
        (world.work / file).write_text(text, encoding="utf-8")
    with program.playing(steps(Say("Done."))):
        assert world.completed(world.start()) == "Done."
    assert not (world.work / "started").exists()
