"""Servers that are slow, silent, broken, old or rude, each as a process of its own."""

import asyncio
import gzip
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx2
import pytest
from mcp import ClientSession, MCPError
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool

from subagent_server.run import processes
from subagent_server.run.errors import RunRefused
from subagent_server.sandbox.box import Rules, build_box
from subagent_server.toolbox.agent_process import AgentProcess, ProcessOrder
from subagent_server.toolbox.mcp import transport
from subagent_server.toolbox.mcp.server_connection import ServerTrouble, all_tools, means_loss
from tests.helpers.bubblewrap import settings as bubblewrap_settings
from tests.helpers.mcp_servers import definition, scripted
from tests.helpers.wait import wait_for
from tests.toolbox.mcp.connecting import BOUND, connected

pytestmark = pytest.mark.process


def refusal(tmp_path: Path, **servers: dict[str, Any]) -> str:
    """Return why servers could not be connected."""

    async def attempt() -> None:
        async with connected(tmp_path, **servers):
            pass

    with pytest.raises(RunRefused) as caught:
        asyncio.run(attempt())
    assert caught.value.failure_code == "config"
    return caught.value.sentence


def pids(mark: Path) -> list[int]:
    """Return the processes of a server that have been started so far."""
    return [int(line) for line in mark.read_text(encoding="utf-8").split()] if mark.exists() else []


def has_gone(pid: int) -> bool:
    """Whether a process has ended: one that was killed takes a moment."""
    identity = processes.identify(pid)
    return identity is None or not processes.is_alive(identity)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)


def test_all_pages_of_a_list_are_read(tmp_path: Path) -> None:
    async def work() -> None:
        many = [f"tool_{number}" for number in range(45)]
        async with connected(tmp_path, s=scripted(*many, pageSize=10)) as field:
            assert list(field.tools) == many

    asyncio.run(work())


@pytest.mark.parametrize(
    ("each", "length", "said"), [(1_000, 1, "more than 5,000 tools"), (1, 13 << 20, "in more than 64 MiB")]
)
def test_more_tools_than_a_worker_has_room_for_are_not_taken(each: int, length: int, said: str) -> None:
    class Session:
        pages = 0

        async def list_tools(self, params: PaginatedRequestParams) -> ListToolsResult:
            self.pages += 1
            tool = Tool(name="a", description="x" * length, input_schema={"type": "object"})
            return ListToolsResult(tools=[tool] * each, next_cursor=str(self.pages))

    session = Session()
    with pytest.raises(ServerTrouble, match=said):
        asyncio.run(all_tools(cast(ClientSession, session)))
    assert session.pages in (5, 6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            scripted(exit=3, stderr=["cannot open /etc/x"]),
            "ended with exit code 3; it said: cannot open /etc/x",
        ),
        ({"command": "no-such-program"}, "there is no program 'no-such-program'"),
        ({"command": "/etc/passwd"}, "could not be started: /etc/passwd: Permission denied"),
        (scripted("a", pageSize=1, pagesDoNotEnd=True), "pages that do not end"),
        (
            scripted(silent=True, stderr=["waiting for the database"], keys={"timeout": 2}),
            "did not connect and list its tools within 2 s; it said: waiting for the database; `timeout`",
        ),
        (
            {"type": "http", "url": "http://user:pw@127.0.0.1:1/mcp?key=k"},
            "reached at http://127.0.0.1:1/mcp",
        ),
        ({"type": "sse", "url": "http://127.0.0.1:1/sse"}, "could not be reached at http://127.0.0.1:1/sse"),
        (
            {"type": "http", "url": "http://127.0.0.1:1/mcp", "headers": {"X-Key": "secret\nin two lines"}},
            "127.0.0.1:1/mcp: the value of its header X-Key holds a line break, or what is not ASCII.",
        ),
    ],
    ids=["ends", "missing", "no-program", "endless", "silent", "no-http", "no-sse", "no-header"],
)
def test_a_server_that_cannot_be_used_is_named_with_its_failure_and_its_output(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    sentence = refusal(tmp_path, odd=keys, fine=scripted("t"))
    assert sentence.startswith("The MCP server odd ") and said in sentence and "fine" not in sentence


def test_certificates_that_are_missing_are_not_taken_for_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/missing.pem")
    sentence = refusal(tmp_path, odd={"type": "http", "url": "http://127.0.0.1:1/mcp"})
    assert "certificates that SSL_CERT_FILE names cannot be read (No such file" in sentence


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"200 OK", "sent an answer of more than 64 MiB"),
        (b"500 Fault\r\nContent-Type: text/event-stream", "sent an answer of more than 64 MiB"),
        (b"200 OK\r\nContent-Encoding: gzip", "sent an answer of more than 64 MiB"),
        (b"200 OK\r\nContent-Encoding: gzip, gzip", "sent an answer of more than 64 MiB"),
        (b"200 OK\r\nContent-Length: 1", "sent what is no message of the protocol"),
    ],
    ids=["endless", "failed", "compressed", "compressed-twice", "no-message"],
)
def test_an_answer_over_http_takes_a_bounded_memory_and_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, said: str
) -> None:
    """A body of 4 MB, as it is, is 4 KB if it is compressed."""
    monkeypatch.setattr(transport, "LONGEST_EVENT", 1 << 20)  # 64 MiB in earnest
    body = b"{" + b" " * (0 if b"Length" in head else 4_000_000)
    for _ in range(head.count(b"gzip")):
        body = gzip.compress(body, 1)
    kind = b"" if b"Type" in head else b"\r\nContent-Type: application/json"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 " + head + kind + b"\r\n\r\n" + body)
            await writer.drain()
            writer.close()

    async def attempt() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        async with server, connected(tmp_path, odd={"type": "http", "url": f"http://127.0.0.1:{port}/"}):
            pass

    with pytest.raises(RunRefused) as caught:
        asyncio.run(attempt())
    assert f"The MCP server odd {said}." in caught.value.sentence


