"""`GET /api/agents/{agent_id}/payload`: the payload of an agent, passed on as it is stored, compressed."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from subagent_server.domain.errors import CallerError, SubagentError
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.open_payload import StoredPayload, open_payload

CHUNK_BYTES = 256 << 10
_CODING = re.compile(r"\s*([^\s;,]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?", re.ASCII)


def payload_route(service: Service, caller_of: Callable[[Request], Caller]) -> Route:
    """Return the route. `caller_of` says in whose name a request comes."""

    async def payload(request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        try:
            stored = await asyncio.to_thread(open_payload, service, agent_id, caller_of(request))
        except SubagentError as error:
            return _refused(404 if isinstance(error, CallerError) else 500, error.sentence)
        answer = _answer_without_body(request, stored)
        if answer is not None:
            stored.file.close()
            return answer
        return StreamingResponse(_chunks(stored), headers=_headers(stored))

    return Route("/api/agents/{agent_id}/payload", payload, methods=["GET"])


def _answer_without_body(request: Request, stored: StoredPayload) -> Response | None:
    """Return the answer to a request that gets no payload, or None."""
    if not takes_gzip(request.headers.getlist("accept-encoding")):
        return _refused(406, "The payload comes compressed: send Accept-Encoding: gzip.")
    if _knows(request.headers.getlist("if-none-match"), stored):
        known = ("etag", "vary", "cache-control")
        return Response(status_code=304, headers={name: _headers(stored)[name] for name in known})
    return Response(headers=_headers(stored)) if request.method == "HEAD" else None


def _headers(stored: StoredPayload) -> dict[str, str]:
    return {
        "content-type": "text/plain; charset=utf-8",
        "content-encoding": "gzip",
        "content-length": str(stored.size),
        "etag": f'"{stored.tag}"',
        "vary": "Accept-Encoding",
        "cache-control": "private, no-cache",
        "accept-ranges": "none",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",
    }


def takes_gzip(headers: list[str]) -> bool:
    """Whether a client that sends these `Accept-Encoding` says that it takes gzip."""
    said: dict[str, bool] = {}
    for part in ",".join(headers).split(","):
        found = _CODING.fullmatch(part)
        if found is not None:
            said[found[1].lower()] = found[2] is None or found[2].strip("0.") != ""
    return said.get("gzip", said.get("x-gzip", said.get("*", False)))


def _knows(headers: list[str], stored: StoredPayload) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in ",".join(headers).split(",")}
    return f'"{stored.tag}"' in tags or "*" in tags


async def _chunks(stored: StoredPayload) -> AsyncIterator[bytes]:
    """Yield what was stored, and no more, whatever is appended meanwhile."""
    left = stored.size
    try:
        while left and (chunk := await asyncio.to_thread(stored.file.read, min(left, CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk
    finally:
        stored.file.close()


def _refused(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)
