"""Streams over HTTP: what breaks is resumed by its own session alone; a client that goes ends no run."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection, HTTPResponse
from itertools import count
from typing import Any

import mcp_types as types
from mcp.server.streamable_http import EventMessage

from subagent_server.server.http import MAX_EVENT_BYTES, SessionEvents
from subagent_server.server.sockets import listen_on_port
from tests.helpers.http_server import ACCEPT, BOUND, HttpServer
from tests.helpers.raw_server import HELLO, MODERN, MODERN_VERSION, READY, tool_call
from tests.helpers.scale import times
from tests.http.conftest import Painter


def headers_of(server: HttpServer, parent: str, **more: str) -> dict[str, str]:
    """Return the headers of a message of a parent; `_` stands for `-` in the names of `more`."""
    named = {name.replace("_", "-"): value for name, value in more.items()}
    known = {"Accept": ACCEPT, "Content-Type": "application/json"}
    return {**known, "Authorization": f"Bearer {server.token(parent)}", **named}


class Session:
    """A session of the older era, whose streams can be broken."""

    def __init__(self, server: HttpServer, parent: str = "default") -> None:
        self._server, self._parent, self._numbers = server, parent, count(100)
        hello = server.ask(body=HELLO, token=parent)
        assert hello.status == 200
        self.id = hello.headers["mcp-session-id"]
        assert self.ask(READY).status == 202

    def ask(self, message: Any, method: str = "POST") -> Any:
        """Send a message and return the whole answer."""
        return self._server.ask(method, body=message, token=self._parent, Mcp_Session_Id=self.id)

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool, and return its structured content."""
        return self.ask(tool_call(next(self._numbers), tool, **arguments)).json["result"]["structuredContent"]

    def modern(self, message: Any) -> AbstractContextManager["Events"]:
        """Open the stream of a request of the newer era, which has no session."""
        return self._opened(message, MCP_Protocol_Version=MODERN_VERSION, Mcp_Method=message["method"])

    def stream(self, message: Any = None, last: str | None = None) -> AbstractContextManager["Events"]:
        """Open a stream: of a request, or the one that an event id names, or the one for all else."""
        from_there = {} if last is None else {"Last_Event_ID": last}
        older = {"Mcp_Session_Id": self.id, "MCP_Protocol_Version": "2025-11-25"}
        return self._opened(message, **older, **from_there)

    @contextmanager
    def _opened(self, message: Any, **more: str) -> Iterator["Events"]:
        headers = headers_of(self._server, self._parent, **more)
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=BOUND)
        try:
            if message is None:
                connection.request("GET", "/mcp", None, headers)
            else:
                connection.request("POST", "/mcp", json.dumps(message).encode(), headers)
            answer = connection.getresponse()
            assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
            yield Events(answer)
        finally:
            connection.close()


class Events:
    """The events of a stream."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> dict[str, str] | None:
        """Return the fields of the next event, or None at the end. Comments are passed over."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n"):
            line = line.rstrip("\r")
            if line and not line.startswith(":"):
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif not line and fields:
                return fields
        return fields or None

    def answer(self) -> dict[str, Any]:
        """Return the message that is the answer, passing over what comes before it."""
        while (event := self.next()) is not None:
            if event.get("data") and "result" in (message := json.loads(event["data"])):
                found: dict[str, Any] = message["result"]["structuredContent"]
                return found
        raise AssertionError("the stream has ended without an answer")


def test_a_broken_stream_is_resumed_by_its_own_session_and_by_no_other(painter: Painter) -> None:
    world, server = painter.world, painter.server
    mine, other = Session(server), Session(server)
    run_id = mine.call("run_worker", prompt="Paint it.")["runId"]
    world.asking(run_id)
    view = tool_call(2, "check_status", runId=run_id, waitSeconds=60)
    world.reply(run_id, "Red.")
    with mine.stream(view) as stream:
        first = stream.next()
    assert first is not None and first["retry"] and first["id"]
    world.completed(run_id)
    with other.stream(last=first["id"]) as stream:
        assert stream.next() is None, "the other session has a stream of this name too"
    for _ in range(2):  # a client may lose the connection again
        with mine.stream(last=first["id"]) as stream:
            assert stream.answer()["result"] == "Painted."


