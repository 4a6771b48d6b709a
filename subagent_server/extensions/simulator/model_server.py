"""The Messages API on a loopback port, in a thread of this process."""

import asyncio
import hmac
import json
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from subagent_server.extensions.simulator.answer import (
    CUT,
    PING,
    PINGS,
    STALL,
    Choice,
    as_sent,
    choose,
    compose,
    encode,
    events_of,
    input_json,
)
from subagent_server.extensions.simulator.model_request import (
    ApiError,
    RequestView,
    input_tokens,
    refuse,
    status_of,
)
from subagent_server.extensions.simulator.model_script import (
    Fault,
    FaultLedger,
    Script,
    Turn,
    as_turn,
    load_script,
)
from subagent_server.run.errors import HostError, storing
from subagent_server.run.files import Entry

# -- the requests that arrived, kept for tests and people to look at


KEPT = 10_000
"""How many requests are kept; older ones are forgotten."""

_SECRET_HEADERS = frozenset({"x-api-key", "authorization"})


@dataclass
class RecordedRequest:
    """One request as it arrived, whether it was answered or refused.

    `arrived` is `time.monotonic()` in seconds. `answer` is what it got: the path of the turn in the
    script, with the fault if there was one, or the refusal; it is empty until that is decided.
    """

    path: str
    headers: dict[str, str] = field(repr=False)
    raw: bytes = field(repr=False)
    arrived: float
    answer: str = ""

    @property
    def body(self) -> Any:
        """The parsed body; the text itself if it is not JSON."""
        try:
            return json.loads(self.raw)
        except (ValueError, RecursionError):
            return self.raw.decode("utf-8", "replace")

    def line(self) -> bytes:
        """Return the request as one line of JSON, with its body whole and its credentials left out."""
        about = {
            "path": self.path,
            "arrived": self.arrived,
            "answer": self.answer,
            "headers": {
                name: "[redacted]" if name in _SECRET_HEADERS else value
                for name, value in self.headers.items()
            },
            "body": self.body,
        }
        return json.dumps(about).encode("ascii")


class RequestRecorder:
    """Keeps the last `KEPT` requests and, while open, appends each to a file. Threads may share it."""

    def __init__(self, file: Path | None) -> None:
        self._changed = threading.Condition()
        self._requests: deque[RecordedRequest] = deque(maxlen=KEPT)
        self._path = file
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Open the file, if there is to be one.

        Raises:
            StorageFailed: it cannot be opened.
        """
        if self._path is None:
            return
        with storing(self._path):
            descriptor = Entry.at(self._path).open(os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._file = os.fdopen(descriptor, "ab")

    def arrived(self, path: str, headers: Mapping[str, str], raw: bytes) -> RecordedRequest:
        """Keep a request that has just arrived."""
        request = RecordedRequest(path, dict(headers), raw, time.monotonic())
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        return request

    def answered(self, request: RecordedRequest, answer: str) -> None:
        """Note the answer to `request`, and write it to the file."""
        request.answer = answer
        if self._file is not None:
            self._file.write(request.line() + b"\n")
            self._file.flush()

    def snapshot(self) -> list[RecordedRequest]:
        """Return the requests so far, oldest first."""
        with self._changed:
            return list(self._requests)

    def clear(self) -> None:
        """Forget the requests so far; the file keeps them."""
        with self._changed:
            self._requests.clear()

    def wait_for(self, count: int, timeout: float) -> list[RecordedRequest]:
        """Return the requests as soon as there are `count` of them.

        Raises:
            TimeoutError: there were fewer after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._requests)} of {count} requests reached the simulator within {timeout:g} s."
                )
            return list(self._requests)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


# -- one answer on the wire: its delays, its stream, and the faults that break it


CUT_KEY = "cut_connection"
"""Where the server leaves the function that closes the connection, in the state of an ASGI scope."""

_MOST_PINGS = 8
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
        fault = self.fault
        if fault is not None and (fault.hang or (fault.stall_after is not None and not self.streaming)):
            await _forever()
        await asyncio.sleep(self.turn.latency)
        if fault is not None and fault.cut_after == 0:
            await _cut(scope)
        if self.streaming:
            await self._stream(scope, send)
        else:
            await self._whole(scope, send)

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
            if event["type"] == PINGS:
                await _send_body(send, batch)
                batch.clear()
                await _only_pings(send, event["seconds"])
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
        content = [as_sent(block) for block in self.message["content"]]
        if self.fault is not None and (malformed := self.fault.malformed_tool_json) is not None:
            for block in content:
                if block["type"] == "tool_use":
                    block["input"] = input_json(block.get("input"), malformed)
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


