"""Who may come in over HTTP: tokens in a file, made at the first start, and counted as they are now."""

import json
import socket
import stat

import pytest

from tests.helpers.http_server import HttpServer, free_port
from tests.helpers.turns import asks, says
from tests.helpers.world import World


def allowed(server: HttpServer, token: str) -> bool:
    return server.ask("GET", "/nothing", token=None, Authorization=f"Bearer {token}").status == 404


def test_two_servers_that_start_first_at_once_make_one_token_which_nobody_else_reads(world: World) -> None:
    with world.http_server() as one, world.http_server() as other:
        file = world.home / ".local" / "state" / "subagent" / "http-tokens"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        token = one.token()
        assert len(token) >= 32 and allowed(one, token) and allowed(other, token)
        assert token not in one.said
        assert f"{file}; `subagent init CLIENT --http {one.url}` writes it." in one.said


def test_a_line_that_is_removed_and_a_file_that_is_opened_to_others_count_at_once(world: World) -> None:
    file = world.home / "tokens"
    file.write_text("# ours\nalice alices-own-secret-token\nbob bobs-very-own-secret-token\n")
    file.chmod(0o600)
    with world.http_server("--token-file", str(file)) as server:
        assert allowed(server, "alices-own-secret-token") and allowed(server, "bobs-very-own-secret-token")
        file.write_text("bob bobs-very-own-secret-token\n")
        assert not allowed(server, "alices-own-secret-token")
        assert allowed(server, "bobs-very-own-secret-token")
        file.chmod(0o644)
        assert not allowed(server, "bobs-very-own-secret-token")
        assert not allowed(server, "nobodys-token-is-a-stranger")
        assert server.said.count("others may read it") == 1 and "bobs-very" not in server.said
        assert "init CLIENT" not in server.said, "it writes into another file"


def test_without_tokens_the_log_and_the_doctor_say_what_is_open(world: World) -> None:
    world.agent()
    with world.http_server("--no-token") as server:
        answer = server.ask("GET", "/nothing", token=None)
        assert answer.status == 404
        assert server.ask("GET", "/nothing", token=None, Host="evil.example").status == 421
        opened = "Every program of this machine may start agents with your rights"
        assert opened in server.said
        said = world.cli("doctor").stderr
        assert f"HTTP: the server with the pid {server.pid} runs with --no-token. {opened}" in said
        found = json.loads(world.cli("doctor", "--json").stdout)
        assert server.pid in found["serversWithoutToken"]  # those of other tests are found, too


BAD_FILES = {
    "": "names no parent",
    "alice short\n": "line 1: the token has fewer than 16",
    "a b c\n": "line 1 is not a name and a token",
    "x aaaaaaaaaaaaaaaaaaaa\nx bbbbbbbbbbbbbbbbbbbb\n": "line 2 repeats",
    "\udcff\n": "line 1 is not a name and a token",
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_a_token_file_that_cannot_be_meant_is_refused(world: World, content: str) -> None:
    file = world.home / "tokens"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    file.chmod(0o600)
    said = world.refused("serve", "--http", f"127.0.0.1:{free_port()}", "--token-file", str(file))
    assert BAD_FILES[content] in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--http", "0.0.0.0:0"), "name a --token-file"),
        (("--http", "0.0.0.0:0", "--no-token"), "--no-token is for this machine only"),
        (("--http", "8101"), "is no HOST:PORT"),
        (("--http", "127.0.0.1:99999"), "is no HOST:PORT"),
        (("--http", f"127.0.0.1:{'9' * 5000}"), "is no HOST:PORT"),
        (("--http", "no.such.host.invalid:80", "--token-file", "/nothing"), "cannot be used"),
        (("--http", "127.0.0.1:1", "--unix", "x"), "name one"),
        (("--no-token",), "are for --http and --unix"),
        (("--http", "--no-token", "--token-file", "x"), "exclude each other"),
        (("--unix", "/tmp/http.sock"), "name a socket in a directory of your own"),
    ],
)
def test_a_door_that_cannot_be_opened_is_refused_in_a_sentence(
    world: World, words: tuple[str, ...], sentence: str
) -> None:
    assert sentence in world.refused("serve", *words)


def test_a_port_that_is_taken_is_refused_with_the_flag_for_another(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusal = world.refused("serve", "--http", "{}:{}".format(*taken.getsockname()))
    assert refusal.endswith("(Address already in use): name another by --http or --unix.\n")


def test_a_run_opens_no_door(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    words = ("serve", "--http", f"127.0.0.1:{free_port()}")
    assert "is a subagent" in world.refused(*words, env=world.given_to(run_id))
