"""The changes that a page sends: from its own origin alone, and what verbs refuse is its answer."""

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from subagent_server.domain.errors import CallerError, SubagentError, UnknownRun

Handler = Callable[[Request], Awaitable[Response]]
PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def refused(status: int, sentence: str) -> JSONResponse:
    """Return the answer to a request that is refused."""
    return JSONResponse({"error": sentence}, status, headers=PRIVATE)


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
