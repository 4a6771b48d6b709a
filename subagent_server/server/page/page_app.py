"""The routes of the page: its files, which anybody may load, and the addresses that need a session.

The gate of all requests has looked at the session before, which comes in the header `Authorization`, never in
a cookie: browsers send cookies to every port of a host, and with requests that other pages make.
"""

import asyncio
import json
import mimetypes
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from subagent_server.run.durable import with_texts
from subagent_server.run.errors import BadArgument, InvalidRunId, SubagentError, shorten, with_commands
from subagent_server.run.records import RunMeta
from subagent_server.run.stderr import of_the_system
from subagent_server.server.messages import HALF_CHARACTER, is_broken
from subagent_server.server.page.markdown import tree_of
from subagent_server.verbs.access import Caller
from subagent_server.verbs.access_tokens import PageAccess
from subagent_server.verbs.continue_run import ContinueOrder, continue_run, order_of
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.flow_calls import call_lines, calls_of_flow
from subagent_server.verbs.get_logs import get_logs
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
from subagent_server.verbs.reconcile import is_over, observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import start
from subagent_server.verbs.views import NextCalls, message_view, run_view, sandbox_mark
from subagent_server.verbs.wait_for_runs import Changes, until_root_is_made

PREFIX = "/page"
"""Where everything of the page is, but the page itself at `/`."""
STATIC = Path(__file__).with_name("static")
# Read with the import: an upgrade replaces the files, while this server still answers as the version it is.
_FILES = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}
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
CLIENT = "page"
"""Who has started or answered, as runs have it on record."""
PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
MAX_PROMPT_CHARACTERS = 100_000
MAX_MESSAGES = 500
MAX_BLOCK_CHARACTERS = 20_000
MAX_PROGRAMS = 100
MAX_PROGRAM_CHARACTERS = 100_000
MAX_FILES = 500
MAX_CALLS = 500
"""Of a phase of a flow."""
MAX_DIFF_CHARACTERS = 400_000
DIFF_SECONDS = 10.0
"""How long git may compare for the page."""
LOG_SECONDS = 0.1
"""How long nothing is looked at after a look, so that a log that grows all the time is sent in parts."""
POLL_SECONDS = 2.0
"""How often it is looked at without a notice of a change."""
QUIET_SECONDS = 15.0
"""After so long without news a comment is sent, so that a connection that has gone is noticed."""
LINES_AT_ONCE = 500
"""How much of a log is sent at once; at first, its last lines only."""
SETTLE_SECONDS = 0.2
"""How long further changes are waited for, to be sent together."""
FEED_POLL_SECONDS = 1.0
LEAST_POLLED = 10
POLLS_A_ROUND = 10
"""The steps of a run, and the death of its processes, are not announced. So at each poll some of the runs at
work are looked at, each of them once a round."""
MAX_WAITING = 100
"""How much news a page may leave unread before it gets the whole table again."""

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
Reader = asyncio.Queue[Json | None]
"""The news for one page; None is the end."""