async def _only_pings(send: Send, seconds: float) -> None:
    """Send nothing but pings for so long."""
    for _ in range(_MOST_PINGS):
        await asyncio.sleep(seconds / _MOST_PINGS)
        await _send_body(send, encode(PING))


async def _send_body(send: Send, body: bytes | bytearray, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": bytes(body), "more_body": more})


async def _cut(scope: Scope) -> None:
    """Close the connection as it is, and wait to be ended by its end."""
    scope["state"][CUT_KEY]()
    await _forever()


async def _forever() -> None:
    await asyncio.Event().wait()


# -- the endpoints: a request is recorded, checked, matched and played


Respond = Callable[[dict[str, Any]], Turn | Mapping[str, Any]]
"""A function that answers a valid request with a turn. It runs in the event loop and must not block."""

LARGEST_BODY = 32 * 1024 * 1024
"""Bytes; the API refuses larger requests."""


_ANY = Script.model_validate({"turns": [{"text": "any"}], "allow_prefill": True})
"""What a function that answers takes."""
_ONLY_WARM_UP = Turn(stop_reason="max_tokens")  # what `max_tokens: 0` asks for
_GONE = 499
_DAMAGED = (AttributeError, KeyError, TypeError, RecursionError)


class MessagesApi:
    """The endpoints. `script` is a script or a function that answers each request.

    With a `key`, requests that do not hold it are refused: other users of the machine reach loopback too.
    """

    def __init__(self, script: Script | Respond, recorder: RequestRecorder, key: str | None = None) -> None:
        self._script = script
        self._takes = script if isinstance(script, Script) else _ANY
        self._key = key
        self._recorder = recorder
        self._faults = FaultLedger()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
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
        with self._refusal_recorded(record):
            body = self._admit(record, counting=False)
            view = RequestView(body)
            choice = self._choose(view)
            message = self.composed(choice.turn, view, record.headers.get("anthropic-beta", ""))
            fault = self._faults.take((view.conversation, view.turn, choice.path), choice.turn.fault)
        self._recorder.answered(record, f"{choice.path} {fault.kind}" if fault else choice.path)
        streaming = body.get("stream", False)
        error = error_of(fault, streaming)
        if error is not None:
            raise error
        return Answer(message, choice.turn, fault, streaming, _new_id("req"))

    async def _count_tokens(self, request: Request) -> Response:
        self._check_key(request)
        record = await self._record(request)
        with self._refusal_recorded(record):
            tokens = input_tokens(self._admit(record, counting=True))
        self._recorder.answered(record, "count")
        return JSONResponse({"input_tokens": tokens}, headers={"request-id": _new_id("req")})

    def _check_key(self, request: Request) -> None:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = request.headers.get("x-api-key", bearer)
        if self._key is not None and not hmac.compare_digest(key.encode(), self._key.encode()):
            raise ApiError(401, "invalid x-api-key")

    async def _record(self, request: Request) -> RecordedRequest:
        return self._recorder.arrived(request.url.path, request.headers, await request.body())

    @contextmanager
    def _refusal_recorded(self, record: RecordedRequest) -> Iterator[None]:
        """Record a refusal; a body that cannot be played, because a part is missing or wrong, is one too."""
        try:
            yield
        except (ApiError, *_DAMAGED) as caught:
            why = f"The request cannot be played ({type(caught).__name__}: {caught})."
            error = caught if isinstance(caught, ApiError) else ApiError(400, why)
            self._recorder.answered(record, f"{error.status} {error.message}")
            raise error from caught

    def _admit(self, record: RecordedRequest, *, counting: bool) -> dict[str, Any]:
        body = _checked(_parsed(record), counting)
        self.check(body, counting=counting, allow_prefill=self._takes.allow_prefill)
        return body

    def check(self, body: dict[str, Any], *, counting: bool, allow_prefill: bool) -> None:
        """Raise ApiError for a request that the API would refuse. Our own tests do that more strictly."""

    def composed(self, turn: Turn, request: RequestView, betas: str) -> dict[str, Any]:
        """Return the whole answer of a turn; `betas` is the header. Raises ApiError."""
        return compose(turn, request, _new_id("msg"))

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


def _checked(body: Any, counting: bool) -> dict[str, Any]:
    """Return a body that can be played."""
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    for key in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        if body.get(key) is None:
            raise refuse(key, "Field required")
    if not isinstance(body["messages"], list):
        raise refuse("messages", "must be a list")
    for number, message in enumerate(body["messages"]):
        if not isinstance(message, dict):
            raise refuse(f"messages.{number}", "must be an object")
        content = message.get("content")
        if content is None:
            raise refuse(f"messages.{number}.content", "Field required")
        blocks = content if isinstance(content, list) else []
        if not isinstance(content, str | list) or not all(isinstance(block, dict) for block in blocks):
            raise refuse(f"messages.{number}.content", "must be a string or a list of blocks")
    return body


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


# -- a simulator that runs


api_class = MessagesApi
"""The endpoints of each simulator of this process."""

HOST = "127.0.0.1"
_BACKLOG = 2048
_IDLE_SECONDS = 3600  # a connection that a client keeps open is never closed under its next request
_BOUND_SECONDS = 10.0


class Simulator:
    """A scripted Messages API on loopback, for `with`: point `ANTHROPIC_BASE_URL` at its `base_url`.

    `script` is a script, its file, its content, or a function that returns a turn for each request. With
    `port` 0 the system picks a free one. `record` is a file that every request is appended to. With a `key`,
    only requests that hold it are answered.

    Raises:
        ScriptError: the script cannot be used.
        StorageFailed: the record cannot be opened.
        HostError: on entering, the port is taken.
    """

    def __init__(
        self,
        script: Script | Path | str | Mapping[str, Any] | Respond,
        port: int = 0,
        record: Path | None = None,
        key: str | None = None,
    ) -> None:
        self._script = script if callable(script) else load_script(script)
        self._port = port
        self._key = key
        self._recorder = RequestRecorder(record)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start; when this returns, requests are answered. Entered again, it is on the same port."""
        listener = _listen(self._port)
        with ExitStack() as on_failure:
            on_failure.callback(listener.close)
            self._recorder.open()
            on_failure.pop_all()
        self._port = listener.getsockname()[1]
        self._server = _Server(api_class(self._script, self._recorder, self._key))
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="simulator", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop: every open connection is cut.

        Raises:
            HostError: the thread is still there after 10 s.
        """
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(_BOUND_SECONDS)
        if self._thread.is_alive():
            raise HostError(f"The simulator at {self.base_url} did not stop within {_BOUND_SECONDS:g} s.")
        self._recorder.close()

    @property
    def base_url(self) -> str:
        """The address at which it listens: the value for `ANTHROPIC_BASE_URL`."""
        return f"http://{HOST}:{self._port}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests so far, oldest first, at most the last 10,000."""
        return self._recorder.snapshot()

    def wait_for_requests(self, count: int, timeout: float = _BOUND_SECONDS) -> list[RecordedRequest]:
        """Return the requests as soon as `count` of them have arrived.

        Raises:
            TimeoutError: there were fewer after `timeout` seconds.
        """
        return self._recorder.wait_for(count, timeout)

    def clear(self) -> None:
        """Forget the requests so far."""
        self._recorder.clear()


class _CuttableProtocol(H11Protocol):
    """HTTP whose application may close the connection in the middle of an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self.app_state = {**self.app_state, CUT_KEY: transport.close}


class _Server(uvicorn.Server):
    """A server that stops at once: it cuts open connections, so that nobody waits for a scripted delay."""

    def __init__(self, api: MessagesApi) -> None:
        super().__init__(
            uvicorn.Config(
                api.app(),
                http=_CuttableProtocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_IDLE_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener and every connection, and let the answers see it."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_BOUND_SECONDS / 2)


def _listen(port: int) -> socket.socket:
    """Return a socket that already queues connections, so that no client comes too early."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise HostError(
            f"The simulator cannot listen on {HOST}:{port} ({error}): choose another port, or 0."
        ) from error
    return listener
