"""The events of other subagents, which a worker writes into its journal besides its work.

They are those of nested runs, read from their journals, and those of programs, which come over HTTP. Each of
the two is bounded, so a talkative source can neither fill the disk nor keep the run from its work; the events
left out are counted.
"""

import asyncio
import hmac
import json
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from pydantic import ValidationError

from subagent_server.run.errors import SubagentError
from subagent_server.run.history import EVENT_VARIABLES, KIND, ForeignEvent, nested_event
from subagent_server.run.records import first_problem
from subagent_server.run.store import RunStore
from subagent_server.verbs.get_logs import JournalFollower, JournalPosition
from subagent_server.worker.worker_run import WorkerRun

# -- `POST .../subagent-events`: the programs of a run report their subagents here (SPEC section 8).
#
# A loopback port of the worker with an unguessable path. Any user of the machine can connect, so everything
# is bounded: the connections, the time and the bytes of each, and one request a connection.


MAX_CONNECTIONS = 32
MAX_BODY_BYTES = 256 * 1024
MAX_REQUEST_BYTES = MAX_BODY_BYTES + 16 * 1024
DEADLINE_SECONDS = 10.0
"""Of a connection, from its beginning to its end."""
_LINGER_SECONDS = 0.5
_LINGER_BYTES = 1 << 20
_LOOPBACK = ("127.0.0.1", "localhost")