class PageApp:
    """The handlers of the page. `end` ends its streams, because the server leaves."""

    def __init__(self, service: Service, caller: Caller, access: PageAccess, changes: Changes) -> None:
        self._service = service
        self._caller = caller
        self._access = access
        self._feed = Feed(service, caller, changes)
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
            f"{run}/conversation": _of_run(self._runs.conversation),
            f"{run}/changes": _of_run(self._runs.changes),
            f"{run}/programs": _of_run(self._runs.programs),
            f"{run}/files/{{name}}": self._file,
        }
        changes = {
            f"{run}/reply": self._reply,
            f"{run}/stop": self._stop,
            f"{run}/continue": self._continue,
            f"{run}/rerun": self._rerun,
        }
        return [
            Route("/", _static, methods=["GET"]),
            Route(f"{PREFIX}/static/{{name}}", _static, methods=["GET"]),
            Route(f"{PREFIX}/session", _from_page(self._session), methods=["POST"]),
            Route(f"{PREFIX}/server", self._server, methods=["GET"]),
            *(Route(path, one, methods=["GET"]) for path, one in reads.items()),
            *(Route(path, _from_page(_changing(one)), methods=["POST"]) for path, one in changes.items()),
        ]

    def end(self) -> None:
        """End every stream."""
        self._feed.end()

    async def _session(self, request: Request) -> Response:
        code = (await _fields(request)).get("code", "")
        session = await asyncio.to_thread(self._access.redeem, code)
        if session is None:
            return _refused(401, "This link was used before, or is too old: run `subagent page` again.")
        return _answer(asdict(session))

    async def _server(self, request: Request) -> Response:
        """Prove to a browser, which sends nothing but its knock, that this process made its session."""
        proof = self._access.proof(request.headers.get("subagent-knock", "").encode("latin-1"))
        if proof is None:
            return _refused(401, "This server knows no such page: run `subagent page` again.")
        return _answer({"proof": proof})

    async def _events(self, request: Request) -> Response:
        stream = TabStream(self._service, self._caller, self._feed, request.query_params.get("run"))
        headers = {**PRIVATE, "x-accel-buffering": "no"}  # nginx keeps even the head of an answer back
        return StreamingResponse(stream.lines(), media_type="text/event-stream", headers=headers)

    async def _costs(self, _: Request) -> Response:
        sums = await asyncio.to_thread(stats, self._service.store)
        return _answer(sums.to_wire())

    async def _older(self, request: Request) -> Response:
        before, words = (request.query_params.get(name, "") for name in ("before", "q"))
        found = await asyncio.to_thread(older_runs, self._service, before, words, self._caller)
        answer = {"rows": found.rows, "lookedAt": found.looked_at, "before": found.before}
        return _answer(answer)

    async def _run(self, request: Request) -> Response:
        return _answer(await self._runs.facts(request.path_params["run_id"]))

    async def _file(self, request: Request) -> Response:
        run_id, name = request.path_params["run_id"], request.path_params["name"]
        data = await asyncio.to_thread(read_output, self._service, run_id, name, self._caller)
        return Response(data, media_type="text/plain; charset=utf-8", headers={**HEADERS, **PRIVATE})

    def _reply(self, run_id: str, fields: dict[str, str]) -> str:
        answer, question = fields.get("answer", ""), fields.get("messageId", "")
        reply(self._service, run_id, answer, question, answered_by=CLIENT, caller=self._caller)
        return run_id

    def _stop(self, run_id: str, _: dict[str, str]) -> str:
        stop(self._service, run_id, None, self._caller)
        return run_id

    def _continue(self, run_id: str, fields: dict[str, str]) -> str:
        order = ContinueOrder(run_id, prompt=fields.get("prompt") or None, client=CLIENT)
        return continue_run(self._service, order, self._caller).run_id

    def _rerun(self, run_id: str, _: dict[str, str]) -> str:
        order = replace(order_of(self._service, run_id, self._caller), client=CLIENT)
        return start(self._service, order, self._caller).run_id


def _answer(found: Json) -> Response:
    """Return an answer in ASCII, as news are: a path may hold bytes that are no text."""
    return Response(json.dumps(found), media_type="application/json", headers=PRIVATE)


def _refused(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status, headers=PRIVATE)


def _of_run(read: Callable[[str], Json]) -> Handler:
    """Return the handler of an address at which something of one run is read."""

    async def answer(request: Request) -> Response:
        found = await asyncio.to_thread(read, request.path_params["run_id"])
        return _answer(found)

    return answer


def _changing(change: Callable[[str, dict[str, str]], str]) -> Handler:
    """Return the handler of a change of a run: it gets the fields that were sent, and names a run."""

    async def answer(request: Request) -> Response:
        fields = await _fields(request)
        run_id = await asyncio.to_thread(change, request.path_params["run_id"], fields)
        return _answer({"runId": run_id})

    return answer


