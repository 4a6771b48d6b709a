"""Clients that come through a proxy that ends TLS: no address of an answer leads them back to plain HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.http_server import ACCEPT, HttpServer, Reply
from tests.helpers.tls_proxy import NAME, ProxyConnection, make_certificate, tls_proxy
from tests.helpers.turns import asks, says
from tests.helpers.world import World

FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}


class Client:
    """A client of the proxy that has no session: the newer era."""

    def __init__(self, port: int, certificate: Path, server: HttpServer) -> None:
        self._port, self._certificate, self._token = port, certificate, server.token()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request through the proxy and return its answer."""
        given = {"Authorization": f"Bearer {self._token}", "Accept": ACCEPT, **headers}
        connection = ProxyConnection(self._port, self._certificate)
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {**given, "Content-Type": "application/json"})
        answer = connection.getresponse()
        reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return reply

    def call(self, tool: str, path: str = "/mcp", **arguments: Any) -> Any:
        """Call a tool and return its structured answer."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        named = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": "2026-07-28"}
        answer = self.ask("POST", path, body, **named)
        assert answer.status == 200, answer.body
        return answer.json["result"]["structuredContent"]


@pytest.mark.parametrize(
    ("flags", "added", "base"),
    [
        (["--allow-host", NAME, "--trusted-proxy", "127.0.0.0/8"], FORWARDED, "https://{host}/"),
        (
            ["--allow-host", NAME, "--trusted-proxy", "127.0.0.1"],
            {**FORWARDED, "X-Forwarded-Host": NAME, "Host": "127.0.0.1:80"},
            f"https://{NAME}/",
        ),
        (["--public-url", f"https://{NAME}/deep/mcp"], {}, f"https://{NAME}/deep/"),
        (["--allow-host", NAME], FORWARDED, "/"),  # not trusted: a path, which keeps the client's scheme
        (["--allow-host", NAME, "--trusted-proxy", "192.0.2.1"], FORWARDED, "/"),
        (["--allow-host", NAME], {}, "/"),
    ],
)
def test_addresses_in_answers_have_the_scheme_of_the_proxy_or_none(
    world: World, tmp_path: Path, flags: list[str], added: dict[str, str], base: str
) -> None:
    world.play(asks("Shall I?"))
    certificate = make_certificate(tmp_path)
    with world.http_server(*flags) as server, tls_proxy(server.port, certificate, added) as port:
        client = Client(port, certificate, server)
        agent_id = client.call("agent_start", contract="Count.")["agent_id"]
        client.call("agent_complete", agent_id=agent_id, summary="Done.", payload="all of it")
        (shown,) = client.call("agent_status", "/mcp/", agent_ids=[agent_id])["result"]
        path = f"api/agents/{agent_id}/payload"
        assert shown["payload_url"] == base.format(host=f"{NAME}:{port}") + path
        fetched = client.ask("GET", f"/{path}", **{"Accept-Encoding": "gzip"})
        assert fetched.status == 200
        for odd in ("/mcp/", f"/{path}/", "/page/", "//evil.example/mcp"):
            answer = client.ask("GET", odd)
            assert "location" not in answer.headers and b"http://" not in answer.body, odd


def test_what_a_stranger_says_of_itself_is_not_believed(world: World) -> None:
    world.play(says("Done."))
    lies = {"X_Forwarded_Host": "evil.example", "X_Forwarded_Proto": "https"}
    with world.http_server("--trusted-proxy", "192.0.2.1") as server:
        assert server.ask("GET", "/healthz", **lies).status == 200
    with world.http_server("--trusted-proxy", "127.0.0.1") as server:
        refused = server.ask("GET", "/healthz", **lies)  # a trusted proxy names a host that is not allowed
        assert refused.status == 421 and "--allow-host" in refused.json["error"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--public-url", "agents.example.org"),
        ("--public-url", "https://user@agents.example.org"),
        ("--public-url", "https://x:99999"),
        ("--public-url", "https://x/?a"),
        ("--trusted-proxy", "agents.example.org"),
        ("--trusted-proxy", "10.0.0.1/8"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line(world: World, flag: str, value: str) -> None:
    done = world.cli("serve", "--http", "127.0.0.1:0", flag, value)
    assert done.returncode == 2 and flag in done.stderr and done.stderr.count("\n") == 1
