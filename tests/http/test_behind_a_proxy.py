"""Clients that come through a proxy that ends TLS: no address of an answer leads them back to plain HTTP."""

import asyncio
import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from subagent_server.server.connection import BASE_URL
from subagent_server.server.http_access import Forwarding, HostGate
from subagent_server.server.sockets import Proxies
from tests.helpers.http_server import ACCEPT, HttpServer, Reply
from tests.helpers.raw_server import MODERN, MODERN_VERSION, tool_call
from tests.helpers.tls_proxy import NAME, ProxyConnection, make_certificate, tls_proxy
from tests.helpers.turns import asks
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
        body = tool_call(1, tool, **arguments)
        body["params"] |= MODERN
        named = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": MODERN_VERSION}
        answer = self.ask("POST", path, body, **named)
        assert answer.status == 200, answer.body
        return answer.json["result"]["structuredContent"]


def test_every_address_of_an_answer_through_a_proxy_has_its_scheme_and_name(
    world: World, tmp_path: Path
) -> None:
    world.play(asks("Shall I?"))
    certificate = make_certificate(tmp_path)
    flags = ("--allow-host", NAME, "--trusted-proxy", "127.0.0.0/8")
    with world.http_server(*flags) as server, tls_proxy(server.port, certificate, FORWARDED) as port:
        client = Client(port, certificate, server)
        agent_id = client.call("agent_start", contract="Count.")["agent_id"]
        client.call("agent_complete", agent_id=agent_id, summary="Done.", payload="all of it")
        (shown,) = client.call("agent_status", "/mcp/", agent_ids=[agent_id])["result"]
        path = f"api/agents/{agent_id}/payload"
        assert shown["payload_url"] == f"https://{NAME}:{port}/{path}"
        fetched = client.ask("GET", f"/{path}", **{"Accept-Encoding": "gzip"})
        assert fetched.status == 200
        for odd in ("/mcp/", f"/{path}/", "/page/", "//evil.example/mcp"):
            answer = client.ask("GET", odd)
            assert "location" not in answer.headers and b"http://" not in answer.body, odd


BY_PROXY = {**FORWARDED, "Host": NAME}


@pytest.mark.parametrize(
    ("proxies", "headers", "base"),
    [
        ({"trusted": "127.0.0.1"}, BY_PROXY, f"https://{NAME}/"),
        (
            {"trusted": "127.0.0.1"},
            {**FORWARDED, "X-Forwarded-Host": NAME, "Host": "127.0.0.1"},
            f"https://{NAME}/",
        ),
        ({"trusted": "127.0.0.1"}, {**BY_PROXY, "X-Forwarded-Host": "evil.example"}, None),
        ({"public_url": f"https://{NAME}/deep/"}, {"Host": NAME}, f"https://{NAME}/deep/"),
        ({"trusted": "192.0.2.1"}, BY_PROXY, "/"),  # a path, which keeps the scheme of the client
        ({}, BY_PROXY, "/"),
        ({}, {"Host": NAME}, "/"),
        ({}, {"Host": "localhost:8101"}, "http://localhost:8101/"),
        ({"trusted": "192.0.2.1"}, {"Host": "localhost", "X-Forwarded-Host": "evil.example"}, "/"),
    ],
)
def test_only_a_trusted_proxy_is_believed(
    proxies: dict[str, str], headers: dict[str, str], base: str | None
) -> None:
    begins: list[str | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begins.append(scope[BASE_URL])

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 421
            begins.append(None)

    async def receive() -> Message:
        raise AssertionError("nothing of a body is read")

    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "client": ("127.0.0.1", 1), "headers": sent, "method": "GET"}
    trusted = [ip_network(proxies[name]) for name in proxies if name == "trusted"]
    known = Proxies(frozenset({"localhost", "127.0.0.1"}), proxies.get("public_url"), tuple(trusted))
    gates = Forwarding(HostGate(app, ["localhost", "127.0.0.1", NAME]), known)
    asyncio.run(gates(scope, receive, send))
    assert begins == [base]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--public-url", "agents.example.org"),
        ("--public-url", "https://user@agents.example.org"),
        ("--public-url", "https://x:99999"),
        ("--public-url", "https://x/?a"),
        ("--public-url", "https://x/a b"),
        ("--allow-host", "agents.example.org:8443"),
        ("--allow-host", "https://agents.example.org"),
        ("--allow-host", "*.example.org"),
        ("--trusted-proxy", "agents.example.org"),
        ("--trusted-proxy", "10.0.0.1/8"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line(world: World, flag: str, value: str) -> None:
    assert flag in world.refused("serve", "--http", "127.0.0.1:0", flag, value)