class OneCallASession(BaseHTTPRequestHandler):
    """A server of MCP that knows each of its sessions for one call."""

    begun = 0
    used: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, session = 200, self.headers["mcp-session-id"]
        answer: dict[str, Any] = {"error": {"code": -32601, "message": "unknown"}}
        match message["method"]:
            case "initialize":
                type(self).begun += 1
                agreed = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                answer = {"result": {**agreed, "serverInfo": {"name": "s", "version": "1"}}}
            case "tools/list":
                answer = {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}}
            case "tools/call" if session in self.used:
                status, answer = 404, {"error": {"code": -32001, "message": "Session not found"}}
            case "tools/call":
                self.used.append(session)
                answer = {"result": {"content": [{"type": "text", "text": "done"}]}}
        number = message.get("id")
        body = b"" if number is None else json.dumps({"jsonrpc": "2.0", "id": number, **answer}).encode()
        self.send_response(status if body else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", f"s{self.begun}")
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self) -> None:
        self.send_error(405)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_a_lost_session_is_begun_anew_as_often_as_calls_succeed_between(tmp_path: Path) -> None:
    async def work(port: int) -> None:
        async with connected(tmp_path, s={"type": "http", "url": f"http://127.0.0.1:{port}/"}) as field:
            texts = [(await field.call("t")).text for _ in range(5)]
        assert texts[::2] == ["done"] * 3 and all("connected again" in text for text in texts[1::2]), texts

    with ThreadingHTTPServer(("127.0.0.1", 0), OneCallASession) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            asyncio.run(work(server.server_port))
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("code", "message", "status", "is_lost"),
    [
        (-32603, "Server returned an error response", "404 Not Found (no such session)", True),
        (-32603, "Server returned an error response", "503 Service Unavailable (busy)", False),
        (-32001, "Session not found", '404 Not Found ({"error": {"message": "Session not found"}})', True),
        (
            -32000,
            "No valid session ID",
            '400 Bad Request ({"error": {"message": "No valid session ID"}})',
            True,
        ),
        (
            -32602,
            "session is required",
            '400 Bad Request ({"error": {"message": "session is required"}})',
            False,
        ),
        (-32001, "Session not found", None, False),
    ],
)
def test_a_lost_session_is_known_by_an_error_of_http(
    code: int, message: str, status: str | None, is_lost: bool
) -> None:
    assert means_loss(MCPError(code, message), status and f"answered HTTP {status}") is is_lost


