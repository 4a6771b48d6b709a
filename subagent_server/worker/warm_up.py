"""Doing once, before any run, what every worker would do first: imports, the TLS context, a first request.

The zygote calls this before it forks. What is imported or cached here is there in every worker and in every
server. Nothing may be left that belongs to a process: no thread, no event loop, no open descriptor.
"""

import asyncio
import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import suppress

import anthropic

from subagent_server.catalog.models import resolve_model
from subagent_server.domain.errors import SubagentError
from subagent_server.runners.messages.connection import tls_context
from subagent_server.runners.messages.model import Model, ModelSettings, Retry
from subagent_server.runners.messages.prices import find_prices

ROOMS = (
    *("domain", "host", "catalog", "store", "launch", "service", "toolkit", "runners"),
    *("worker", "server", "cli"),
)
_NOT_IMPORTED = ("__main__", "zygote", "demo")
_EVENTS = """event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"m",\
"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},\
"usage":{"output_tokens":1}}

event: message_stop
data: {"type":"message_stop"}

"""
_ANSWER = f"""HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(_EVENTS)}\r\n\
connection: close\r\n\r\n{_EVENTS}"""


def warm_up() -> None:
    """Import all that a worker may come to use, and ask a model that is none."""
    for name in modules():
        with suppress(ImportError):  # an extra that is not installed: the worker will say so, if it matters
            importlib.import_module(name)
    tls_context()
    prices = find_prices(resolve_model("sonnet"))
    if prices is not None:
        prices.cost({"input_tokens": 1, "output_tokens": 1})
    # Where there is no loopback, a little less is warm.
    with suppress(OSError, SubagentError, anthropic.AnthropicError):
        asyncio.run(_ask_nobody())


def modules() -> Iterator[str]:
    """Yield the modules of the rooms that work in a worker or a server, whatever they are by now."""
    for room in ROOMS:
        package = importlib.import_module(f"subagent_server.{room}")
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] not in _NOT_IMPORTED:
                yield found.name


async def _ask_nobody() -> None:
    """Send a request over a real connection, which is where most is imported late, to this process itself."""
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = Model(ModelSettings(model="none", api_key="none", base_url=address))
        await model.reply([], [{"role": "user", "content": "."}], [], _give_up)
        await model.aclose()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(_ANSWER.encode("ascii"))
    await writer.drain()
    writer.close()


async def _give_up(retry: Retry) -> None:
    raise OSError(retry.reason)
