"""Requests that are refused: wrong hosts and origins, no token, bodies and messages that are none."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.helpers.http_server import BOUND, HttpServer, free_port
from tests.helpers.processes import open_files
from tests.helpers.raw_server import HELLO
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import World

LARGE = 97 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """One server for all of these requests: each of them leaves the others unaffected."""
    world = World(tmp_path_factory.mktemp("refusals"))
    world.agent()
    with world.http_server() as server:
        yield server
        assert server.ask_modern("tools/list").status == 200, "after all of this it answers as ever"
        assert "Traceback" not in server.said
    world.close()


def test_peers_without_a_token_write_nothing_into_the_log(server: HttpServer) -> None:
    said = server.said
    upgrade = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    for request in (b"no request\r\n\r\n", upgrade):
        with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as peer:
            peer.sendall(request)
            assert peer.recv(100).startswith(b"HTTP/1.1 4")
    assert server.said == said


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Host": "evil.example"}),
        (421, {"Host": "127.0.0.1.evil.example:8101"}),
        (421, {"Host": "user@localhost"}),
        (421, {"Host": ""}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "http://127.0.0.1:1"}),
        (401, {"Authorization": "Bearer " + "x" * 32}),
        (401, {"Authorization": "Bearer \u00ff"}),
        (401, {"Authorization": "Bearer " + "x" * 5_000}),
        (401, {"Authorization": "Basic eDp5"}),
        (401, {"Authorization": ""}),
    ],
)
@pytest.mark.parametrize("path", ["/mcp", "/healthz", "/nothing"])
def test_every_route_looks_at_host_origin_and_token_first(
    server: HttpServer, path: str, status: int, headers: dict[str, str]
) -> None:
    if status == 401 and path == "/healthz":
        status = 200
    answer = server.ask("GET", path, **headers)
    assert answer.status == status
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    if status != 200:
        assert answer.json["error"].endswith(".") and answer.headers["connection"] == "close"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8101"])
def test_the_names_of_this_machine_are_taken_with_any_port(server: HttpServer, host: str) -> None:
    assert server.ask("GET", "/healthz", Host=host).status == 200
    assert server.ask("GET", "/healthz", Host=host, Origin=f"http://{host}").status == 200


def test_an_address_of_this_machine_is_its_host_where_all_are_listened_on(world: World) -> None:
    tokens = world.home / "tokens"
    tokens.write_text("alice alices-own-secret-token\n", encoding="utf-8")
    tokens.chmod(0o600)
    port = free_port()
    flags = ("--http", f"0.0.0.0:{port}", "--token-file", str(tokens))
    with world.http_server(*flags, port=port) as server:
        for host, status in (("127.0.0.2", 200), ("127.0.0.3", 421), ("192.0.2.1", 421)):
            with closing(HTTPConnection("127.0.0.2", server.port, timeout=BOUND)) as connection:
                connection.request("GET", "/healthz", headers={"Host": f"{host}:{server.port}"})
                assert connection.getresponse().status == status


NOT_JSON = {"empty": b"", "not JSON": b"{", "not text": b"\xff\xfe", "deep": b"[" * 100_000}
BAD_BODIES: dict[str, bytes] = {
    **NOT_JSON,
    "a batch": b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
    "a number": b"7",
    "no version": b'{"id":1,"method":"tools/list"}',
    "an id that is an object": b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
    "half a character": b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    "a long number": b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b',"method":"tools/list"}',
    "params that are a list": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}',
}


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "1999-01-01", None])
@pytest.mark.parametrize("name", BAD_BODIES)
def test_what_is_no_message_gets_one_clear_error(server: HttpServer, name: str, version: str | None) -> None:
    headers = {} if version is None else {"MCP_Protocol_Version": version}
    answer = server.ask(body=BAD_BODIES[name], **headers)
    error: dict[str, Any] = answer.json["error"]
    assert (answer.status, error["code"]) == (400, -32700 if name in NOT_JSON else -32600), answer.body
    assert error["message"] and len(answer.body) < 3_000


def test_what_the_newer_era_has_removed_is_not_found_and_a_missing_resource_is_named(
    server: HttpServer,
) -> None:
    for method in ("initialize", "ping", "logging/setLevel", "resources/subscribe"):
        answer = server.ask_modern(method, protocolVersion="2025-11-25", uri="run://x/log", level="info")
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (404, -32601, 1), method
    for uri in ("run://none/log", "x" * 10_000):
        answer = server.ask_modern("resources/read", uri=uri)
        error = answer.json["error"]
        assert error["code"] == -32602 and error["data"]["uri"] == uri[:1_000] and len(answer.body) < 3_000


@pytest.mark.parametrize(("path", "status"), [("/api/agents/x/payload", 405), ("/nothing", 404)])
def test_what_is_no_message_is_refused_by_the_other_routes_too(
    server: HttpServer, path: str, status: int
) -> None:
    answer = server.ask("POST", path, body=NOT_JSON["deep"], Accept_Encoding="gzip")
    assert answer.status == status and len(answer.body) < 1_000


def test_a_message_of_no_session_or_of_anothers_is_refused(server: HttpServer) -> None:
    session = server.ask(body=HELLO).headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert server.ask(body=listing).status == 400
    assert server.ask(body=listing, Mcp_Session_Id="f" * 32).status == 404
    assert server.ask(body=listing, Mcp_Session_Id=session, token="another").status == 404
    assert server.ask("DELETE", Mcp_Session_Id=session, token="another").status == 404
    assert server.ask(body=listing, Mcp_Session_Id=session).status == 200


def test_a_body_that_is_too_large_is_refused(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.token()}"]
        peer.sendall("\r\n".join([*lines, f"Content-Length: {LARGE}", "", ""]).encode())
        assert peer.recv(100).startswith(b"HTTP/1.1 413 "), "its length says it before anything is read"


def test_a_body_of_very_many_parts_is_refused_before_these_become_objects(server: HttpServer) -> None:
    parts: list[Any] = [[[]] * 9] * 70_000
    answer = server.ask_modern("tools/call", name="list_runs", arguments={"payload": "short", "parts": parts})
    assert answer.status == 413 and "100,000 parts" in answer.json["error"]


def test_silent_and_slow_connections_are_closed_while_others_are_answered(server: HttpServer) -> None:
    said = [b"", b"GET /healthz HTT", _head(server) + b"Content-Length: 9\r\n\r\n{"]
    peers = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in said]
    for peer, words in zip(peers, said, strict=True):
        peer.sendall(words)
    assert server.ask("GET", "/healthz", token=None).status == 200
    silent, half, slow = (peer.recv(200) for peer in peers)
    assert silent == half == b"" and slow.startswith(b"HTTP/1.1 408 ")
    for peer in peers:
        peer.close()


EVERY_PATH = (
    *("/mcp", "/", "/healthz", "/nothing", "/api/agents/x/payload"),
    *("/page/session", "/page/server", "/page/static/main.js", "/page/costs", "/page/runs/x/reply"),
)


@pytest.mark.parametrize("path", EVERY_PATH)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_no_body_is_read_without_a_token(server: HttpServer, method: str, path: str) -> None:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Origin: http://localhost"]
    lines += ["Content-Type: application/json", "Transfer-Encoding: chunked", "", ""]
    sent, piece = 0, b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as peer:
        peer.sendall("\r\n".join(lines).encode())
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while sent < 40:
                peer.sendall(piece)
                sent += 1
    assert sent < 20, "more than the buffers of the system hold"
    assert not [name for name in open_files(server.pid) if name.endswith("(deleted)")]


def test_a_code_has_a_small_body_that_comes_soon(server: HttpServer) -> None:
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.ask("POST", "/page/session", {"code": "x" * 5_000}, None, **origin).status == 413
    assert server.ask("POST", "/page/session", {"code": "x" * 3_000}, None, **origin).status == 401
    lines = ["POST /page/session HTTP/1.1", "Host: localhost", "Origin: http://localhost"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND) as peer:
        peer.sendall("\r\n".join([*lines, "Content-Length: 9", "", "{"]).encode())
        began = time.monotonic()
        assert peer.recv(100).startswith(b"HTTP/1.1 408 ") and time.monotonic() - began < 9


def test_half_open_connections_take_no_descriptor_that_a_run_needs(world: World) -> None:
    world.agent_saying(says("Done."))
    world.environment["SUBAGENT_WARM"] = "0"  # a zygote with such limits would be for this run alone
    with world.http_server() as server, ExitStack() as opened:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (300, 300))
        peers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(600)
        ]
        for number, peer in enumerate(peers):
            with suppress(OSError):
                peer.sendall(b"POST /mcp HTTP/1.1\r\n" if number % 2 else b"")
        with server.parent("default") as parent:
            run_id = parent.call("run_worker", prompt="Go.", waitSeconds=45)["runId"]
            assert parent.call("check_status", runId=run_id)["result"] == "Done."
        wait_for(lambda: _sockets(server) <= 32 + 8, BOUND, "the bound of strangers")
        assert len(server.said.splitlines()) < 40


def test_a_server_without_descriptors_says_so_once_and_goes_on_when_it_has_some(world: World) -> None:
    with world.http_server() as server, ExitStack() as opened:
        assert server.ask("GET", "/nothing").status == 404
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        used = len(list(open_files(server.pid)))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used, before[1]))
        for _ in range(100):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_for(lambda: "there is no room" in server.said, BOUND, "the complaint")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        opened.close()
        wait_for(lambda: _answers(server), BOUND, "an answer")
        assert server.said.count("there is no room") == 1 and "Traceback" not in server.said


def _sockets(server: HttpServer) -> int:
    return sum(name.startswith("socket:") for name in open_files(server.pid))


def test_more_connections_than_there_may_be_are_closed_and_the_first_go_on(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as first:
        first.sendall(_head(server).replace(b"POST /mcp", b"GET /nothing") + b"\r\n")
        assert first.recv(200).startswith(b"HTTP/1.1 404 ")
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(900)]
        closed = [peer for peer in peers[-50:] if _is_closed(peer)]
        assert len(closed) == 50
        first.sendall(_head(server).replace(b"POST /mcp", b"GET /nothing") + b"\r\n")
        heard = b""
        while b"HTTP/1.1 404 " not in heard:  # the rest of the first answer may come with it, or before it
            heard += first.recv(10_000)
            assert heard
        for peer in peers:
            peer.close()
    wait_for(lambda: _answers(server), 30, "the server to have room again")


def _head(server: HttpServer) -> bytes:
    lines = ["POST /mcp HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.token()}", ""]
    return "\r\n".join(lines).encode()


def _is_closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def _answers(server: HttpServer) -> bool:
    try:
        return server.ask("GET", "/healthz", token=None).status == 200
    except OSError:
        return False
