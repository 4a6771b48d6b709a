"""The end of a server over HTTP: streams end first, calls are answered, and no run is touched."""

import signal
import socket
import time

from subagent_server.run import locks
from tests.helpers.raw_server import MODERN, tool_call
from tests.helpers.turns import asks, says
from tests.helpers.world import World
from tests.http.test_streams import Session


def test_a_server_that_is_told_to_leave_ends_streams_and_calls_within_5_s(world: World) -> None:
    world.agent_saying(asks("Which colour?"), says("Painted."))
    with world.http_server() as server, socket.create_connection(("127.0.0.1", server.port)) as dead:
        session = Session(server)
        dead.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
        run_id = session.call("run_worker", prompt="Paint.")["runId"]
        world.asking(run_id)
        assert session.call("check_status", runId=run_id)["messages"]
        waits = tool_call(3, "wait_for_runs", runIds=[run_id], cursor=f"{run_id}.9", waitSeconds=60)
        listen = {**MODERN, "notifications": {"toolsListChanged": True}}
        changes = {"jsonrpc": "2.0", "id": 4, "method": "subscriptions/listen", "params": listen}
        with session.stream(waits) as call, session.stream() as news, session.modern(changes) as listening:
            assert call.next() is not None and "acknowledged" in str(listening.next())
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            left = str(call.next())
            assert "The server left before this call was answered. Runs continue" in left
            assert call.next() is None and news.next() is None
            assert '"id":4' in str(listening.next()) and listening.next() is None
            assert server.leaves(10) == 0
            assert time.monotonic() - began < 5
        assert "Traceback" not in server.said and "ERROR" not in server.said
    assert locks.is_held(world.paths(run_id).live_lock), "the run continues"
    with world.http_server(port=server.port) as again, again.parent("default") as parent:
        (view,) = parent.call("wait_for_runs", waitSeconds=30)["runs"]
        assert view["runId"] == run_id and view["messages"]


def test_after_a_killed_server_a_new_connection_finds_its_runs_and_waits_again(world: World) -> None:
    world.agent_saying(asks("Which colour?"), says("Painted."))
    with world.http_server() as server:
        session = Session(server)
        run_id = session.call("run_worker", prompt="Paint it.")["runId"]
        with session.stream(tool_call(2, "wait_for_runs", waitSeconds=60)):
            pass
    with world.http_server() as server, server.parent("another", "legacy") as parent:
        (view,) = parent.call("wait_for_runs", waitSeconds=30)["runs"]
        assert view["runId"] == run_id and view["messages"], "its server has gone, so all parents hear it"
        parent.call("reply_subagent", runId=run_id, answer="Red.")
        assert parent.call("check_status", runId=run_id, waitSeconds=30)["result"] == "Painted."
