"""The event port of a running worker, met by clients that are slow, wrong or hostile (SPEC section 8)."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from subagent_server.worker.subagents import BURST, DEADLINE_SECONDS, SubagentJournal
from tests.helpers.turns import asks, says, shell
from tests.helpers.world import BOUND, World

EVENT = {"subagentName": "ext", "timestamp": "2026-01-01T00:00:00Z", "type": "thought_trace"}
OTHER = json.dumps({**EVENT, "subagentRunId": "run-0", "type": "other"}).encode()
MEGABYTE = 1 << 20


class Port:
    """The port of one run, as its programs know it."""

    def __init__(self, address: str) -> None:
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.+)", address)
        assert found is not None, address
        self.place = ("127.0.0.1", int(found[1]))
        self.path = found[2].encode() + b"/subagent-events"

    def open(self) -> socket.socket:
        """Connect."""
        return socket.create_connection(self.place, timeout=BOUND)

    def head(self, *lines: bytes, method: bytes = b"POST", version: bytes = b"HTTP/1.1") -> bytes:
        """Return the head of a request to the path of the run, the last of its connection."""
        first = b" ".join((method, self.path, version))
        return b"\r\n".join((first, b"Host: localhost", b"Connection: close", *lines, b"", b""))

    def post(self, number: int) -> bytes:
        """Return a whole request with the event of this number."""
        body = event(number)
        return self.head(b"Content-Length: %d" % len(body)) + body

    def talk(self, *pieces: bytes, ends: bool = False) -> bytes:
        """Send pieces, say with `ends` that nothing follows, and return all that comes until the end."""
        with self.open() as connection:
            for piece in pieces:
                connection.sendall(piece)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(MEGABYTE), b""))

    def status(self, *pieces: bytes, ends: bool = False) -> int:
        said = self.talk(*pieces, ends=ends)
        assert said.count(b"Connection: close") == 1, said
        return status_of(said)


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer.split(b" ", 2)[1])


def event(number: int) -> bytes:
    return json.dumps(EVENT | {"subagentRunId": f"run-{number}"}).encode()


def with_payload(port: Port, payload: bytes) -> bytes:
    """Return a whole request with an event of this payload."""
    body = event(0)[:-1] + b', "payload": ' + payload + b"}"
    return port.head(b"Content-Length: %d" % len(body)) + body


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world that all tests of this module share."""
    made = World(tmp_path_factory.mktemp("port"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def run_id(world: World) -> str:
    """A run that has written the address of its port into a file, and now asks."""
    return world.asking_run(
        shell("printenv SUBAGENT_LOGGING_ADDRESS > address"), asks("Go on?"), says("Done.")
    )


@pytest.fixture(scope="module")
def port(world: World, run_id: str) -> Port:
    return Port((world.work / "address").read_text(encoding="ascii").strip())


REFUSED: dict[str, tuple[int, Callable[[Port], bytes]]] = {
    "a long header": (431, lambda port: port.head(b"X: " + b"x" * 500_000)),
    "many headers": (431, lambda port: port.head(*(b"X%d: y" % n for n in range(5_000)))),
    "an endless target": (414, lambda port: b"POST /" + b"x" * 500_000),
    "no HTTP": (400, lambda port: b"\x00\xff\r\n\r\n"),
    "HTTP/2": (505, lambda port: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "TLS": (400, lambda port: bytes.fromhex("1603010200010001fc0303") + b"\0" * 512 + b"\n"),
    "a name with a blank": (400, lambda port: port.head(b"Content-Length : 2") + b"{}"),
    "no body": (400, lambda port: port.head()),
    "two lengths": (400, lambda port: port.head(b"Content-Length: 2", b"Content-Length: 3") + b"{}"),
    "a length below zero": (400, lambda port: port.head(b"Content-Length: -2") + b"{}"),
    "a length with a sign": (400, lambda port: port.head(b"Content-Length: +2") + b"{}"),
    "a length of a terabyte": (413, lambda port: port.head(b"Content-Length: 1099511627776")),
    "a length of many digits": (413, lambda port: port.head(b"Content-Length: " + b"9" * 60_000)),
    "another encoding": (
        400,
        lambda port: port.head(b"Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
    ),
    "a body of another kind": (400, lambda port: port.head(b"Content-Length: 2") + b"[]"),
    "an event with NaN": (400, lambda port: with_payload(port, b"NaN")),
    "an event with a number beyond a float": (400, lambda port: with_payload(port, b'{"x": [1e999]}')),
    "a body that is too long": (413, lambda port: with_payload(port, b'"' + b"x" * 300_000 + b'"')),
    "an event of no kind": (400, lambda port: port.head(b"Content-Length: %d" % len(OTHER)) + OTHER),
    "PUT": (405, lambda port: port.head(method=b"PUT")),
    "GET": (405, lambda port: port.head(method=b"GET")),
    "CONNECT": (405, lambda port: port.head(method=b"CONNECT")),
    "a page": (403, lambda port: port.head(b"Origin: null")),
    "a page of a rebound name": (403, lambda port: port.head().replace(b"localhost", b"rebound.example:80")),
    "the port of another run": (404, lambda port: port.head().replace(b" /", b" /x", 1)),
    "another path": (404, lambda port: b"POST /subagent-events HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


def test_every_wrong_request_gets_its_status_and_no_event(world: World, run_id: str, port: Port) -> None:
    events = len(world.events(run_id, "subagent_event"))
    answered: dict[str, int] = {}
    for name, (_, request) in REFUSED.items():
        with port.open() as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # the answer may come before all is sent
                connection.sendall(request(port))
            answered[name] = status_of(connection.recv(4096))
    assert answered == {name: status for name, (status, _) in REFUSED.items()}
    assert len(world.events(run_id, "subagent_event")) == events


def test_a_client_that_stops_in_the_middle_is_refused(world: World, run_id: str, port: Port) -> None:
    begun = {
        "length": port.head(b"Content-Length: 1000") + b"{",
        "head": port.head()[:-2],
    }
    assert {name: port.status(part, ends=True) for name, part in begun.items()} == dict.fromkeys(begun, 400)
    assert port.talk(ends=True) == b"", "nothing is said to a client that says nothing"
    assert recorded(world, run_id, {"run-0"}) == []


@pytest.mark.race
def test_requests_that_come_together_are_answered_once_and_the_first_alone_is_recorded(
    world: World, run_id: str, port: Port
) -> None:
    assert port.status(port.post(1) + port.post(2)) == 200
    assert port.status(port.post(3), port.post(4) * 1_000) == 200
    assert recorded(world, run_id, {"run-1", "run-2", "run-3", "run-4"}) == ["run-1", "run-3"]


def test_every_way_to_send_a_body_is_taken(world: World, run_id: str, port: Port) -> None:
    body = event(11)
    length = b"Content-Length: %d" % len(body)
    assert port.status(port.head(length, version=b"HTTP/1.0") + body) == 200
    assert port.status(port.head(length, length) + body) == 200, "one length, said twice"
    assert port.status(*(bytes([byte]) for byte in port.head(length) + body)) == 200
    said = port.talk(port.head(length, b"Expect: 100-continue"), body)
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert recorded(world, run_id, {"run-11"}) == ["run-11"] * 4


def test_an_answer_to_head_has_no_body_and_every_answer_is_the_last(port: Port) -> None:
    head = port.talk(port.head(method=b"HEAD"))
    assert head.startswith(b"HTTP/1.1 405 ") and head.endswith(b"\r\n\r\n") and b"Allow: POST" in head
    said = port.talk(port.post(21))
    assert b"Connection: close" in said and json.loads(said.partition(b"\r\n\r\n")[2]) == {
        "status": "recorded"
    }


def test_slow_clients_are_cut_off_at_the_deadline_and_keep_nobody_out(
    world: World, run_id: str, port: Port
) -> None:
    slow = [port.open() for _ in range(40)]
    for number, connection in enumerate(slow):
        connection.sendall(port.post(31)[: 40 + number])
    assert port.status(port.post(32)) == 200
    named = port.open()
    named.sendall(port.head(b"Content-Length: 1000") + b"{")
    named.settimeout(DEADLINE_SECONDS + BOUND)
    assert named.recv(1) == b"", "it has named the path, and is cut off all the same"
    for connection in (*slow, named):
        connection.close()
    assert recorded(world, run_id, {"run-31", "run-32"}) == ["run-32"]


def test_the_run_goes_on_after_all_that_and_its_end_closes_the_port(
    world: World, run_id: str, port: Port
) -> None:
    waiting = port.open()
    world.reply(run_id, "yes")
    assert world.completed_and_gone(run_id) == "Done."
    with pytest.raises(ConnectionRefusedError):
        port.open()
    waiting.close()
    printed = world.paths(run_id).worker_out.path
    assert not printed.exists() or "Traceback" not in printed.read_text(encoding="utf-8")


def recorded(world: World, run_id: str, names: set[str]) -> list[str]:
    """Return which of these foreign runs the journal has events of, in its order."""
    ids = [event["subagentRunId"] for event in world.events(run_id, "subagent_event")]
    return [name for name in ids if name in names]


def test_who_talks_too_much_is_cut_short_and_that_is_counted() -> None:
    recorded: list[dict[str, object]] = []
    moment = 0.0
    journal = SubagentJournal(lambda _, **facts: recorded.append(facts), lambda: moment)
    for _ in range(BURST + 30):
        journal.write({"event": "text"})
    assert len(recorded) == BURST
    moment += 1
    journal.write({"event": "last"})
    assert recorded[BURST:] == [{"event": "events_left_out", "count": 30}, {"event": "last"}]
