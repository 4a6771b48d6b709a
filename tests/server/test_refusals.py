"""Lines that are not messages: each request is answered all the same, and the server goes on."""

import os
import tracemalloc
from typing import Any

import pytest

from subagent_server.server.messages import BadMessage, read_message
from subagent_server.server.stdio import MAX_LINE_BYTES
from tests.helpers.forked import PROGRAM
from tests.helpers.raw_server import HELLO, MODERN, READY, RawServer, request, tool_call
from tests.helpers.world import World

HALF = r'"\ud800"'
"""The first half of a character, as JSON can have it and Unicode text cannot."""


def call_with(number: int, params: str) -> bytes:
    """Return the line of a tool call with these parameters, as they are."""
    return f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{params}}}'.encode()


def refusal(server: RawServer, number: int, line: bytes) -> str:
    """Send a line and return why the request of this id is refused."""
    server.say(line)
    return str(server.answer_to(number)["error"]["message"])


def test_half_a_character_is_refused_by_the_name_of_its_place(world: World) -> None:
    world.agent()
    places = {
        "params.arguments.label": f'{{"name":"run_worker","arguments":{{"prompt":"x","label":{HALF}}}}}',
        "params.arguments.inputs[1]": f'{{"name":"run_worker","arguments":{{"inputs":["a",{HALF}]}}}}',
        "params.arguments.runId": f'{{"name":"check_status","arguments":{{"runId":{HALF}}}}}',
        "a name in params.arguments": f'{{"name":"check_status","arguments":{{{HALF}:"a"}}}}',
        "params.name": f'{{"name":{HALF}}}',
        "params.uri": f'{{"uri":{HALF}}}',
    }
    with world.raw_server() as server:
        server.say(HELLO, READY)
        for number, (place, params) in enumerate(places.items()):
            assert refusal(server, number, call_with(number, params)).startswith(f"{place} holds half a char")
        assert world.store.run_ids() == []


def test_the_place_of_half_a_character_beside_a_long_list_with_a_long_name_takes_little() -> None:
    line = (
        f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":{HALF},"{"n" * 20_000}":[{"0," * 5_000}0]}}}}'
    )
    tracemalloc.start()
    try:
        found = read_message(line.encode())
        assert isinstance(found, BadMessage) and found.why.startswith("params.a holds half a character")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_line_that_is_no_message_is_answered_and_the_server_goes_on(world: World) -> None:
    deep = '{"a":' * 300 + "1" + "}" * 300
    with world.raw_server() as server:
        server.say(HELLO, READY)
        assert "params is not an object" in refusal(server, 1, call_with(1, "[]"))
        assert "nested too deeply" in refusal(server, 2, call_with(2, deep))
        assert "too large" in refusal(server, 3, call_with(3, f'{{"x":1{"0" * 5000}}}'))
        assert "method is not text" in refusal(server, 4, b'{"jsonrpc":"2.0","id":4,"method":5}')
        assert "send JSON-RPC 2.0" in refusal(server, 5, b'{"id":5,"method":"ping"}')
        quiet = (
            b"",
            b" ",
            b'{"jsonrpc":"2.0","id":1,"result":5}',
            b'{"jsonrpc":"2.0","method":"x","params":5}',
        )
        nameless = (
            *(b"{", b"[" * 100_000, b"\xff\xfe", b"5", b'[{"jsonrpc":"2.0","id":6,"method":"ping"}]'),
            *(
                b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % odd
                for odd in (b"null", b"1.5", b"true", b"[]")
            ),
        )
        server.say(call_with(8, '{"name":"wait_for_runs","arguments":{"waitSeconds":NaN}}'))
        assert "waitSeconds" in server.answer_to(8)["result"]["content"][0]["text"]
        assert refusal(server, 9, b'{"jsonrpc":"2.0","id":9,"method":"no/such"}') == "Method not found"
        server.say(*quiet, *nameless, tool_call(7, "list_runs"))
        assert server.answer_to(7)["result"]["structuredContent"] == {"runs": []}
        server.end_input()
        codes = [each["error"]["code"] for each in (*server.nameless, *server.rest())]
    assert len(codes) == len(nameless) and {*codes} == {-32700, -32600}
    reported = world.errors.read_text(encoding="utf-8").splitlines()
    unheard = len(nameless) + 2  # and the answer and the notification that are not valid
    assert len(reported) == unheard and all("was dropped: " in line for line in reported), reported


def test_a_line_that_is_too_long_is_answered_and_the_server_goes_on(world: World) -> None:
    text = b"x" * (MAX_LINE_BYTES + 1)
    with world.raw_server() as server:
        server.say(HELLO, READY)
        server.say(b'{"method":"tools/call","params":{"name":"%s"},"jsonrpc":"2.0","id":1}' % text)
        server.say(request(2, "ping"))
        assert server.answer_to(2)["result"] == {}
        (refused,) = server.nameless
    assert "bytes: leave the material in a file" in refused["error"]["message"]


def test_a_flood_of_broken_lines_is_answered_whole_once_the_client_reads(world: World) -> None:
    number_of_lines = 2_000
    with world.raw_server() as server:
        server.say(HELLO, READY)
        server.answer_to("hello")
        server.say(*(call_with(number, "[]") for number in range(number_of_lines)))
        for number in range(number_of_lines):
            assert "error" in server.answer_to(number)
        server.say(request(number_of_lines, "ping"))
        assert server.answer_to(number_of_lines)["result"] == {}


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
def test_parameters_that_do_not_fit_are_refused_by_name_and_a_cursor_of_no_list_is(
    world: World, era: str
) -> None:
    odd: dict[str, tuple[str, dict[str, Any]]] = {
        "params.name": ("tools/call", {"arguments": {}}),
        "params.arguments": ("tools/call", {"name": "list_runs", "arguments": []}),
        "params.cursor": ("tools/list", {"cursor": 5}),
        "resources/list: 'x' is not a cursor": ("resources/list", {"cursor": "x"}),
        "templates/list: 'x' is not a cursor": ("resources/templates/list", {"cursor": "x"}),
    }
    is_modern = era == "2026-07-28"
    with world.raw_server() as server:
        if not is_modern:
            server.say(HELLO, READY)
        for number, (words, (method, params)) in enumerate(odd.items()):
            params |= MODERN if is_modern else {}
            server.say(request(number, method, **params))
            error = server.answer_to(number)["error"]
            assert error["code"] == -32602 and words in error["message"] and error["data"], error
        server.say(request(-1, "tools/call", name="list_runs", _meta="none"))
        assert "_meta" in server.answer_to(-1)["error"]["message"]


def test_a_connection_begins_once(world: World) -> None:
    with world.raw_server() as server:
        server.say(tool_call(1, "list_runs"))
        assert "send initialize first" in server.answer_to(1)["error"]["message"]
        server.say(HELLO, READY)
        server.answer_to("hello")
        server.say({"jsonrpc": "2.0", "method": "initialize"}, HELLO)
        assert "initialized already" in server.answer_to("hello")["error"]["message"]


def test_an_answer_that_names_a_path_which_is_not_text_arrives(world: World) -> None:
    odd = world.work / os.fsdecode(b"caf\xe9")
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("this file system has names of UTF-8 only")
    world.agent()
    with RawServer([*PROGRAM, "serve"], world.environment, odd, world.errors) as server:
        server.say(HELLO, READY)
        refused = server.result_of(tool_call(1, "run_worker", prompt="x", inputs=["missing"]))
    assert refused["isError"] and "'missing' cannot be read (No such file" in refused["content"][0]["text"]
