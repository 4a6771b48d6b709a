"""A request to the event port: whether its sender may post, whether the body is an event, and the answer."""

import hmac
import json
from collections.abc import Callable
from http import HTTPStatus

from pydantic import ValidationError

from subagent_server.domain.subagent_events import ForeignEvent
from subagent_server.worker.http_exchange import HttpExchange, RequestHead, RequestRefused

MAX_BODY_BYTES = 256 * 1024
_RECORDED = b'{"status": "recorded"}'
_LOOPBACK = ("127.0.0.1", "localhost")


async def take_event(
    exchange: HttpExchange,
    path: str,
    write: Callable[[ForeignEvent], None],
    named: Callable[[], object],
    *,
    is_full: bool,
) -> bool:
    """Read a request, `write` its event, and answer it; return whether another may follow.

    `named` is called once the request has named `path`, which only programs of the run know. With `is_full`
    the request is refused.

    Raises:
        OSError, EOFError: the connection ended.
    """
    status, answer = HTTPStatus.OK, _RECORDED
    try:
        if is_full:
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections at once: try again")
        write(await _event(exchange, path, named))
    except RequestRefused as refused:
        status, answer = refused.status, json.dumps({"error": refused.why}).encode()
    allow = "POST" if status is HTTPStatus.METHOD_NOT_ALLOWED else None
    await exchange.respond(status, answer, allow)
    return exchange.begin_next()


async def _event(exchange: HttpExchange, path: str, named: Callable[[], object]) -> ForeignEvent:
    """Return the posted event.

    Raises:
        RequestRefused: the body is not an event, or the request is not allowed here.
    """
    head = await exchange.head()
    wanted = f"{path}/subagent-events".encode()
    if not hmac.compare_digest(head.target.partition(b"?")[0], wanted):
        why = "POST to the address in SUBAGENT_LOGGING_ADDRESS + /subagent-events"
        raise RequestRefused(HTTPStatus.NOT_FOUND, why)
    named()
    if _is_of_a_page(head):
        why = "only programs of this machine may post here, by its loopback name"
        raise RequestRefused(HTTPStatus.FORBIDDEN, why)
    if head.method != "POST":
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is taken here")
    body = await exchange.body(MAX_BODY_BYTES)
    try:
        return ForeignEvent.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"{place}: {first['msg']}"[:300]) from error


def _is_of_a_page(head: RequestHead) -> bool:
    """Whether a web page sends this, also under its own name for this machine (SPEC section 13)."""
    host = head.headers.get("host", _LOOPBACK[0]).partition(":")[0]
    return "origin" in head.headers or host not in _LOOPBACK
