"""The routes of the page: its files, which anybody may load, and the addresses that need a session.

The gate of all requests has looked at the session before, which comes in the header `Authorization`, never in
a cookie: browsers send cookies to every port of a host, and with requests that other pages make.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles

from subagent_server.run.errors import InvalidRunId, SubagentError
from subagent_server.run.records import RunMeta
from subagent_server.server.page.markdown import tree_of
from subagent_server.verbs.access import Caller
from subagent_server.verbs.context import Service
from subagent_server.verbs.continue_run import ContinueOrder, continue_run, order_of
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.get_logs import LogPage, get_logs
from subagent_server.verbs.http_access import PageAccess
from subagent_server.verbs.list_runs import stats
from subagent_server.verbs.merge_run import run_diff
from subagent_server.verbs.page_data import (
    RunTable,
    TableNews,
    conversation,
    kept_programs,
    older_runs,
    output_names,
    read_output,
)
from subagent_server.verbs.questions import reply
from subagent_server.verbs.reconcile import is_over, open_run
from subagent_server.verbs.start import start
from subagent_server.verbs.views import Commands, message_view, run_view, sandbox_mark
from subagent_server.verbs.wait_for_runs import Changes, until_root_is_made

# -- The feed of all open pages: the table of runs is read once, however many pages are open.


SETTLE_SECONDS = 0.2
"""How long further changes are waited for, to be sent together."""
FEED_POLL_SECONDS = 1.0
LEAST_POLLED = 10
POLLS_A_ROUND = 10
"""What a run does is not announced, nor that its processes were killed. So at each poll some of the runs at
work are looked at, each of them once a round."""
MAX_WAITING = 100
"""How much news a page may leave unread before it gets the whole table again."""

Reader = asyncio.Queue[dict[str, Any] | None]


class Feed:
    """Tells open pages of changed rows. It looks at nothing while no page is open."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._store = service.store
        self._changes = Changes(service.store)
        self._table = RunTable(service, caller)
        self._readers: set[Reader] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_read = asyncio.Event()
        self._changed: set[str] = set()
        self._turn = 0

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """Give a queue with the whole table first, and then each change; None in it means the end."""
        reader: Reader = asyncio.Queue(MAX_WAITING)
        if self._looking is None or self._looking.done():
            self._is_read.clear()
            self._looking = asyncio.create_task(self._look())
        await self._is_read.wait()
        reader.put_nowait(self._whole())
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            if not self._readers and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    @asynccontextmanager
    async def log_watched(self, run_id: str, reader: Reader) -> AsyncIterator[None]:
        """Wake a waiting reader by an empty change each time that the log of a run has grown.

        Raises:
            InvalidRunId.
        """
        loop, run = asyncio.get_running_loop(), self._store.paths.run(run_id)

        def wake() -> None:
            if reader.empty():
                reader.put_nowait({})

        def hear(name: str) -> None:
            if name == run.log.name and not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        forget = await asyncio.to_thread(self._changes.watcher.watch, run.directory, hear)
        try:
            yield
        finally:
            forget()

    def end(self) -> None:
        """End every reader: the server leaves."""
        self._end_readers()
        if self._looking is not None:
            self._looking.cancel()
        self._changes.close()

    def _end_readers(self) -> None:
        for reader in self._readers:
            _emptied(reader).put_nowait(None)

    def _whole(self) -> dict[str, Any]:
        return {"all": True, "rows": self._table.rows, "older": self._table.has_older}

    async def _look(self) -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def note(run_id: str) -> None:
            self._changed.add(run_id)
            heard.set()

        def hear(run_id: str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(note, run_id)

        if not self._store.paths.root.exists():
            self._is_read.set()
            await until_root_is_made(self._store)
        unsubscribe = await asyncio.to_thread(self._changes.subscribe, hear)
        try:
            await asyncio.to_thread(self._table.read_active)
            self._is_read.set()  # a page has its first rows now, and those of ended runs in a moment
            self._tell(self._whole())
            if len(self._table.active) > LEAST_POLLED:
                await asyncio.sleep(SETTLE_SECONDS)  # they are on their way before another thread is busy
            over = await asyncio.to_thread(self._table.read_over)
            if over:
                self._tell({**_wire(over), "older": self._table.has_older})
            while True:
                try:
                    async with asyncio.timeout(FEED_POLL_SECONDS):
                        await heard.wait()
                    await asyncio.sleep(SETTLE_SECONDS)
                    heard.clear()
                    wanted, self._changed = self._changed, set()
                except TimeoutError:
                    wanted = await asyncio.to_thread(self._some)
                news = await asyncio.to_thread(self._table.look, wanted)
                if news:
                    self._tell(_wire(news))
        finally:
            unsubscribe()
            self._end_readers()  # were it a fault, the pages come again

    def _some(self) -> set[str]:
        """Return the runs at work whose turn it is to be looked at, and the runs that were removed."""
        self._turn += 1
        active = self._table.active
        first, step = (0, 1) if len(active) <= LEAST_POLLED else (self._turn % POLLS_A_ROUND, POLLS_A_ROUND)
        return {*active[first::step], *self._table.removed()}

    def _tell(self, news: dict[str, Any]) -> None:
        for reader in self._readers:
            if reader.full():
                _emptied(reader).put_nowait(self._whole())
            else:
                reader.put_nowait(news)


def _wire(news: TableNews) -> dict[str, Any]:
    return {"rows": news.rows, "gone": news.gone}


def _emptied(reader: Reader) -> Reader:
    while not reader.empty():
        reader.get_nowait()
    return reader


# -- The event stream of an open page: rows of all runs, and the log of the run that it shows.
#
# A page has one stream, because browsers open six connections to a server over all their tabs.


LOG_SECONDS = 0.1
"""How long nothing is looked at after a look, so that a log that grows all the time is sent in parts."""
POLL_SECONDS = 2.0
"""How often it is looked at if no change of it is heard."""
QUIET_SECONDS = 15.0
"""After so long without news a comment is sent, so that a connection that has gone is noticed."""
LAST_LINES = 500
"""How much of a log is shown at first."""
LINES_AT_ONCE = 500

Event = tuple[str, dict[str, Any]]


class TabStream:
    """The stream of one page. `run_id` is the run whose log it shows, if any."""

    def __init__(self, service: Service, caller: Caller, feed: Feed, run_id: str | None) -> None:
        self._service = service
        self._caller = caller
        self._feed = feed
        self._run_id = run_id
        self._cursor: str | None = None

    async def lines(self) -> AsyncIterator[str]:
        """Yield the stream, in the format of server-sent events, until the server leaves."""
        async with self._feed.reader() as reader, AsyncExitStack() as watched:
            if self._run_id is not None:
                with suppress(InvalidRunId):  # the log says so
                    await watched.enter_async_context(self._feed.log_watched(self._run_id, reader))
            while True:
                async for event in self._log():
                    yield _sent(*event)
                try:
                    async with asyncio.timeout(QUIET_SECONDS if self._run_id is None else POLL_SECONDS):
                        news = await reader.get()
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                if news is None:
                    return
                if news:
                    yield _sent("runs", news)
                if self._run_id is not None:
                    await asyncio.sleep(LOG_SECONDS)

    async def _log(self) -> AsyncIterator[Event]:
        """Yield what is new in the log."""
        is_first = self._cursor is None
        while self._run_id is not None:
            lines = LAST_LINES if self._cursor is None else LINES_AT_ONCE
            try:
                page = await asyncio.to_thread(self._page, self._run_id, lines)
            except SubagentError as error:
                yield "log", {"run": self._run_id, "error": error.sentence}
                self._run_id = None
                return
            self._cursor = page.cursor
            if page.text or is_first:
                yield "log", {"run": self._run_id, "first": is_first, "text": page.text}
            if page.at_end:
                return
            is_first = False

    def _page(self, run_id: str, lines: int) -> LogPage:
        return get_logs(self._service, run_id, "log", self._cursor, lines, self._caller)


def _sent(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


# -- Everything about one run that the page shows beside its log.


MAX_PROMPT_CHARACTERS = 100_000
MAX_MESSAGES = 500
MAX_BLOCK_CHARACTERS = 20_000
MAX_PROGRAMS = 100
MAX_PROGRAM_CHARACTERS = 100_000
MAX_FILES = 500
MAX_DIFF_CHARACTERS = 400_000
DIFF_SECONDS = 10.0
"""How long git may compare for the page."""

Json = dict[str, Any]


class RunPage:
    """The facts of runs, as JSON objects."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._comparing = threading.Lock()

    async def facts(self, run_id: str) -> Json:
        """Return what the run was asked, how it stands, its questions, and its result as a tree of elements.

        Raises:
            InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        """
        facts = await asyncio.to_thread(self._facts, run_id)
        result = facts["view"].get("result")
        facts["resultTree"] = await tree_of(result) if result else None
        return facts

    def _facts(self, run_id: str) -> Json:
        store = self._service.store
        observed = open_run(self._service, run_id, self._caller)
        meta, run = observed.meta, store.paths.run(run_id)
        view = run_view(store, observed, Commands(_command), self._caller)
        return {
            "view": view.to_wire(),
            "created": _moment(meta.created_at),
            "ended": _moment(meta.ended_at),
            "over": is_over(run, meta.status, is_marked=run_id in store.live_ids()),
            "parentRunId": meta.parent_run_id,
            "children": store.children_of(run_id),
            "questions": [message_view(each).model_dump(mode="json") for each in meta.messages],
            "sandbox": sandbox_mark(run),
            "request": self._request(meta),
            "programs": run.code.exists(),
            "files": output_names(self._service, run_id)[:MAX_FILES],
            "directory": str(run.directory),
        }

    def _request(self, meta: RunMeta) -> Json:
        try:
            request = self._service.store.read_request(meta.run_id)
        except SubagentError as error:
            return {"error": error.sentence}
        return {
            "prompt": request.prompt[:MAX_PROMPT_CHARACTERS],
            "cwd": request.cwd,
            "inputs": list(request.inputs),
            "model": request.agent.get("model"),
        }

    def conversation(self, run_id: str) -> list[Json]:
        """Return the last messages between the run and its model, long texts cut. Raises as `facts` does."""
        return [_cut(each) for each in conversation(self._service, run_id, MAX_MESSAGES, self._caller)]

    def changes(self, run_id: str) -> Json:
        """Return what a run has changed in its worktree, as a patch that ends with a whole line.

        Only one patch is made at a time, because its cost for git depends on the files of the run.

        Raises:
            NotMerged: it has no worktree.
            GitFailed; and as `facts` does.
        """
        with self._comparing:
            patch = run_diff(self._service, run_id, self._caller, seconds=DIFF_SECONDS)
        if len(patch) <= MAX_DIFF_CHARACTERS:
            return {"diff": patch, "cut": False}
        return {"diff": patch[: patch.rfind("\n", 0, MAX_DIFF_CHARACTERS) + 1], "cut": True}

    def programs(self, run_id: str) -> list[Json]:
        """Return the last programs of code mode with their calls and output. Raises as `facts` does."""
        open_run(self._service, run_id, self._caller)
        programs = list(kept_programs(self._service.store.paths.run(run_id)))[-MAX_PROGRAMS:]
        return [
            program.to_wire()
            | {
                "code": program.code[:MAX_PROGRAM_CHARACTERS],
                "output": program.output[:MAX_PROGRAM_CHARACTERS],
            }
            for program in programs
        ]

    def file(self, run_id: str, name: str) -> bytes:
        """Return a file that a tool has printed. Raises as `facts` does, and BadArgument if it is missing."""
        return read_output(self._service, run_id, name, self._caller)

    def costs(self) -> Json:
        """Return what all runs together have cost, by agent and by day."""
        sums = stats(self._service.store)
        return {
            "total": sums.total.to_wire(),
            "agents": {name: one.to_wire() for name, one in sums.by_agent.items()},
            "days": {day: one.to_wire() for day, one in sums.by_day.items()},
        }


def _command(*words: str) -> str:
    return " ".join(["subagent", *words])


def _moment(value: Any) -> str | None:
    return None if value is None else value.isoformat()


def _cut(value: Any) -> Any:
    """Return JSON with its long texts cut."""
    if isinstance(value, str):
        left = len(value) - MAX_BLOCK_CHARACTERS
        return value if left <= 0 else f"{value[:MAX_BLOCK_CHARACTERS]}\n… {left} characters more"
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _cut(each) for key, each in value.items()}
    return value


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
