"""A server on a Unix socket: for programs of this user alone, which need no token."""

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run.errors import SubagentError
from subagent_server.server.sockets import listen_on_path
from tests.helpers.forked import PROGRAM, popen
from tests.helpers.http_server import ACCEPT, BOUND
from tests.helpers.raw_server import HELLO
from tests.helpers.wait import wait_for
from tests.helpers.world import World

ORIGIN = "http://127.0.0.1:8101"


@contextmanager
def served(world: World, place: Path, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server on a socket, and kill it at the end."""
    command = [*PROGRAM, "serve", "--http", "--unix", str(place), *flags]
    with (world.home / "unix.err").open("wb") as errors:
        process = popen(command, world.environment, cwd=world.work, stderr=errors)
    try:
        wait_for(lambda: answers(place), 60, "the server on its socket")
        yield process
    finally:
        process.kill()
        process.wait(60)


def ask(place: Path, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Return status and JSON of the answer to a request, which has no token."""
    connection = HTTPConnection("127.0.0.1:8101")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(BOUND)
    sent = {"Accept": ACCEPT, "Content-Type": "application/json", "Origin": ORIGIN, **headers}
    try:
        connection.sock.connect(str(place))
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data.startswith(b"{") else None
    finally:
        connection.close()


def answers(place: Path) -> bool:
    try:
        return ask(place, "GET", "/healthz")[0] == 200
    except OSError:
        return False


def test_a_unix_socket_is_for_this_user_alone_and_goes_with_its_server(world: World) -> None:
    place = world.home / "private" / "http.sock"
    with served(world, place):
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert "listens" in world.refused("serve", "--unix", str(place))
    assert place.exists(), "a killed server leaves its socket behind"
    with served(world, place) as process:
        process.terminate()
        assert process.wait(10) == 0 and not place.exists()


@pytest.mark.race
def test_of_servers_that_start_at_once_where_one_was_killed_one_listens(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    def listens(place: Path) -> socket.socket | None:
        try:
            return listen_on_path(place)
        except SubagentError:
            return None

    with ThreadPoolExecutor(4) as threads:
        for number in range(200):
            place = tmp_path / str(number)
            with socket.socket(socket.AF_UNIX) as killed:
                killed.bind(str(place))
            listeners = [each for each in threads.map(listens, [place] * 4) if each is not None]
            for each in listeners:
                each.close()
            assert len(listeners) == 1


def test_mcp_and_the_page_need_no_token_there(world: World) -> None:
    world.agent()
    place = world.home / "private" / "http.sock"
    with served(world, place):
        assert ask(place, "POST", "/mcp", HELLO)[0] == 200
        assert ask(place, "GET", "/page/costs")[0] == 401, "a browser has its session all the same"
        given = world.cli("page", "--json")
        link = json.loads(given.stdout)["link"]
        assert link.startswith(f"{ORIGIN}/#code=")
        status, session = ask(place, "POST", "/page/session", {"code": link.rpartition("=")[2]})
        assert status == 200
        known = {"Authorization": f"Bearer {session['secret']}"}
        assert ask(place, "GET", "/page/costs", None, **known)[0] == 200
        said = world.cli("page").stderr
        assert f"ssh -N -L 8101:{place} HOST" in said
        assert ask(place, "GET", "/nothing", None, Host="evil.example")[0] == 421


def test_with_a_token_file_its_tokens_are_needed(world: World) -> None:
    tokens, place = world.home / "tokens", world.home / "private" / "http.sock"
    tokens.write_text("alice alices-own-secret-token\n")
    tokens.chmod(0o600)
    with served(world, place, "--token-file", str(tokens)):
        assert ask(place, "GET", "/nothing")[0] == 401
        known = {"Authorization": "Bearer alices-own-secret-token"}
        assert ask(place, "GET", "/nothing", None, **known)[0] == 404


def test_a_program_in_a_box_is_not_heard_although_it_is_of_the_same_user(world: World) -> None:
    place = world.home / "private" / "http.sock"
    program = f"""
import socket
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(30)
peer.connect({str(place)!r})
try:
    peer.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    print(len(peer.recv(100)))
except ConnectionError:
    print(0)
"""
    box = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    with served(world, place):
        for before, heard in ((box, False), ([], True)):
            done = subprocess.run(
                [*before, sys.executable, "-c", program], capture_output=True, text=True, timeout=60
            )
            assert (done.stdout != "0\n", done.stderr) == (heard, "")


def _link(place: Path) -> None:
    place.symlink_to("elsewhere")


def _file(place: Path) -> None:
    place.write_text("kept")


def _linked_directory(place: Path) -> None:
    place.parent.rmdir()
    elsewhere = place.parent.with_name("elsewhere")
    elsewhere.mkdir(0o700)
    place.parent.symlink_to(elsewhere)


def _open_directory(place: Path) -> None:
    place.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (_link, "is no socket of yours"),
        (_file, "is no socket of yours"),
        (_linked_directory, "is a link, another user's, or others"),
        (_open_directory, "others may enter it"),
    ],
)
def test_what_a_repository_planted_at_the_path_is_refused_in_a_sentence(
    world: World, plant: Callable[[Path], None], why: str
) -> None:
    place = world.home / "private" / "http.sock"
    place.parent.mkdir(0o700)
    plant(place)
    assert why in world.refused("serve", "--unix", str(place))
    assert not (world.home / "elsewhere" / "http.sock").exists()
    assert plant is not _file or place.read_text() == "kept"


def test_a_listener_that_accepts_nothing_is_no_reason_to_wait(world: World) -> None:
    place = world.home / "private" / "http.sock"
    place.parent.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as planted, socket.socket(socket.AF_UNIX) as first:
        planted.bind(str(place))
        planted.listen(0)
        first.connect(str(place))
        assert "listens" in world.refused("serve", "--unix", str(place))
