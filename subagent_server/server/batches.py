"""JSON-RPC over HTTP: bodies that are not a message, and the batches of the protocol version 2025-03-26.

A request is refused if its id is null, or that of another request of its session that has no answer yet: the
application would never answer it, or only one of the two.

Each message of a batch is answered by the application as one that came alone. The answers come on one stream,
each with its progress, as soon as they are there; a batch without a request is answered with 202. Later
versions have no batches, and their clients name the version in each request: those are left to the refusal of
the application.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import mcp_types as types
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from subagent_server.server.http_access import first
from subagent_server.server.messages import BadMessage, has_no_answer_yet, read_message

BATCH_VERSION = "2025-03-26"
MAX_BATCH = 100
"""The most messages of a batch."""
_SESSION = "mcp-session-id"
_MCP_PATHS = frozenset({"/mcp", "/mcp/"})


def batch_of(body: bytes) -> list[Any] | None:
    """Return the messages of a batch; None if the body is not a batch, such as an empty list."""
    if body.lstrip()[:1] != b"[":
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if found and isinstance(found, list) else None


def batch_fault(messages: Sequence[Any]) -> str | None:
    """Return why a batch is not taken, or None."""
    if len(messages) > MAX_BATCH:
        return f"the batch has {len(messages):,} of at most {MAX_BATCH} messages: send several"
    if any(isinstance(each, dict) and each.get("method") == "initialize" for each in messages):
        return "initialize is in a batch: send it alone, and first"
    return None


class Messages:
    """Passes messages on, those of a batch one by one. The body of a request is whole by then."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[tuple[str, str]] = set()
        """Session and id of each request without an answer. The application takes 1 and "1" for one id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or the messages of its batch."""
        if scope["method"] != "POST" or scope["path"] not in _MCP_PATHS:
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        message = await receive()
        body = message.get("body", b"")
        is_old = headers.get("mcp-protocol-version", BATCH_VERSION) == BATCH_VERSION
        messages = batch_of(body) if is_old else None
        if messages is None:
            return await self._pass_on(scope, body, first(message, receive), send)
        fault = batch_fault(messages)
        if fault is None and _SESSION not in headers:
            fault = "a batch belongs to a session, and the header Mcp-Session-Id is missing"
        if fault is not None:
            answer = _refusal(BadMessage(fault))
        elif any(not isinstance(each, dict) or {"method", "id"} <= each.keys() for each in messages):
            answer = StreamingResponse(self._answers(scope, messages), media_type="text/event-stream")
        else:
            async for _ in self._answers(scope, messages):
                pass
            answer = Response(status_code=202)
        return await answer(scope, receive, send)

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Pass one message on, unless it is not a message, or its id cannot be answered to."""
        session = Headers(scope=scope).get(_SESSION)
        message = read_message(body)
        if isinstance(message, BadMessage):
            return await _refusal(message)(scope, receive, send)
        if session is None or not isinstance(message, types.JSONRPCRequest):
            return await self._app(scope, receive, send)
        key = (session, str(message.id))
        if key in self._open:
            return await _refusal(has_no_answer_yet(message.id))(scope, receive, send)
        self._open.add(key)
        try:
            return await self._app(scope, receive, send)
        finally:
            self._open.discard(key)

    async def _answers(self, scope: Scope, messages: Sequence[Any]) -> AsyncIterator[bytes]:
        """Yield the events of all answers; one that is no stream becomes an event."""
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._answer(scope, each, events)) for each in messages]
        try:
            for _ in tasks:
                while (event := await events.get()) is not None:
                    yield event
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, scope: Scope, message: Any, events: asyncio.Queue[bytes | None]) -> None:
        is_stream, whole = False, b""

        async def take(part: Message) -> None:
            nonlocal is_stream, whole
            if part["type"] == "http.response.start":
                kind = Headers(raw=part["headers"]).get("content-type", "")
                is_stream = kind.startswith("text/event-stream")
            elif is_stream and part.get("body"):
                events.put_nowait(part["body"])  # a whole event: they are not cut
            else:
                whole += part.get("body", b"")

        body = json.dumps(message).encode()
        request: Message = {"type": "http.request", "body": body, "more_body": False}
        try:
            await self._pass_on(_of_length(scope, len(body)), body, first(request, _nothing), take)
            if whole.startswith(b"{"):
                events.put_nowait(b"event: message\r\ndata: " + whole.replace(b"\n", b"") + b"\r\n\r\n")
        finally:
            events.put_nowait(None)


def _refusal(bad: BadMessage) -> Response:
    error = {"code": bad.code, "message": f"{bad.why}."}
    return JSONResponse({"jsonrpc": "2.0", "id": bad.request_id, "error": error}, 400)


def _of_length(scope: Scope, length: int) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*others, (b"content-length", str(length).encode())]}


async def _nothing() -> Message:
    await asyncio.Event().wait()
    raise AssertionError
