"""Servers by other authors, over every transport that they offer."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.api_checks import check_request
from tests.helpers.http_server import free_port
from tests.helpers.mcp_servers import reference
from tests.helpers.wait import wait_for
from tests.toolbox.mcp.connecting import BOUND, Field, connected

pytestmark = [pytest.mark.npm, pytest.mark.process]

PATHS = {"streamableHttp": ("http", "/mcp"), "sse": ("sse", "/sse")}


def stdio(command: list[str], **keys: Any) -> dict[str, Any]:
    """Return the keys of a server by stdio."""
    return {"command": command[0], "args": command[1:], **keys}


def listens(port: int) -> bool:
    """Whether a program accepts connections on a port."""
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def listening(transport: str, port: int) -> Iterator[None]:
    """Run `server-everything` over HTTP."""
    environment = {"PATH": os.environ["PATH"], "PORT": str(port)}
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        reference("everything", transport), env=environment, stdin=nothing, stdout=nothing, stderr=nothing
    )
    try:
        wait_for(lambda: listens(port), BOUND, f"server-everything on port {port}")
        yield
    finally:
        process.kill()
        process.wait(BOUND)


def check_definitions(field: Field) -> None:
    """Raise if the API would refuse one of the tools."""
    tools = [tool.definition() for tool in field.tools.values()]
    messages = [{"role": "user", "content": "Go."}]
    check_request({"model": "m", "max_tokens": 1, "messages": messages, "tools": tools})


async def try_everything(field: Field) -> None:
    """Use each kind of content of `server-everything`."""
    check_definitions(field)
    assert (await field.call("echo", message="hi")).text == "Echo: hi"
    assert (await field.call("get-sum", a=2, b=3)).text == "The sum of 2 and 3 is 5."
    image = await field.call("get-tiny-image")
    assert [block["type"] for block in image.content] == ["text", "image", "text"]
    weather = await field.call("get-structured-content", location="New York")
    assert weather.text.count("temperature") == 1
    links = await field.call("get-resource-links", count=2)
    assert "[resource demo://resource/" in links.text
    inside = await field.call("get-resource-reference", resourceType="Text", resourceId=1)
    assert "[resource demo://resource/dynamic/text/1]\nResource 1: " in inside.text
    wrong = await field.call("echo", message=5)
    assert wrong.is_error and "expected string" in wrong.text
    long = await field.call("trigger-long-running-operation", duration=0.2, steps=2)
    assert "completed" in long.text


def test_four_servers_by_stdio_are_connected_side_by_side_and_used(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("Remember the milk.", encoding="utf-8")
    servers = {
        "everything": stdio(reference("everything")),
        "files": stdio(reference("filesystem", str(tmp_path)), disabledTools=["write_file"]),
        "memory": stdio(reference("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}),
        "time": stdio([sys.executable, "-m", "mcp_server_time"]),
    }

    async def work() -> None:
        async with connected(tmp_path, **servers) as field:
            await try_everything(field)
            note = await field.call("read_text_file", path=str(tmp_path / "note.txt"))
            assert note.text == "Remember the milk." and "write_file" not in field.tools
            denied = await field.call("read_text_file", path="/etc/passwd")
            assert denied.is_error and "Access denied" in denied.text
            entity = {"name": "milk", "entityType": "errand", "observations": ["remember it"]}
            await field.call("create_entities", entities=[entity])
            assert "remember it" in (await field.call("read_graph")).text
            clock = await field.call("get_current_time", timezone="Europe/Paris")
            assert "Europe/Paris" in clock.text and not clock.is_error
            assert (await field.call("get_current_time", timezone="Nowhere/At_All")).is_error
            assert field.protocols() == {
                "everything": "2025-11-25",
                "files": "2025-11-25",
                "memory": "2025-11-25",
                "time": "2026-07-28",
            }, "both eras"

    asyncio.run(work())


@asynccontextmanager
async def network(tmp_path: Path, transport: str, port: int) -> AsyncIterator[Field]:
    """Connect to `server-everything` on a port."""
    kind, path = PATHS[transport]
    url = f"http://127.0.0.1:{port}{path}"
    async with connected(tmp_path, net={"type": kind, "url": url, "headers": {"X-Key": "k"}}) as field:
        yield field


@pytest.mark.parametrize("transport", list(PATHS))
def test_a_server_over_http_is_used_reported_when_it_is_gone_and_connected_again(
    tmp_path: Path, transport: str
) -> None:
    port = free_port()

    async def work() -> None:
        with ExitStack() as first:
            first.enter_context(listening(transport, port))
            async with network(tmp_path, transport, port) as field:
                await try_everything(field)
                first.close()
                with listening(transport, port):
                    lost = await field.call("echo", message="still there?")
                    assert "The MCP server net" in lost.text and "connected again" in lost.text, lost.text
                    assert (await field.call("echo", message="again")).text == "Echo: again"
                (warning,) = field.said("warning")
                assert "is connected again" in warning["message"]

    asyncio.run(work())