@pytest.mark.parametrize(("kind", "expected"), [("http", "404 Not Found"), ("sse", "405 Method Not Allowed")])
def test_a_refusal_to_be_listened_to_is_no_trouble_of_a_call_amid_it(kind: str, expected: str) -> None:
    network = transport.NetworkTransport(definition(type=kind, url="http://127.0.0.1/"))

    async def refused(method: str, status: int) -> None:
        request = httpx2.Request(method, "http://127.0.0.1/")
        await network._notice(httpx2.Response(status, request=request))

    asyncio.run(refused("POST", 404))
    asyncio.run(refused("GET", 405))
    assert network.trouble == f"answered HTTP {expected}"


def test_several_that_fail_at_once_are_all_named(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, one={"command": "no-such-1"}, two={"command": "no-such-2"})
    assert "server one could not be started" in sentence and "server two could not be started" in sentence


@pytest.mark.parametrize("odd", ["die", "silent"])
def test_an_old_server_that_ends_or_falls_silent_at_a_new_word_is_asked_in_the_old_way(
    tmp_path: Path, odd: str
) -> None:
    async def work() -> None:
        server = scripted("t", discover=odd, keys={"timeout": 12})
        async with connected(tmp_path, old=server) as field:
            assert field.protocols() == {"old": "2025-11-25"}
            assert (await field.call("t", a=1)).text == '{"a": 1}'

    asyncio.run(work())


def test_a_loose_schema_costs_that_tool_alone_and_an_empty_one_is_an_object(tmp_path: Path) -> None:
    loose: list[dict[str, Any]] = [
        {"name": "number", "inputSchema": 5},
        {"name": "text", "inputSchema": {"type": "string"}},
        {"name": "odd", "inputSchema": {"properties": {"a": 5}}},
        {"name": "empty", "inputSchema": {}},
        {"name": "null", "inputSchema": None},
        {"name": "none", "inputSchema": "missing"},
        {"name": "untyped", "inputSchema": {"properties": {"a": {"type": "integer"}}}},
        {"name": "packed", "inputSchema": {"properties": {"type": "object", "properties": {"b": {}}}}},
        {"title": "nameless", "name": 7},
    ]

    async def work() -> None:
        async with connected(tmp_path, s=scripted("good", *loose, pageSize=4)) as field:
            assert list(field.tools) == ["good", "empty", "null", "none", "untyped", "packed"]
            for name in ("empty", "null", "none"):
                assert field.tools[name].definition()["input_schema"] == {"type": "object"}
            assert "b" in field.tools["packed"].definition()["input_schema"]["properties"]
            assert (await field.call("untyped", a=1)).text == '{"a": 1}'
            warnings = [facts["message"] for facts in field.said("warning")]
        assert len(warnings) == 4 and all(
            "The MCP server s offers a tool that is left out" in w for w in warnings
        )
        for name, warning in zip(["'number'", "'text'", "'odd'", "'7'"], warnings, strict=True):
            assert f": {name} (" in warning, warning

    asyncio.run(work())


def test_nothing_of_the_handshake_with_an_older_server_is_in_the_log_and_all_in_its_file(
    tmp_path: Path,
) -> None:
    noise = [f"Failed to validate request: line {number} of 95" for number in range(95)]

    async def work() -> None:
        server = scripted(
            {"name": "t", "does": {"stderr": "\x1b[1;31mcal\x1b[0mled"}}, stderr=["ready"], complains=noise
        )
        async with connected(tmp_path, old=server) as field:
            assert field.protocols() == {"old": "2025-11-25"} and field.said("server_log") == []
            await field.call("t")
            await wait_until(lambda: bool(field.said("server_log")))
            assert [facts["text"] for facts in field.said("server_log")] == ["called"]

    asyncio.run(work())
    kept = (tmp_path / "mcp" / "old.log").read_text(encoding="utf-8").splitlines()
    assert kept == ["ready", *noise, "called"]


def test_output_of_a_server_is_logged_and_kept_and_never_ends_the_conversation(tmp_path: Path) -> None:
    async def work() -> None:
        server = scripted(
            {"name": "t", "does": {"stderr": "my key: very-secret-key"}},
            stdout=["Welcome!", "{}", ""],
            stderr=["key: very-secret-key", "ü", "\x1b]52;c;cm0=\x07\x9b31m\u202e\tred\r"],
            log="almost full",
        )
        async with connected(tmp_path, ("very-secret-key",), **{"a b": server}) as field:
            assert (await field.call("t")).text == "{}"
            await wait_until(lambda: len(field.said("server_log")) > 1)
            said = [facts["text"] for facts in field.said("server_log")]
        assert said == ["[warning] almost full", "my key: ***"]

    asyncio.run(work())
    (kept,) = (tmp_path / "mcp").iterdir()
    text = kept.read_text(encoding="utf-8")
    assert (
        "key: ***\nü\n" in text
        and "(on stdout) Welcome!\n" in text
        and kept.name.startswith("a_b")
        and kept.suffix == ".log"
    )
    assert "\\x1b]52;c;cm0=\\x07\\x9b31m\\u202e\tred\n" in text


