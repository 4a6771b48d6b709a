"""One answer on the wire: its delays, its stream, and the faults that break it."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from subagent_server.simulator.errors import ApiError, status_of
from subagent_server.simulator.faults import Fault
from subagent_server.simulator.script import Turn
from subagent_server.simulator.stream import CUT, PING, SEARCH, STALL, as_sent, encode, events_of, input_json

CUT_KEY = "cut_connection"
"""Where the server leaves the function that closes the connection, in the state of an ASGI scope."""

_PINGS = 8
_BATCH = 32 * 1024  # bytes; without a delay between them, events share a write


@dataclass
class Answer:
    """An ASGI response that plays `turn`, composed as `message`, and ends early when the client goes away."""

    message: dict[str, Any]
    turn: Turn
    fault: Fault | None
    streaming: bool
    request_id: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Play the answer to one client."""
        await until_gone(self._play(scope, send), receive)

    async def _play(self, scope: Scope, send: Send) -> None:
        if self.fault is not None and (self.fault.hang or self._stalls_whole):
            await _forever()
        await asyncio.sleep(self.turn.latency)
        if self.fault is not None and self.fault.cut_after == 0:
            await _cut(scope)
        if self.streaming:
            await self._stream(scope, send)
        else:
            await self._whole(scope, send)

    @property
    def _stalls_whole(self) -> bool:
        return self.fault is not None and self.fault.stall_after is not None and not self.streaming

    async def _stream(self, scope: Scope, send: Send) -> None:
        await self._start(send, [(b"content-type", b"text/event-stream; charset=utf-8")])
        batch = bytearray()
        for event in events_of(self.message, self.turn.chunk_size, self.fault):
            if event is CUT:
                await _send_body(send, batch)
                await _cut(scope)
            if event is STALL:
                await _send_body(send, batch)
                await self._stall(send)
            if event["type"] == SEARCH:
                await _send_body(send, batch)
                batch.clear()
                await _search(send, event["seconds"])
                continue
            batch += encode(event)
            paced = self.turn.chunk_delay > 0 and event["type"] == "content_block_delta"
            if paced or len(batch) >= _BATCH:
                await _send_body(send, batch)
                batch.clear()
                await asyncio.sleep(self.turn.chunk_delay if paced else 0)
        await _send_body(send, batch)
        await _send_body(send, b"", more=False)

    async def _stall(self, send: Send) -> None:
        """Send nothing more but pings, until the client has had enough."""
        while self.fault is not None and self.fault.pings is not None:
            await asyncio.sleep(self.fault.pings)
            await _send_body(send, encode(PING))
        await _forever()

    async def _whole(self, scope: Scope, send: Send) -> None:
        body = json.dumps(self._as_sent(), ensure_ascii=False).encode("utf-8", "replace")
        size = str(len(body)).encode("ascii")
        await self._start(send, [(b"content-type", b"application/json"), (b"content-length", size)])
        if self.fault is not None and self.fault.cut_after is not None:
            await _send_body(send, body[: len(body) // 2])
            await _cut(scope)
        await _send_body(send, body, more=False)

    def _as_sent(self) -> dict[str, Any]:
        """Return the message; tool input that shall not parse becomes a string of it."""
        if self.fault is None or self.fault.malformed_tool_json is None:
            return self.message | {"content": [as_sent(block) for block in self.message["content"]]}
        content = [
            block | {"input": input_json(block["input"], self.fault.malformed_tool_json)}
            if block["type"] == "tool_use"
            else block
            for block in self.message["content"]
        ]
        return self.message | {"content": content}

    async def _start(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        common = [(b"request-id", self.request_id.encode("ascii")), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *common]})


def error_of(fault: Fault | None, streaming: bool) -> ApiError | None:
    """Return the error that `fault` answers with instead of a message, if it is of that kind."""
    if fault is None:
        return None
    if fault.status is not None:
        message = fault.message or f"Simulated error {fault.status}"
        return ApiError(fault.status, message, fault.error_type, fault.retry_after)
    if fault.stream_error is not None and not streaming:
        message = fault.message or "Simulated error"
        return ApiError(status_of(fault.stream_error), message, fault.stream_error)
    return None


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do `work` until it is done or the client has gone away, whichever comes first."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        unfinished = [task for task in (working, leaving) if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    if not working.cancelled():
        working.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _search(send: Send, seconds: float) -> None:
    """Send nothing but pings for so long."""
    for _ in range(_PINGS):
        await asyncio.sleep(seconds / _PINGS)
        await _send_body(send, encode(PING))


async def _send_body(send: Send, body: bytes | bytearray, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": bytes(body), "more_body": more})


async def _cut(scope: Scope) -> None:
    """Close the connection as it is, and wait to be ended by its end."""
    scope["state"][CUT_KEY]()
    await _forever()


async def _forever() -> None:
    await asyncio.Event().wait()
