"""The server on its pipes: stdout carries protocol only, and leaving is quick and touches no run."""

import asyncio
import fcntl
import gc
import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from subagent_server.run.commands import readable
from subagent_server.server import stdio
from subagent_server.server.connection import ClientConnection, SharedByClients
from subagent_server.server.stdio import Serving, _Outgoing
from subagent_server.verbs.access import USER
from tests.helpers.raw_server import HELLO, READY, request, tool_call
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

LEAVES_WITHIN = 60.0
"""Seconds, on a machine that has much else to do; alone it takes less than 300 ms."""
LEFT = -32000
"""The code of the error for a request that the server has read and not answered when it leaves."""


def test_it_leaves_with_0_at_a_signal_and_at_the_end_of_input_while_the_run_goes_on(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    for number in (None, signal.SIGINT, signal.SIGTERM):
        with world.raw_server("--max-wait", "60") as server:
            server.say(HELLO, READY)
            server.answer_to("hello")
            server.say(tool_call(1, "wait_for_runs", runIds=[run_id], waitFor="all", waitSeconds=60))
            cursor = server.answer_to(1)["result"]["structuredContent"]["cursor"]
            wait = {"runIds": [run_id], "cursor": cursor, "waitSeconds": 60}
            server.say(tool_call(2, "wait_for_runs", **wait), tool_call(3, "wait_for_runs", **wait))
            server.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}})
            server.result_of(tool_call(4, "list_runs"))
            server.end_input() if number is None else server.signal(number)
            assert server.leaves(LEAVES_WITHIN) == 0
            (last,) = [message for message in server.rest() if message["id"] != 3]
            assert last["id"] == 2 and last["error"]["code"] == LEFT
            assert "list_runs" in last["error"]["message"]
    assert world.look(run_id).live
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."


def test_a_killed_server_leaves_nobody_at_its_pipes(world: World) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    with world.raw_server() as server:
        server.say(HELLO, READY)
        server.answer_to("hello")
        run_id = server.result_of(tool_call(1, "run_worker", prompt="Go."))["structuredContent"]["runId"]
        assert world.look(run_id).live  # its shim, which the server has started, outlives it
        server.signal(signal.SIGKILL)
        server.leaves(BOUND)
        with pytest.raises(BrokenPipeError):
            server.say(tool_call(2, "list_runs"))
        assert server.rest() == []
    assert world.look(run_id).live


def test_requests_that_are_followed_by_the_end_of_input_at_once_are_answered(world: World) -> None:
    world.agent(tools="Bash(git diff:*)")

    def answered() -> dict[str | int, dict[str, Any]] | None:
        with world.raw_server() as server:
            calls = [tool_call(2, "run_worker", prompt="Go."), tool_call(3, "check_status", runId="nothing")]
            server.say(HELLO, READY, request(1, "tools/list"), *calls)
            server.end_input()
            answers = {message["id"]: message for message in server.rest()}
            assert server.leaves(LEAVES_WITHIN) == 0
        assert set(answers) == {"hello", 1, 2, 3}
        refused = [each["error"]["code"] for each in answers.values() if "error" in each]
        assert set(refused) <= {LEFT}
        return None if refused else answers

    answers = wait_for(answered, BOUND, "a server that has the time to work on every request")
    assert answers is not None
    view = answers[2]["result"]["structuredContent"]
    assert view["error"]["code"] == "config"
    assert answers[3]["result"]["isError"] is True


def test_a_message_that_is_cancelled_half_written_is_written_whole() -> None:
    def message(text: str) -> SessionMessage:
        return SessionMessage(types.JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": text}))

    async def written(incoming: int, outgoing: int) -> list[bytes]:
        os.write(outgoing, b"\n" * (fcntl.fcntl(outgoing, fcntl.F_GETPIPE_SZ) - 5_000))
        out = _Outgoing(outgoing, gone=lambda: None)

        async def send_cancelled() -> None:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await out.send(message("a" * 9_000))

        sending = asyncio.create_task(send_cancelled())
        await asyncio.sleep(0.1)
        data = os.read(incoming, 1 << 20)
        await sending
        await out.send(message("b"))
        return (data + os.read(incoming, 1 << 20)).split()

    incoming, outgoing = os.pipe()
    with os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb"):
        texts = [json.loads(line)["params"]["text"] for line in asyncio.run(written(incoming, outgoing))]
    assert texts == ["a" * 9_000, "b"]


def test_a_client_at_a_socket_that_has_gone_and_read_no_answer_is_the_end_of_input(world: World) -> None:
    async def left() -> BaseException | None:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                connection = ClientConnection(
                    world.service, "parent", USER, SharedByClients(world.service, USER)
                )
                serving = Serving(connection, ours.fileno(), ours.fileno())
                theirs.sendall(b"no message\n")
                await readable(theirs.fileno(), BOUND)
            try:
                return await serving.until_left()
            finally:
                await serving.aclose()

    assert asyncio.run(left()) is None


def test_nothing_of_a_connection_works_on_after_its_end_whatever_its_client_still_sends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late answer would get into the file that has the number of its descriptor by then."""
    monkeypatch.setattr(stdio, "_POLL_SECONDS", 0.0)  # lines are read on as soon as others are refused
    flood = b" " * 1_000 + json.dumps(request(1, "tools/list")).encode() + b"\n"

    async def end_after(seconds: float, shared: SharedByClients) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with ours, theirs:
            before = asyncio.all_tasks()
            feeding = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, flood * 6_000))
            connection = ClientConnection(world.service, "parent", USER, shared)
            serving = Serving(connection, ours.fileno(), ours.fileno())
            leaving = asyncio.create_task(serving.until_left())
            await asyncio.sleep(seconds)
            theirs.shutdown(socket.SHUT_RD)
            await leaving
            ours.shutdown(socket.SHUT_RDWR)
            await serving.aclose()
            gc.collect()  # a generator that was left open gets a task of its own when it is found
            await asyncio.sleep(0)
            assert asyncio.all_tasks() - before <= {feeding}
            feeding.cancel()
            with suppress(ConnectionError, asyncio.CancelledError):
                await feeding

    async def work() -> None:
        shared = SharedByClients(world.service, USER)
        for number in range(8):
            await end_after(number * 0.04, shared)

    asyncio.run(work())
