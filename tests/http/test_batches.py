"""Batches of the version 2025-03-26: each message is answered, over HTTP and over stdio."""

import json
from typing import Any

from tests.helpers.http_server import HttpServer, Reply
from tests.helpers.raw_server import HELLO, READY, request, tool_call
from tests.helpers.world import World

OLD = {**HELLO, "params": {**HELLO["params"], "protocolVersion": "2025-03-26"}}


def answers(reply: Reply) -> dict[Any, Any]:
    """Return the answers of a stream by their ids."""
    lines = [line.removeprefix(b"data: ") for line in reply.body.splitlines() if line.startswith(b"data: {")]
    return {each["id"]: each for each in map(json.loads, lines) if "id" in each}


def open_session(server: HttpServer) -> dict[str, str]:
    """Open a session of the old version, and return the header that names it."""
    opened = server.ask(body=OLD)
    assert opened.json["result"]["protocolVersion"] == "2025-03-26"
    return {"Mcp_Session_Id": opened.headers["mcp-session-id"]}


def test_each_message_of_a_batch_over_http_is_answered(world: World) -> None:
    world.agent()
    with world.http_server() as server:
        session = open_session(server)
        assert server.ask(body=[READY, READY], **session).status == 202
        batch = [tool_call(1, "list_runs"), request(2, "ping"), READY, request(3, "nothing"), 5]
        reply = server.ask(body=batch, **session)
        assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream")
        found = answers(reply)
        assert found[1]["result"]["structuredContent"] == {"runs": []} and found[2]["result"] == {}
        assert found[3]["error"]["code"] == -32601, found[3]
        assert found[None]["error"]["code"] == -32600, found[None]
        for wrong in ([], [OLD], [request(n, "ping") for n in range(101)]):
            refused = server.ask(body=wrong, **session)
            assert refused.status == 400 and refused.json["error"]["code"] == -32600
        later = server.ask(body=batch, **session, MCP_Protocol_Version="2025-11-25")
        assert later.status == 400


def test_over_http_an_id_that_is_none_or_has_no_answer_yet_is_refused(world: World) -> None:
    with world.http_server() as server:
        session = open_session(server)
        for odd in (None, 1.5, True):
            message = {**request(0, "ping"), "id": odd}
            alone = server.ask(body=message, **session)
            assert alone.status == 400 and "give each request one" in alone.json["error"]["message"]
            assert answers(server.ask(body=[message], **session))[None]["error"]["code"] == -32600
        for again in (1, "1"):
            found = answers(
                server.ask(body=[request(1, "ping"), {**request(1, "ping"), "id": again}], **session)
            )
            assert found[1]["result"] == {} and "no answer yet" in found[None]["error"]["message"]
        assert answers(server.ask(body=[[request(2, "ping")]], **session))[None]["error"]["code"] == -32600


def test_over_http_what_is_no_message_is_answered_by_its_id_and_in_words(world: World) -> None:
    with world.http_server() as server:
        session = open_session(server)
        for text, number, word in (
            (
                r'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"\ud83d"}}',
                7,
                "params.a holds half a char",
            ),
            ('{"jsonrpc":"2.0","id":"x","method":"ping","params":[]}', "x", "params is not an object"),
            ('{"jsonrpc":"1.0","id":7,"method":"ping"}', 7, "send JSON-RPC 2.0"),
            ('{"jsonrpc":"2.0","id":null,"method":"initialize"}', None, "id is neither text"),
            ('"ping"', None, "not a JSON-RPC message"),
            ("{", None, "not JSON"),
        ):
            error = server.ask(body=text.encode(), **session)
            assert error.status == 400 and error.json["id"] == number, error.body
            assert word in error.json["error"]["message"], error.body


def test_each_message_of_a_batch_over_stdio_is_answered_once_for_an_id(world: World) -> None:
    with world.raw_server() as server:
        server.say(OLD)
        server.answer_to("hello")
        batch = [READY, tool_call(1, "list_runs"), request(2, "ping"), request(2, "ping"), 5]
        server.say(json.dumps(batch).encode())
        assert server.answer_to(1)["result"]["structuredContent"] == {"runs": []}
        assert server.answer_to(2)["result"] == {}
        server.end_input()
        refused = [each["error"] for each in (*server.nameless, *server.rest())]
        assert [each["code"] for each in refused] == [-32600, -32600]
        assert "has no answer yet" in str(refused)
