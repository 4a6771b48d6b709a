"""The pipes of the server, of any kind, with a slow reader or writer at the other end."""

import json
import signal
import subprocess

from subagent_server.server.connection import MAX_AT_WORK
from tests.helpers.forked import PROGRAM, popen
from tests.helpers.raw_server import HELLO, MODERN, READY, request, tool_call
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

LEAVES_WITHIN = 60.0
"""Seconds, on a machine that has much else to do; alone it takes less than 300 ms."""
FULL = 50_000
"""Nearly as much as a pipe holds; each write may leave a part of a page empty."""


def test_messages_may_come_in_pieces_with_any_line_end_and_the_last_without_one(world: World) -> None:
    greeting, ready = (json.dumps(message, ensure_ascii=False).encode() for message in (HELLO, READY))
    call = json.dumps(tool_call(1, "check_status", runId="ünïcode, 日本"), ensure_ascii=False).encode()
    with world.raw_server() as server:
        server.say_pieces(*(bytes([each]) for each in greeting), b"\r\n", ready + b"\n" + call[:-90])
        server.answer_to("hello")
        middle = len(call) - call.index("日".encode()) - 1  # in the middle of a character
        server.say_pieces(call[-90:-middle], call[-middle:])
        server.end_input()
        (answer,) = server.rest()
        assert server.leaves(LEAVES_WITHIN) == 0
    assert answer["id"] == 1 and "ünïcode, 日本" in answer["result"]["content"][0]["text"]


def test_a_discovery_that_its_client_gave_up_does_not_refuse_the_handshake(world: World) -> None:
    discovery = request(1, "server/discover", **MODERN)
    with world.raw_server() as server:
        server.say_pieces(b"".join(json.dumps(each).encode() + b"\n" for each in (discovery, HELLO)))
        assert server.answer_to("hello")["result"]["protocolVersion"] == "2025-11-25"
    with world.raw_server() as server:
        other = request(2, "tools/list", **MODERN)
        server.say_pieces(b"".join(json.dumps(each).encode() + b"\n" for each in (discovery, other)))
        assert "result" in server.answer_to(1) and "result" in server.answer_to(2)


def test_input_and_output_may_be_files(world: World) -> None:
    world.agent()
    asked, said = world.work / "asked", world.work / "said"
    messages = [HELLO, READY, request(1, "tools/list"), tool_call(2, "list_runs")]
    asked.write_text("".join(json.dumps(message) + "\n" for message in messages), encoding="utf-8")
    with asked.open("rb") as stdin, said.open("wb") as stdout:
        code = popen(
            [*PROGRAM, "serve"],
            world.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            cwd=world.work,
        ).wait(BOUND)
    answers = {message["id"]: message for message in map(json.loads, said.read_bytes().splitlines())}
    assert code == 0
    assert set(answers) == {"hello", 1, 2}
    assert answers[2]["result"]["structuredContent"] == {"runs": []}


def test_a_client_that_reads_late_gets_every_answer_whole(world: World) -> None:
    world.agent(prompt="x" * 2_000, description="y" * 5_000)
    with world.raw_server() as server:
        server.say(HELLO, READY, *(request(number, "tools/list") for number in range(30)))
        wait_for(lambda: server.unread > FULL, BOUND, "a full pipe")
        server.say(tool_call(30, "list_runs"))
        for number in range(30):
            assert server.answer_to(number)["result"]["tools"]
        assert server.answer_to(30)["result"]["structuredContent"] == {"runs": []}


def test_it_leaves_though_its_client_reads_nothing(world: World) -> None:
    world.agent(description="y" * 5_000)
    with world.raw_server() as server:
        server.say(HELLO, READY, *(request(number, "tools/list") for number in range(30)))
        wait_for(lambda: server.unread > FULL, BOUND, "a full pipe")
        server.end_input()
        assert server.leaves(LEAVES_WITHIN) == 0


def test_a_client_that_reads_nothing_is_held_back_before_it_costs_much(world: World) -> None:
    for number in range(20):
        world.agent(f"worker-{number}", description="y" * 4_000)
    with world.raw_server() as server:
        server.say(HELLO, READY)
        server.answer_to("hello")
        server.result_of(tool_call(-1, "list_runs"))
        before = server.memory_bytes
        taken = server.say_what_it_takes(request(0, "tools/list"), idle_seconds=3.0)
        assert taken > MAX_AT_WORK
        assert server.memory_bytes - before < 100 << 20
        server.signal(signal.SIGTERM)
        assert server.leaves(LEAVES_WITHIN) == 0


def test_what_a_client_gives_up_takes_no_room_though_it_writes_the_number_as_text(world: World) -> None:
    with world.raw_server() as server:
        server.say(HELLO, READY)
        server.answer_to("hello")
        for number in range(2 * MAX_AT_WORK):
            cancelled = {"requestId": str(number)}
            server.say(
                tool_call(number, "list_runs"),
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled},
            )
        server.say(request(-1, "ping"))
        assert server.answer_to(-1)["result"] == {}


def test_it_leaves_with_0_when_nobody_is_left_to_hear_it(world: World) -> None:
    with world.raw_server() as server:
        server.say(HELLO, READY)
        server.answer_to("hello")
        server.stop_listening()
        server.say(tool_call(1, "list_runs"))
        assert server.leaves(BOUND) == 0
