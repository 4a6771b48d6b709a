"""Many questions at once, many who answer, and a server that is killed: each answer arrives exactly once."""

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from subagent_server.run.states import Event, MessageStatus, Status
from tests.helpers.processes import Child
from tests.helpers.turns import calls, says, tool_results, use
from tests.helpers.world import World
from tests.soak.client import McpClient

pytestmark = pytest.mark.race

QUESTIONS, ANSWERERS, POLLS = 8, 3, 50
ANSWERER = """
    import sys
    from pathlib import Path
    from subagent_server.run.errors import MessageClosed
    from subagent_server.verbs.service import open_service
    from subagent_server.verbs.questions import reply
    from subagent_server.settings import read_settings
    root, run_id, name, *messages = sys.argv[1:]
    service = open_service(read_settings(runs=Path(root), environment={}))
    print("ready", flush=True)
    sys.stdin.readline()
    for message in messages:
        try:
            reply(service, run_id, f"{name} says {message}", message)
            print(message, flush=True)
        except MessageClosed:
            continue
    print("done", flush=True)
"""


def accepted(answerer: Child) -> list[str]:
    """Return which answers of a process were accepted."""
    found = []
    while (line := answerer.hear(60)) != "done":
        found.append(line)
    return found


def test_of_three_answers_to_each_question_one_is_accepted_and_the_model_reads_it_once(
    world: World,
) -> None:
    world.agent()
    asked = [use("ask_parent", question=f"Question {number}?") for number in range(1, QUESTIONS + 1)]
    simulator = world.play(calls(*asked), says("Done."))
    chance = random.Random(8)
    messages = [f"q{number}" for number in range(1, QUESTIONS + 1)]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(McpClient(world.environment, world.work, world.errors)) for _ in range(2)
        ]
        for server in servers:
            server.greet()
        view = servers[0].call("run_worker", prompt="Do it.")
        assert view is not None
        run_id = view["runId"]
        world.asking(run_id, QUESTIONS)
        orders = [chance.sample(messages, QUESTIONS) for _ in range(ANSWERERS)]
        answerers = [
            stack.enter_context(Child(ANSWERER, world.runs, run_id, f"answerer {number}", *order))
            for number, order in enumerate(orders)
        ]
        assert [answerer.hear() for answerer in answerers] == ["ready"] * ANSWERERS
        for answerer in answerers:
            answerer.tell()
        for poll in range(POLLS):
            assert servers[1].call("check_status", runId=run_id) is not None
            if poll == POLLS // 3:
                os.kill(servers[0].pid, signal.SIGKILL)
        taken = sorted(message for answerer in answerers for message in accepted(answerer))
    assert taken == messages, "each question took one answer, of whoever was first"
    assert world.completed(run_id) == "Done."
    meta = world.meta(run_id)
    assert meta.status is Status.COMPLETED
    assert {m.message_status for m in meta.messages} == {MessageStatus.ACKNOWLEDGED}
    once = dict.fromkeys((Event.WORKER_STARTED, Event.FINISHED), 1)
    each = dict.fromkeys((Event.QUESTION_ASKED, Event.REPLY_GIVEN, Event.REPLY_ACKNOWLEDGED), QUESTIONS)
    assert Counter(step.event for step in meta.transitions) == once | each, "50 polls have changed nothing"
    assert len(simulator.requests) == 2
    by_question = {m.question_content: m.answer_content for m in meta.messages}
    told = tool_results(simulator.requests[1].body)
    assert told == [by_question[f"Question {number}?"] for number in range(1, QUESTIONS + 1)]
    delivered = [event["messageId"] for event in world.events(run_id, "reply")]
    assert sorted(delivered) == messages