def _from_page(handler: Handler) -> Handler:
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
    """Return the texts of a JSON object; none if the body is something else. Raises BadArgument."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return {}
    fields = body.items() if isinstance(body, dict) else ()
    texts = {name: value for name, value in fields if isinstance(value, str)}
    for name in (name for name, text in texts.items() if is_broken(text)):
        raise BadArgument(f"{shorten(name)} {HALF_CHARACTER}.")
    return texts


async def _static(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in _FILES:
        raise HTTPException(404)
    return Response(_FILES[name], headers=HEADERS, media_type=mimetypes.guess_type(name)[0])


class RunPage:
    """The facts of runs, as JSON objects."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._comparing = threading.Lock()

    async def facts(self, run_id: str) -> Json:
        """Return what the run was asked, its state, its questions, and its result as a tree of elements.

        Raises:
            InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        """
        facts = await asyncio.to_thread(self._facts, run_id)
        result = facts["view"].get("result")
        facts["resultTree"] = await tree_of(result) if result else None
        return facts

    def _facts(self, run_id: str) -> Json:
        store = self._service.store
        observed = observe(store, run_id, self._caller)
        meta, run = observed.meta, store.paths.run(run_id)
        view = run_view(
            store, observed, NextCalls(command=lambda *words: " ".join(["subagent", *words])), self._caller
        )
        return {
            "view": view.to_wire(),
            "created": meta.created_at.isoformat(),
            "ended": None if meta.ended_at is None else meta.ended_at.isoformat(),
            "over": is_over(run, meta.status, is_marked=run_id in store.live_ids()),
            "parentRunId": meta.parent_run_id,
            "children": store.children_of(run_id),
            "questions": [message_view(each).model_dump(mode="json") for each in meta.messages],
            "sandbox": sandbox_mark(run),
            "calls": "\n".join(call_lines(calls_of_flow(store, run_id), MAX_CALLS)),
            "request": self._request(meta),
            "programs": run.code.exists(),
            "files": output_names(self._service, run_id)[:MAX_FILES],
            "directory": str(run.directory),
        }

    def _request(self, meta: RunMeta) -> Json:
        try:
            request = self._service.store.read_request(meta.run_id)
        except SubagentError as error:
            return {"error": with_commands(error.sentence)}
        return {
            "prompt": request.prompt[:MAX_PROMPT_CHARACTERS],
            "cwd": request.cwd,
            "inputs": list(request.inputs),
            "model": request.agent.get("model"),
        }

    def conversation(self, run_id: str) -> Json:
        """Return the last messages between the run and its model, long texts cut. Raises as `facts` does."""
        found = conversation(self._service, run_id, MAX_MESSAGES, self._caller)
        return {"messages": with_texts(found, _cut)}

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

    def programs(self, run_id: str) -> Json:
        """Return the last programs of code mode with their calls and output. Raises as `facts` does."""
        observe(self._service.store, run_id, self._caller)
        programs = list(kept_programs(self._service.store.paths.run(run_id)))[-MAX_PROGRAMS:]
        most = MAX_PROGRAM_CHARACTERS
        cut = (replace(each, code=each.code[:most], output=each.output[:most]) for each in programs)
        return {"programs": list(map(asdict, cut))}


def _cut(text: str) -> str:
    left = len(text) - MAX_BLOCK_CHARACTERS
    return text if left <= 0 else f"{text[:MAX_BLOCK_CHARACTERS]}\n… {left} characters more"


class TabStream:
    """The stream of one page: rows of all runs, and the log of the run that it shows, if it shows one.

    A page has one stream, because browsers open six connections to a server over all their tabs.
    """

    def __init__(self, service: Service, caller: Caller, feed: "Feed", run_id: str | None) -> None:
        self._service = service
        self._caller = caller
        self._feed = feed
        self._run_id = run_id
        self._cursor: str | None = None

    async def lines(self) -> AsyncIterator[str]:
        """Yield the stream, in the format of server-sent events, until the server leaves or has a fault."""
        try:
            async for line in self._lines():
                yield line
        except SubagentError as error:
            yield _sent("fault", with_commands(error.sentence))
        except OSError as error:
            yield _sent("fault", of_the_system(error))

    async def _lines(self) -> AsyncIterator[str]:
        async with self._feed.reader() as reader, AsyncExitStack() as watched:
            if self._run_id is not None:
                with suppress(InvalidRunId):  # the log has that
                    await watched.enter_async_context(self._feed.log_watched(self._run_id, reader))
            while True:
                async for page in self._log():
                    yield _sent("log", page)
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

    async def _log(self) -> AsyncIterator[Json]:
        """Yield what is new in the log, or why it cannot be read."""
        is_first = self._cursor is None
        while self._run_id is not None:
            try:
                page = await asyncio.to_thread(
                    get_logs, self._service, self._run_id, "log", self._cursor, LINES_AT_ONCE, self._caller
                )
            except SubagentError as error:
                yield {"run": self._run_id, "error": with_commands(error.sentence)}
                self._run_id = None
                return
            self._cursor = page.cursor
            if page.text or is_first:
                has_earlier = is_first and int(page.cursor) > len(page.text.encode()) + 1
                yield {"run": self._run_id, "first": is_first, "text": page.text, "earlier": has_earlier}
            if page.at_end:
                return
            is_first = False


