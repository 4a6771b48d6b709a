"""The Messages API as a Starlette application: a request is recorded, checked, matched and played."""

import hmac
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from subagent_server.simulator.caching import PromptCache
from subagent_server.simulator.checks import check_request
from subagent_server.simulator.choosing import Choice, choose
from subagent_server.simulator.context import Context, managed
from subagent_server.simulator.errors import ApiError
from subagent_server.simulator.faults import FaultLedger
from subagent_server.simulator.loading import as_turn
from subagent_server.simulator.player import Answer, error_of
from subagent_server.simulator.recorder import RecordedRequest, RequestRecorder
from subagent_server.simulator.request_view import RequestView
from subagent_server.simulator.script import Script, Turn
from subagent_server.simulator.stream import compose
from subagent_server.simulator.tokens import input_tokens

Respond = Callable[[dict[str, Any]], Turn | Mapping[str, Any]]
"""A function that answers a valid request with a turn. It runs in the event loop and must not block."""

LARGEST_BODY = 32 * 1024 * 1024
"""Bytes; the API refuses larger requests."""

_ONLY_WARM_UP = Turn(stop_reason="max_tokens")  # what `max_tokens: 0` asks for
_GONE = 499


class MessagesApi:
    """The endpoints. `script` is a script or a function that answers each request.

    With a `key`, requests that do not hold it are refused: other users of the machine reach loopback too.
    """

    def __init__(self, script: Script | Respond, recorder: RequestRecorder, key: str | None = None) -> None:
        self._script = script
        self._key = key
        self._recorder = recorder
        self._faults = FaultLedger()
        self._cache = PromptCache(script.cache_minimum if isinstance(script, Script) else None)

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
                Route("/requests", self._requests, methods=["GET"]),
                Route("/requests", self._forget, methods=["DELETE"]),
            ],
            exception_handlers={
                ApiError: _api_error,
                HTTPException: _http_error,
                ClientDisconnect: _client_gone,
                Exception: _crashed,
            },
        )

    async def _messages(self, request: Request) -> ASGIApp:
        self._check_key(request)
        record = await self._record(request)
        body = self._admit(record, counting=False)
        context = self._context(record, body)
        view = RequestView(body)
        choice = self._choose(view)
        fault = self._faults.take((view.conversation, view.turn, choice.place), choice.turn.fault)
        self._recorder.answered(record, f"{choice.place} {fault.kind}" if fault else choice.place)
        streaming = body.get("stream", False)
        error = error_of(fault, streaming)
        if error is not None:
            raise error
        message = compose(choice.turn, view, _new_id("msg"), self._cache, context)
        return Answer(message, choice.turn, fault, streaming, _new_id("req"))

    async def _count_tokens(self, request: Request) -> Response:
        self._check_key(request)
        record = await self._record(request)
        body = self._admit(record, counting=True)
        self._recorder.answered(record, "count")
        return JSONResponse({"input_tokens": input_tokens(body)}, headers={"request-id": _new_id("req")})

    async def _requests(self, request: Request) -> Response:
        self._check_key(request)
        return StreamingResponse(_asynchronously(self._recorder), media_type="application/json")

    async def _forget(self, request: Request) -> Response:
        self._check_key(request)
        self._recorder.clear()
        return Response(status_code=204)

    def _check_key(self, request: Request) -> None:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.headers.get("x-api-key", bearer)
        if self._key is not None and not hmac.compare_digest(given.encode(), self._key.encode()):
            raise ApiError(401, "invalid x-api-key")

    async def _record(self, request: Request) -> RecordedRequest:
        return self._recorder.arrived(request.url.path, request.headers, await request.body())

    def _admit(self, record: RecordedRequest, *, counting: bool) -> dict[str, Any]:
        allow_prefill = not isinstance(self._script, Script) or self._script.allow_prefill
        web_tools = not isinstance(self._script, Script) or self._script.web_tools
        try:
            return check_request(
                _parsed(record), counting=counting, allow_prefill=allow_prefill, web_tools=web_tools
            )
        except ApiError as error:
            self._recorder.answered(record, f"{error.status} {error.message}")
            raise

    def _context(self, record: RecordedRequest, body: dict[str, Any]) -> Context:
        script = self._script if isinstance(self._script, Script) else None
        able, window = (script.context_editing, script.context_window) if script else (True, None)
        try:
            return managed(body, record.headers.get("anthropic-beta", ""), able=able, window=window)
        except ApiError as error:
            self._recorder.answered(record, f"{error.status} {error.message}")
            raise

    def _choose(self, view: RequestView) -> Choice:
        if view.body["max_tokens"] == 0:
            return Choice(_ONLY_WARM_UP, "max_tokens: 0")
        if isinstance(self._script, Script):
            return choose(self._script, view)
        return Choice(as_turn(self._script(view.body)), "respond")


def _parsed(record: RecordedRequest) -> Any:
    if not (record.headers.get("x-api-key") or record.headers.get("authorization")):
        raise ApiError(401, "x-api-key header is required")
    if len(record.raw) > LARGEST_BODY:
        raise ApiError(413, f"The request is larger than {LARGEST_BODY} bytes.")
    try:
        return json.loads(record.raw)
    except ValueError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from error


async def _asynchronously(recorder: RequestRecorder) -> AsyncIterator[bytes]:
    for piece in recorder.as_json():
        yield piece


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request_id = _new_id("req")
    headers = {"request-id": request_id}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    return JSONResponse(error.body(request_id), error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _api_error(
        request, ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    )


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_GONE)


async def _crashed(request: Request, error: Exception) -> Response:
    return await _api_error(request, ApiError(500, f"The simulator failed: {type(error).__name__}: {error}"))


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"