def test_failures_of_calls_are_results_for_the_model_and_the_server_stays(tmp_path: Path) -> None:
    async def work() -> None:
        server = scripted(
            {"name": "refuses", "does": {"error": "not today"}},
            {"name": "fails", "does": {"error": {"code": "ENOENT", "message": "no file"}}},
            {"name": "odd", "does": {"content": [{"type": "smell"}]}},
            {"name": "breaks_promise", "outputSchema": {"type": "object"}, "does": {"content": []}},
            {"name": "cuts", "does": {"content": [{"type": "text", "text": "half \ud83d"}]}},
            {"name": "cuts_bytes", "does": {"raw": '{"content": [{"type": "text", "text": "caf\xe9"}]}'}},
            {
                "name": "counts_on",
                "does": {"raw": '{"content": [], "structuredContent": ' + "9" * 5_000 + "}"},
            },
            {"name": "crumbles", "does": {"content": [{"type": "text", "text": "x"}] * 1_003}},
            {"name": "works", "does": {"progress": 3}},
        )
        slow = scripted({"name": "hangs", "does": {"hang": True}}, keys={"callTimeoutSeconds": 0.5})
        async with connected(tmp_path, s=server, slow=slow) as field:
            for name, said in (
                ("refuses", "The MCP server s refused the call: not today."),
                ("fails", "The MCP server s refused the call: its answer is no message of the protocol."),
                ("counts_on", "its answer is no message of the protocol"),
                ("hangs", "did not answer within 0.5 s"),
                ("odd", "a result that the protocol does not know"),
            ):
                result = await field.call(name)
                assert result.is_error and said in result.text, name
            assert not (await field.call("breaks_promise")).is_error
            assert (await field.call("cuts")).text == "half ?"
            assert (await field.call("cuts_bytes")).text == "caf\ufffd"
            assert (await field.call("crumbles")).text.endswith("x\n\n[3 more blocks are left out]")
            assert (await field.call("works", half="\ud83d")).text == "done"
            assert field.said("warning") == []

    asyncio.run(work())


def test_a_server_that_asks_on_and_reads_no_answer_is_not_read_either(tmp_path: Path) -> None:
    async def work() -> None:
        flood = scripted({"name": "t", "does": {"pings": 5_000}}, keys={"callTimeoutSeconds": 0.5})
        async with connected(tmp_path, s=flood) as field:
            assert "did not answer within 0.5 s" in (await field.call("t")).text
            assert len(asyncio.all_tasks()) < 1_500, "a task for each answer that is not sent"

    asyncio.run(work())


def test_a_server_that_takes_its_requests_back_is_read_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(tmp_path, s=scripted({"name": "t", "does": {"cancels": 1_500}})) as field:
            assert [(await field.call("t", n=n)).text for n in range(2)] == ['{"n": 0}', '{"n": 1}']

    asyncio.run(work())