class EventPort(ThreadingTCPServer):  # an HTTPServer asks a resolver for its own name
    """Listens as long as its run works. `write` gets each event, in the event loop that opened the port.

    Each connection has a thread, so nothing that it does holds up the loop. If there are too many, the oldest
    of those that have not named the right path is cut off.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    timeout = 0

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        """Begin to listen. Raises OSError: there is no free port."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}
        """The connections that have not named the path yet, oldest first."""
        self.address = f"http://127.0.0.1:{self.server_address[1]}{self._path}"
        """Where to post, without `/subagent-events`."""
        self._loop.add_reader(self.fileno(), self.handle_request)

    def close(self) -> None:
        """Stop listening, and cut the open connections off."""
        self._loop.remove_reader(self.fileno())
        self.server_close()
        for connection in list(self._open):
            _cut(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(DEADLINE_SECONDS)
        self._open.add(request)
        self._strangers[request] = None
        self._loop.call_later(DEADLINE_SECONDS, _cut, request)
        if len(self._open) > MAX_CONNECTIONS:
            _cut(next(iter(self._strangers), request))
        super().process_request(request, client_address)

    # -- called by the thread of a connection

    def names(self, connection: socket.socket, target: str) -> bool:
        """Whether a target is that of this port, which only programs of the run know."""
        wanted = f"{self._path}/subagent-events".encode()
        is_ours = hmac.compare_digest(target.partition("?")[0].encode("latin-1", "replace"), wanted)
        if is_ours:
            self._loop.call_soon_threadsafe(self._strangers.pop, connection, None)
        return is_ours

    def record(self, facts: dict[str, Any]) -> None:
        """Return when the event is written. Raises TimeoutError if the loop has no time for it."""

        async def write() -> None:
            self._write(facts)

        asyncio.run_coroutine_threadsafe(write(), self._loop).result(DEADLINE_SECONDS)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with suppress(RuntimeError):  # the loop is closed: the run has ended
            self._loop.call_soon_threadsafe(self._open.discard, request)
            self._loop.call_soon_threadsafe(self._strangers.pop, request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client has left, or was cut off
            super().handle_error(request, client_address)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = default_request_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.server, EventPort)
        self._port = self.server
        self.rfile: Any = _Bounded(self.rfile)

    def handle(self) -> None:
        self.handle_one_request()  # one request a connection: its deadline is that of the request

    def do_POST(self) -> None:
        status, words = self._take()
        key = "status" if status is HTTPStatus.OK else "error"
        self._answer(status, {key: words})

    def _take(self) -> tuple[HTTPStatus, str]:
        if not self._port.names(self.connection, self.path):
            why = "POST to the address in SUBAGENT_LOGGING_ADDRESS + /subagent-events"
            return HTTPStatus.NOT_FOUND, why
        hosts = self.headers.get_all("Host", _LOOPBACK[:1])
        if len(hosts) > 1:
            return HTTPStatus.BAD_REQUEST, "this request has more than one Host"
        # a web page sends its origin, and may reach this machine by a name of its own
        if "Origin" in self.headers or hosts[0].partition(":")[0] not in _LOOPBACK:
            why = "only programs of this machine may post here, by its loopback name"
            return HTTPStatus.FORBIDDEN, why
        lengths = set(self.headers.get_all("Content-Length", []))
        length = lengths.pop() if len(lengths) == 1 and "Transfer-Encoding" not in self.headers else ""
        if not (length.isascii() and length.isdecimal()):
            return HTTPStatus.BAD_REQUEST, "an event needs one Content-Length, and no other encoding"
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an event has at most {MAX_BODY_BYTES:,} bytes"
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return HTTPStatus.BAD_REQUEST, "the body ended before its Content-Length"
        try:
            self._port.record(ForeignEvent.model_validate_json(body).facts())
        except ValidationError as error:
            return HTTPStatus.BAD_REQUEST, first_problem(error)[:300]
        return HTTPStatus.OK, "recorded"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what http.server refuses: there it is a method without a function that is answered 501."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only POST is taken here"
        self._answer(HTTPStatus(code), {"error": message or HTTPStatus(code).phrase})

    def _answer(self, status: HTTPStatus, words: dict[str, str]) -> None:
        content = json.dumps(words).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else content)

    def finish(self) -> None:
        """Read a little of the rest: closing before would reset the connection, and lose the answer."""
        super().finish()
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(_LINGER_SECONDS)
        left = _LINGER_BYTES
        while left > 0 and (more := self.connection.recv(1 << 16)):
            left -= len(more)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: stderr is the log of the worker."""


class _Bounded:
    """The input of a connection, which ends after `MAX_REQUEST_BYTES`: http.server bounds single lines."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = MAX_REQUEST_BYTES
        self.close = file.close

    def readline(self, size: int) -> bytes:
        """Read a line of the head."""
        return self._taken(self._file.readline(min(size, self._left)))

    def read(self, size: int) -> bytes:
        """Read the body."""
        return self._taken(self._file.read(min(size, self._left)))

    def _taken(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        return piece


LOOK_SECONDS = 1.0
EVENTS_A_SECOND = 50.0
BURST = 200
MAX_EVENTS = 10_000
"""Of one run, from each of the two."""
_LEFT_OUT = "events_left_out"


@asynccontextmanager
async def subagent_events_recorded(
    run: WorkerRun, environment: MutableMapping[str, str], *, may_delegate: bool
) -> AsyncIterator[None]:
    """While inside, the journal gets the events of nested runs and of foreign programs.

    `environment`, which programs of the run inherit, gets the address to post to. `may_delegate` says whether
    the run may have nested runs at all.
    """
    nested, foreign = SubagentJournal(run.record), SubagentJournal(run.record)  # each has room of its own
    port = None
    for name in EVENT_VARIABLES:
        environment.pop(name, None)  # that of the parent
    try:
        port = EventPort(foreign.write)
    except OSError as error:
        run.record("warning", message=f"There is no port for events of subagents: {error}")
    else:
        environment.update(dict.fromkeys(EVENT_VARIABLES, port.address))
    over = asyncio.Event()
    events = NestedEvents(run.store, run.run_id)
    following = asyncio.create_task(nested.follow(events.look, over)) if may_delegate else None
    try:
        yield
    finally:
        if port is not None:
            port.close()
        over.set()
        if following is not None:
            (fault,) = await asyncio.gather(following, return_exceptions=True)
            if isinstance(fault, Exception):
                run.record("warning", message=f"Events of nested runs could not be read: {fault}")
        nested.record_left_out()
        foreign.record_left_out()


class NestedEvents:
    """Follows the journals of a run's children, each from its beginning. Used by one thread at a time.

    Journals announce nothing, so their follower looks now and then.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._known: set[str] = set()
        self._following: dict[str, tuple[str, JournalFollower]] = {}

    def look(self, last: bool) -> list[dict[str, Any]]:
        """Return the new events as `subagent_event`s: of each child in its order.

        The `last` look adds ends that are in the state of a child and not yet in its journal.
        """
        for run_id in self._store.children_of(self._run_id):
            if run_id not in self._known:
                self._begin(run_id)
        found: list[dict[str, Any]] = []
        for run_id, (name, follower) in list(self._following.items()):
            found += self._news(run_id, name, follower)
            found += self._ending(run_id, name, follower) if last else []
            if follower.position.ended:
                del self._following[run_id]
        return found

    def _begin(self, run_id: str) -> None:
        with suppress(SubagentError):  # it is being made: the next look finds it
            meta = self._store.read(run_id)
            self._known.add(run_id)
            self._following[run_id] = (
                meta.agent_name,
                JournalFollower(self._store, run_id, JournalPosition()),
            )

    def _ending(self, run_id: str, name: str, follower: JournalFollower) -> list[dict[str, Any]]:
        with suppress(SubagentError):  # it was removed
            end = follower.ending(self._store.read(run_id))
            ended = nested_event(end, name, run_id) if end is not None else None
            return [ended] if ended is not None else []
        return []

    def _news(self, run_id: str, name: str, follower: JournalFollower) -> list[dict[str, Any]]:
        news = follower.news()
        nested = [nested_event(event, name, run_id) for event in news.events]
        origin = {"subagentName": name, "subagentRunId": run_id}
        left_out = [{"event": _LEFT_OUT, **origin}] if news.left_out else []
        return [*left_out, *(event for event in nested if event is not None)]


class SubagentJournal:
    """Writes `subagent_event`s within their bounds. Lives in the event loop of the worker."""

    def __init__(self, record: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._record = record
        self._clock = clock
        self._room = float(BURST)
        self._at = clock()
        self._written = self._left_out = 0

    def write(self, facts: dict[str, Any]) -> None:
        """Write an event, or count it if there are too many."""
        if self._has_room():
            self._record(KIND, **facts)

    async def follow(self, look: Callable[[bool], list[dict[str, Any]]], over: asyncio.Event) -> None:
        """Write the events that `look`, in a thread, finds each second, and once more when `over`."""
        last = False
        while not last:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_SECONDS)
            last = over.is_set()
            for facts in await asyncio.to_thread(look, last):
                self.write(facts)

    def _has_room(self) -> bool:
        """Take the room of one event, or count it as left out."""
        moment = self._clock()
        self._room = min(float(BURST), self._room + (moment - self._at) * EVENTS_A_SECOND)
        self._at = moment
        if self._room < 1 or self._written >= MAX_EVENTS:
            self._left_out += 1
            return False
        self.record_left_out()
        self._room -= 1
        self._written += 1
        return True

    def record_left_out(self) -> None:
        """Record how many events were left out since the last one that was written."""
        if self._left_out:
            self._record(KIND, event=_LEFT_OUT, count=self._left_out)
            self._left_out = 0