def test_a_client_that_comes_back_before_the_answer_gets_it_when_it_comes(painter: Painter) -> None:
    world, server = painter.world, painter.server
    session = Session(server)
    run_id = session.call("run_worker", prompt="Paint.")["runId"]
    world.asking(run_id)
    assert session.call("check_status", runId=run_id)["messages"]
    waits = tool_call(3, "wait_for_runs", runIds=[run_id], waitSeconds=60, cursor=run_id + ".9")
    with session.stream(waits) as stream:
        first = stream.next()
    assert first is not None
    with session.stream(last=first["id"]) as stream:
        world.reply(run_id, "Red.")
        (run,) = stream.answer()["runs"]
        assert run["result"] == "Painted."


def test_an_answer_beyond_the_bound_reaches_who_has_resumed_its_stream() -> None:
    answer = types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": "x" * MAX_EVENT_BYTES})
    came: list[Any] = []

    async def take(event: EventMessage) -> None:
        came.append(event.message)

    async def resumed() -> None:
        events = SessionEvents()
        first = await events.store_event("1", None)
        async with asyncio.timeout(BOUND):
            reader = asyncio.create_task(events.replay_events_after(first, take))
            await asyncio.sleep(0)
            await events.store_event("1", answer)
            await reader

    asyncio.run(resumed())
    assert came == [answer]


def test_an_end_whose_reader_had_gone_is_shown_by_the_next_wait_of_any_session(painter: Painter) -> None:
    world, server = painter.world, painter.server
    session = Session(server)
    run_id = session.call("run_worker", prompt="Paint it.")["runId"]
    world.asking(run_id)
    waits = tool_call(2, "wait_for_runs", runIds=[run_id], waitSeconds=60, cursor=run_id + ".9")
    with session.stream(waits) as stream:
        first = stream.next()
    assert first is not None
    world.reply(run_id, "Red.")
    world.completed_and_gone(run_id)
    with session.stream(last=first["id"]) as stream:
        assert stream.answer()["runs"], "the call has continued, and has its answer"
    for asking in (Session(server), session):
        runs = asking.call("wait_for_runs", waitSeconds=0)["runs"]
        assert [run["result"] for run in runs if run["runId"] == run_id] == ["Painted."]


def sent(server: HttpServer, message: Any) -> socket.socket:
    """Send a request of the newer era, and return the connection without reading the answer."""
    body = json.dumps(message).encode()
    named = {"Mcp_Method": message["method"], "Mcp_Name": message["params"]["name"]}
    more = {"Host": "localhost", "MCP_Protocol_Version": MODERN_VERSION, "Content_Length": str(len(body))}
    head = [f"{name}: {value}" for name, value in headers_of(server, "default", **named, **more).items()]
    peer = socket.create_connection(("127.0.0.1", server.port), timeout=BOUND)
    peer.sendall("\r\n".join(["POST /mcp HTTP/1.1", *head, "", ""]).encode() + body)
    return peer


def test_a_newer_client_that_goes_away_ends_its_wait_and_no_run(painter: Painter) -> None:
    world, server = painter.world, painter.server
    run_id = world.start_asking()
    waits = tool_call(1, "wait_for_runs", runIds=[run_id], waitSeconds=60, cursor=f"{run_id}.9")
    waits["params"] |= MODERN
    with sent(server, waits) as peer:
        peer.close()
    world.reply(run_id, "Red.")
    assert world.completed(run_id) == "Painted."


def test_a_parent_with_too_many_sessions_gets_no_more_and_others_go_on(painter: Painter) -> None:
    server = painter.server
    older = Session(server, "another")
    hello = json.dumps(HELLO).encode()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    headers = headers_of(server, "greedy")
    statuses = Counter[int]()
    openings = times(300, 10_000)
    for number in range(openings + openings // 2):
        connection.request("POST", "/mcp", b"{" if number % 3 == 2 else hello, headers)
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
    connection.close()
    assert statuses == {200: 256, 503: openings - 256, 400: openings // 2}, "what is no message opens none"
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert older.ask(listing).status == 200 and Session(server, "third").ask(listing).status == 200


def test_an_answer_waits_for_no_acknowledgement_by_the_client() -> None:
    async def is_sent_at_once() -> bool:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        listener = listen_on_port("localhost", 0)
        async with await asyncio.start_server(lambda _, writer: accepted.put(writer), sock=listener):
            _, client = await asyncio.open_connection(*listener.getsockname()[:2])
            server = await accepted.get()
            connection = server.get_extra_info("socket")
            sends_at_once: int = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for writer in (client, server):
                writer.close()
                await writer.wait_closed()
            return sends_at_once == 1

    assert asyncio.run(is_sent_at_once())