def test_a_server_that_dies_between_calls_is_started_again_and_the_model_reads_so(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def work() -> None:
        server = scripted({"name": "count", "does": {"count": True}}, mark=str(mark))
        async with connected(tmp_path, s=server) as field:
            assert (await field.call("count")).text == "1"
            os.kill(pids(mark)[0], signal.SIGKILL)
            session = field.servers.connections[0].session
            assert session is not None
            await wait_until(lambda: session.is_lost)
            remark, answer = (block["text"] for block in (await field.call("count")).content)
            assert answer == "1" and "was ended by SIGKILL" in remark and "started again" in remark
            assert (await field.call("count")).text == "2", "it is told once"

    asyncio.run(work())
    assert len(pids(mark)) == 2 and all(processes.identify(pid) is None for pid in pids(mark))


def test_all_calls_that_a_dying_server_had_open_fail_and_it_is_started_again_once(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def work() -> None:
        server = scripted(
            {"name": "hangs", "does": {"hang": True}},
            {"name": "dies", "does": {"kill": True}},
            mark=str(mark),
        )
        async with connected(tmp_path, s=server) as field:
            results = await asyncio.gather(field.call("hangs"), field.call("hangs"), field.call("dies"))
            assert all(result.is_error and "SIGKILL" in result.text for result in results)
            assert len(pids(mark)) == 2 and len(field.said("warning")) == 1
            again = await field.call("dies")
            assert "for the second time" in again.text
            assert "Continue without its tools" in (await field.call("hangs")).text

    asyncio.run(work())
    assert len(pids(mark)) == 2


def test_a_restart_is_waited_for_by_other_calls_and_outlives_the_call_that_met_it(tmp_path: Path) -> None:
    async def work() -> None:
        server = scripted(
            {"name": "dies", "does": {"kill": True}}, {"name": "works", "does": {"count": True}}
        )
        async with connected(tmp_path, s=server) as field:
            (connection,) = field.servers.connections
            before = connection.session
            first = asyncio.create_task(field.call("dies"))
            await wait_until(lambda: connection.session is not before)
            first.cancel()  # a program whose time is over
            results = await asyncio.gather(field.call("works"), field.call("works"))
            assert sorted(result.text for result in results) == ["1", "2"]

    asyncio.run(work())


def test_a_server_that_cannot_be_started_again_is_gone_with_its_reason(tmp_path: Path) -> None:
    program = tmp_path / "program"
    keys = scripted({"name": "dies", "does": {"exit": 0}})
    program.symlink_to(keys["command"])

    async def work() -> None:
        async with connected(tmp_path, s={**keys, "command": str(program)}) as field:
            program.unlink()
            result = await field.call("dies")
            assert (
                result.is_error
                and "could not be started" in result.text
                and "continue without" in result.text
            )

    asyncio.run(work())


def test_servers_that_ignore_their_end_are_killed_with_their_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    keys = scripted("t", mark=str(mark))
    stubborn = (
        f"trap '' TERM; sleep 3600 & echo $! >> {mark}; "
        '"$@"; sleep 3600'  # goes on when the server's input has ended
    )
    words = ["-c", stubborn, "bash", keys["command"], *keys["args"]]

    async def work() -> None:
        async with connected(tmp_path, s={"command": "bash", "args": words}) as field:
            assert (await field.call("t", x=1)).text == '{"x": 1}'

    asyncio.run(work())
    assert len(pids(mark)) == 2
    for pid in pids(mark):
        wait_for(partial(has_gone, pid), BOUND, "the end of what was killed")


def test_cancelling_while_servers_connect_leaves_none_of_them(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def work() -> None:
        async def attempt() -> None:
            async with connected(tmp_path, s=scripted(silent=True, mark=str(mark)), f=scripted("t")):
                raise AssertionError("a silent server was connected")

        task = asyncio.create_task(attempt())
        await wait_until(lambda: bool(pids(mark)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert all(processes.identify(pid) is None for pid in pids(mark))


def test_the_exit_of_a_program_is_known_though_it_was_collected_before(tmp_path: Path) -> None:
    async def work() -> None:
        process = await AgentProcess.start(ProcessOrder(["/bin/cat"], {}, tmp_path), lambda _: None)
        await process.end(BOUND, 0)
        assert await process.exited() == 0
        await process.aclose()

    asyncio.run(work())


def test_a_bubblewrap_that_hangs_holds_no_loop_up_and_can_be_given_up(tmp_path: Path) -> None:
    bubblewrap, mark = tmp_path / "bwrap", tmp_path / "pids"
    bubblewrap.write_text(f"#!/bin/sh\necho $$ >> {mark}\nexec sleep 3600\n", encoding="utf-8")
    bubblewrap.chmod(0o700)
    place = tmp_path / "cwd"
    place.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **bubblewrap_settings()}
    box = replace(build_box(Rules(cwd=place, environment=environment)), program=bubblewrap)

    async def work() -> None:
        order = ProcessOrder(["true"], {}, place, box, bounded=False)
        starting = asyncio.create_task(AgentProcess.start(order, lambda _: None))
        await wait_until(lambda: bool(pids(mark)))
        starting.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await starting

    asyncio.run(work())
    wait_for(lambda: all(map(has_gone, pids(mark))), BOUND, "the end of the bubblewrap")
