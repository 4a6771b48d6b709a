"""The routes of the page: its files, which anybody may load, and the addresses that need a session.

The gate of all requests has looked at the session before, which comes in the header `Authorization`, never in
a cookie: browsers send cookies to every port of a host, and with requests that other pages make.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles

from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.continue_run import ContinueOrder, continue_run
from subagent_server.service.older_runs import older_runs
from subagent_server.service.page_access import PageAccess
from subagent_server.service.reply import reply
from subagent_server.service.rerun import order_of
from subagent_server.service.start import start
from subagent_server.service.stop import stop
from subagent_server.web.feed import Feed
from subagent_server.web.run_page import RunPage
from subagent_server.web.stream import TabStream

PREFIX = "/page"
"""Where everything of the page is, but the page itself at `/`."""
STATIC = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
ANSWERED_BY = "page"
PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

Handler = Callable[[Request], Awaitable[Response]]


class Page:
    """The handlers of the page. `end` ends its streams, because the server leaves."""

    def __init__(self, service: Service, caller: Caller, access: PageAccess) -> None:
        self._service = service
        self._caller = caller
        self._access = access
        self._feed = Feed(service, caller)
        self._runs = RunPage(service, caller)

    @property
    def routes(self) -> list[BaseRoute]:
        """Every address of the page."""
        run = PREFIX + "/runs/{run_id}"
        reads = {
            f"{PREFIX}/events": self._events,
            f"{PREFIX}/costs": self._costs,
            f"{PREFIX}/older": self._older,
            run: self._run,
            f"{run}/conversation": self._conversation,
            f"{run}/changes": self._changes,
            f"{run}/programs": self._programs,
            f"{run}/files/{{name}}": self._file,
        }
        changes = {
            f"{run}/reply": self._reply,
            f"{run}/stop": self._stop,
            f"{run}/continue": self._continue,
            f"{run}/rerun": self._rerun,
        }
        return [
            Route("/", _index, methods=["GET"]),
            Route(f"{PREFIX}/static/{{name}}", _static, methods=["GET"]),
            Route(f"{PREFIX}/session", _for_change(self._session), methods=["POST"]),
            Route(f"{PREFIX}/server", self._server, methods=["GET"]),
            *(Route(path, one, methods=["GET"]) for path, one in reads.items()),
            *(Route(path, _for_change(one), methods=["POST"]) for path, one in changes.items()),
        ]

    def end(self) -> None:
        """End every stream."""
        self._feed.end()

    async def _session(self, request: Request) -> Response:
        code = (await _fields(request)).get("code", "")
        session = await asyncio.to_thread(self._access.redeem, code)
        if session is None:
            return _refused(401, "This link was used before, or is too old: run `subagent page` again.")
        return JSONResponse(asdict(session), headers=PRIVATE)

    async def _server(self, request: Request) -> Response:
        """Prove to a browser, which sends nothing but its knock, that this process made its session."""
        proof = self._access.proof(request.headers.get("subagent-knock", "").encode("latin-1"))
        if proof is None:
            return _refused(401, "This server knows no such page: run `subagent page` again.")
        return JSONResponse({"proof": proof}, headers=PRIVATE)

    async def _events(self, request: Request) -> Response:
        stream = TabStream(self._service, self._caller, self._feed, request.query_params.get("run"))
        return StreamingResponse(stream.lines(), media_type="text/event-stream", headers=PRIVATE)

    async def _costs(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._runs.costs), headers=PRIVATE)

    async def _older(self, request: Request) -> Response:
        before, words = (request.query_params.get(name, "") for name in ("before", "q"))
        found = await asyncio.to_thread(older_runs, self._service, before, words, self._caller)
        told = {"rows": found.rows, "lookedAt": found.looked_at, "before": found.before}
        return JSONResponse(told, headers=PRIVATE)

    async def _run(self, request: Request) -> Response:
        return JSONResponse(await self._runs.facts(_run_id(request)), headers=PRIVATE)

    async def _conversation(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._runs.conversation, _run_id(request))
        return JSONResponse({"messages": found}, headers=PRIVATE)

    async def _changes(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._runs.changes, _run_id(request))
        return JSONResponse(found, headers=PRIVATE)

    async def _programs(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._runs.programs, _run_id(request))
        return JSONResponse({"programs": found}, headers=PRIVATE)

    async def _file(self, request: Request) -> Response:
        data = await asyncio.to_thread(self._runs.file, _run_id(request), request.path_params["name"])
        return Response(data, media_type="text/plain; charset=utf-8", headers={**HEADERS, **PRIVATE})

    async def _reply(self, request: Request) -> Response:
        body, run_id = await _fields(request), _run_id(request)
        answer, question = body.get("answer", ""), body.get("messageId", "")
        await asyncio.to_thread(
            lambda: reply(
                self._service, run_id, answer, question, answered_by=ANSWERED_BY, caller=self._caller
            )
        )
        return JSONResponse({"runId": run_id}, headers=PRIVATE)

    async def _stop(self, request: Request) -> Response:
        run_id = _run_id(request)
        await asyncio.to_thread(stop, self._service, run_id, None, self._caller)
        return JSONResponse({"runId": run_id}, headers=PRIVATE)

    async def _continue(self, request: Request) -> Response:
        prompt = (await _fields(request)).get("prompt")
        order = ContinueOrder(_run_id(request), prompt=prompt or None)
        made = await asyncio.to_thread(continue_run, self._service, order, self._caller)
        return JSONResponse({"runId": made.run_id}, headers=PRIVATE)

    async def _rerun(self, request: Request) -> Response:
        run_id = _run_id(request)
        made = await asyncio.to_thread(
            lambda: start(self._service, order_of(self._service, run_id, self._caller), self._caller)
        )
        return JSONResponse({"runId": made.run_id}, headers=PRIVATE)


def _refused(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status, headers=PRIVATE)


def _for_change(handler: Handler) -> Handler:
    """Return the handler, limited to requests that the page itself has sent as JSON.

    The check of the host has compared `Origin` with it; here `Origin` must not be missing.
    """

    async def guarded(request: Request) -> Response:
        headers = request.headers
        if "origin" not in headers or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return _refused(403, "Only the page itself may send this.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refused(415, "Send JSON, as application/json.")
        return await handler(request)

    return guarded


async def _fields(request: Request) -> dict[str, str]:
    """Return the texts of a JSON object; none if the body is something else."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return {}
    texts = body.items() if isinstance(body, dict) else ()
    return {name: value for name, value in texts if isinstance(value, str)}


def _run_id(request: Request) -> str:
    return str(request.path_params["run_id"])


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=HEADERS)


async def _static(request: Request) -> Response:
    response: Response = await StaticFiles(directory=STATIC).get_response(
        request.path_params["name"], request.scope
    )
    response.headers.update(HEADERS)
    return response
