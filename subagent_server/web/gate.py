"""Access to the page's addresses: a browser session, and for changes the page's own origin.

The session comes in the header `Authorization`, never in a cookie: browsers send cookies to every port of a
host, and with requests that other pages make.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from subagent_server.domain.errors import CallerError, SubagentError, UnknownRun
from subagent_server.service.page_access import PageAccess

Handler = Callable[[Request], Awaitable[Response]]
MAX_BODY_BYTES = 1 << 20
PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_KNOCK = "This page is not open any more: run `subagent page` again."


def refused(status: int, sentence: str) -> JSONResponse:
    """Return the answer to a request that is refused."""
    return JSONResponse({"error": sentence}, status, headers=PRIVATE)


def for_session(access: PageAccess, handler: Handler) -> Handler:
    """Return the handler, for requests of a browser that is known."""

    async def guarded(request: Request) -> Response:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        try:
            is_known = scheme.lower() == "bearer" and await asyncio.to_thread(access.knows, secret)
        except SubagentError as error:
            return refused(500, error.sentence)
        return await answered(handler, request) if is_known else refused(401, _KNOCK)

    return guarded


def for_change(handler: Handler) -> Handler:
    """Return the handler, limited to requests that the page itself has sent as JSON.

    The check of the host has compared `Origin` with it; here `Origin` must not be missing.
    """

    async def guarded(request: Request) -> Response:
        headers = request.headers
        if not _is_own(headers):
            return refused(403, "Only the page itself may send this.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refused(415, "Send JSON, as application/json.")
        if int(headers.get("content-length") or 0) > MAX_BODY_BYTES:
            return refused(413, "That is too long: 1 MiB at most.")
        return await answered(handler, request)

    return guarded


def _is_own(headers: Headers) -> bool:
    return (
        len(headers.getlist("origin")) == 1 and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


async def answered(handler: Handler, request: Request) -> Response:
    """Return the answer of a handler; a refusal of the verb becomes an answer with its sentence."""
    try:
        return await handler(request)
    except SubagentError as error:
        status = 404 if isinstance(error, UnknownRun) else 400 if isinstance(error, CallerError) else 500
        return refused(status, error.sentence)


async def fields(request: Request) -> dict[str, object]:
    """Return the JSON object of a request; an empty object if the body is something else."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def text_of(body: dict[str, object], name: str) -> str:
    """Return a text of a JSON object; empty if it is missing or not a text."""
    value = body.get(name)
    return value if isinstance(value, str) else ""