def _sent(kind: str, data: Json | str) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


class Feed:
    """Sends changed rows to all open pages: the table is read once, and only while a page is open."""

    def __init__(self, service: Service, caller: Caller, changes: Changes) -> None:
        self._store = service.store
        self._changes = changes
        self._new_table = partial(RunTable, service, caller)
        self._table = self._new_table()
        self._readers: set[Reader] = set()
        self._pages = 0
        """How many are open; those that wait for the first look are no readers yet."""
        self._looking: asyncio.Task[None] | None = None
        self._is_read = asyncio.Event()
        self._changed: set[str] = set()
        self._turn = 0

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """Yield a queue with the whole table first, and then each change; None in it means the end.

        Raises:
            OSError, SubagentError: the runs cannot be listed.
        """
        reader: Reader = asyncio.Queue(MAX_WAITING)
        if self._looking is None or self._looking.done():
            self._is_read.clear()
            self._table = self._new_table()  # a thread of the look before may still be at work in the other
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._stopped)
        looking = self._looking
        self._pages += 1
        try:
            await self._is_read.wait()
            if looking.done() and not looking.cancelled() and (fault := looking.exception()) is not None:
                raise fault
            reader.put_nowait(self._whole())
            self._readers.add(reader)
            yield reader
        finally:
            self._pages -= 1
            self._readers.discard(reader)
            if not self._pages and self._looking is not None:
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

        def on_change(name: str) -> None:
            if name == run.log.name and not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        watching = loop.run_in_executor(None, self._changes.watcher.watch, run.directory, on_change)
        try:
            await asyncio.shield(watching)
            yield
        finally:
            watching.add_done_callback(lambda done: done.result()())  # also if the page leaves before

    def end(self) -> None:
        """End every reader: the server leaves."""
        self._end_readers()
        if self._looking is not None:
            self._looking.cancel()

    def _end_readers(self) -> None:
        for reader in self._readers:
            _emptied(reader).put_nowait(None)

    def _whole(self) -> Json:
        return {"all": True, "rows": self._table.rows, "older": self._table.has_older}

    async def _look(self) -> None:
        loop, woken, table = asyncio.get_running_loop(), asyncio.Event(), self._table

        def note(run_id: str) -> None:
            self._changed.add(run_id)
            woken.set()

        def on_change(run_id: str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(note, run_id)

        if not self._store.paths.root.exists():
            self._is_read.set()
            await until_root_is_made(self._store)
        self._changes.add(on_change)
        try:
            await asyncio.to_thread(self._changes.watch)
            await asyncio.to_thread(table.read_active)
            self._is_read.set()  # a page has its first rows now, and those of ended runs in a moment
            self._send(self._whole())
            if len(table.active) > LEAST_POLLED:
                await asyncio.sleep(SETTLE_SECONDS)  # they are on their way before another thread is busy
            over = await asyncio.to_thread(table.read_over)
            if over:
                self._send({**_wire(over), "older": table.has_older})
            while True:
                try:
                    async with asyncio.timeout(FEED_POLL_SECONDS):
                        await woken.wait()
                    await asyncio.sleep(SETTLE_SECONDS)
                    woken.clear()
                    wanted, self._changed = self._changed, set()
                except TimeoutError:
                    wanted = await asyncio.to_thread(self._some, table)
                news = await asyncio.to_thread(table.look, wanted)
                if news:
                    self._send(_wire(news))
        finally:
            self._changes.remove(on_change)

    def _stopped(self, looking: asyncio.Task[None]) -> None:
        if looking is self._looking:  # so it was a fault: the pages come again, and learn which
            self._is_read.set()
            self._end_readers()

    def _some(self, table: RunTable) -> set[str]:
        """Return the runs at work whose turn it is to be looked at, and the runs that were removed."""
        self._turn += 1
        active = table.active
        first, step = (0, 1) if len(active) <= LEAST_POLLED else (self._turn % POLLS_A_ROUND, POLLS_A_ROUND)
        return {*active[first::step], *table.removed()}

    def _send(self, news: Json) -> None:
        for reader in self._readers:
            if reader.full():
                _emptied(reader).put_nowait(self._whole())
            else:
                reader.put_nowait(news)


def _wire(news: TableNews) -> Json:
    return {"rows": news.rows, "gone": news.gone}


def _emptied(reader: Reader) -> Reader:
    while not reader.empty():
        reader.get_nowait()
    return reader
