"""Who may open the page: a browser with a one-time code, and no request of another origin, port or user."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import subagent_server
from subagent_server.run import processes
from subagent_server.verbs.access_tokens import CODE_SECONDS, MAX_SESSIONS, PageAccess, PageServer
from tests.helpers.forked import PROGRAM, popen
from tests.helpers.http_server import HttpServer, Reply
from tests.helpers.runs import RUN_ID, make_meta, make_request
from tests.helpers.stored import make_stored
from tests.helpers.turns import asks, says
from tests.helpers.world import World


def code_of(world: World) -> str:
    """Return a code as `subagent page` gives it."""
    link: str = json.loads(world.cli("page", "--json").stdout)["link"]
    return link.rpartition("#code=")[2]


def post(server: HttpServer, path: str, body: dict[str, Any], secret: str = "", **headers: str) -> Reply:
    """Send a change as the page does."""
    sent = {"Origin": f"http://127.0.0.1:{server.port}", "Content-Type": "application/json", **headers}
    sent = {name: value for name, value in sent.items() if value}
    return server.ask(
        "POST", path, json.dumps(body).encode(), token=None, Authorization=f"Bearer {secret}", **sent
    )


def get(server: HttpServer, path: str, secret: str, **headers: str) -> Reply:
    """Read as the page does."""
    return server.ask("GET", path, token=None, Authorization=f"Bearer {secret}", **headers)


def entered(world: World, server: HttpServer) -> str:
    """Return the secret of a new session."""
    answer = post(server, "/page/session", {"code": code_of(world)})
    assert answer.status == 200
    return str(answer.json["secret"])


def here() -> PageServer:
    return PageServer("http://127.0.0.1:1", "/runs", processes.this_process())


def knocked(server: HttpServer, knock: str) -> Reply:
    """Ask a server to prove that it has made the session with this knock."""
    return server.ask("GET", "/page/server", token=None, Subagent_Knock=knock)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, HttpServer]]:
    """One server for the tests that leave it as it is, whose agent asks and then is done."""
    world = World(tmp_path_factory.mktemp("page"))
    world.agent_saying(asks("Merge?", "yes", "no"), says("done"))
    with world.http_server() as server:
        yield world, server
    world.close()


def test_a_code_opens_the_page_once_and_the_session_ends_with_the_server(world: World) -> None:
    world.agent()
    with world.http_server() as server:
        code = code_of(world)
        first = post(server, "/page/session", {"code": code})
        again = post(server, "/page/session", {"code": code})
        assert (first.status, again.status) == (200, 401)
        assert "run `subagent page` again" in again.json["error"]
        secret, knock = first.json["secret"], first.json["knock"]
        assert get(server, "/page/costs", secret).status == 200
        assert knocked(server, knock).json == {"proof": first.json["proof"]}
        assert knocked(server, secret).status == knocked(server, "").status == 401
        assert get(server, "/page/costs", knock).status == 401
        unused, port = code_of(world), server.port
    with world.http_server(port=port) as server:
        for word in (knock, first.json["proof"], secret):  # who takes the port learns nothing that opens it
            assert get(server, "/page/costs", word).status == knocked(server, word).status == 401
        assert post(server, "/page/session", {"code": unused}).status == 401, "a code is for one process"
    state = world.home / ".local" / "state" / "subagent"
    kept = [f"{path.name} {path.read_text()}" for path in state.rglob("*") if path.is_file()]
    assert not [text for text in kept if secret in text or knock in text or first.json["proof"] in text]


def test_a_code_is_of_no_use_when_it_is_old_or_of_another_process(tmp_path: Path) -> None:
    access = PageAccess(tmp_path / "page")
    code, other = access.new_code(here()), access.new_code(here())
    for path in (tmp_path / "page").iterdir():
        os.utime(path, (path.stat().st_mtime - CODE_SECONDS - 1,) * 2)
    assert access.redeem(code) is None and access.redeem(other) is None
    before = replace(here().process, start_time=here().process.start_time - 1)
    assert access.redeem(access.new_code(replace(here(), process=before))) is None
    assert access.redeem(access.new_code(here())) is not None


def test_a_server_is_seen_whenever_somebody_looks_while_it_announces_itself(tmp_path: Path) -> None:
    access = PageAccess(tmp_path / "page")

    def announce(times: int) -> None:
        for _ in range(times):
            access.announce(here().address, here().root)

    announce(1)
    with ThreadPoolExecutor(1) as other:
        announcing = other.submit(announce, 200)
        while not announcing.done():
            assert access.servers() == [here()]


def test_the_oldest_browser_is_forgotten_when_there_are_too_many(tmp_path: Path) -> None:
    access = PageAccess(tmp_path / "page")
    sessions = [access.redeem(access.new_code(here())) for _ in range(MAX_SESSIONS + 1)]
    known = [session is not None and access.knows(session.secret.encode()) for session in sessions]
    assert known == [False] + [True] * MAX_SESSIONS


def test_without_a_session_nothing_of_a_run_is_told(shared: tuple[World, HttpServer]) -> None:
    _, server = shared
    asked: list[tuple[str, dict[str, str]]] = [
        ("/page/costs", {}),  # the token of a parent opens no page
        ("/page/events", {"Authorization": "Bearer wrong"}),
        ("/page/runs/x", {"Authorization": "Basic wrong"}),
        ("/page/runs/x/files/%2e%2e", {"Cookie": "session=wrong"}),
    ]
    for path, headers in asked:
        refused = server.ask("GET", path, **headers)
        assert refused.status == 401 and b"subagent page" in refused.body, path


def test_a_change_comes_from_the_page_itself_or_does_nothing(shared: tuple[World, HttpServer]) -> None:
    world, server = shared
    run_id = world.start_asking()
    secret = entered(world, server)
    foreign = [
        ({"Origin": ""}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ]
    for headers, status in foreign:
        refused = post(server, f"/page/runs/{run_id}/reply", {"answer": "yes"}, secret, **headers)
        assert refused.status == status, headers
        assert world.meta(run_id).pending_questions == 1
    answered = post(server, f"/page/runs/{run_id}/reply", {"answer": "yes"}, secret)
    assert answered.status == 200
    assert world.completed(run_id) == "done"
    assert world.meta(run_id).messages[0].answered_by == "page"


def test_under_a_foreign_name_and_for_foreign_pages_nothing_is_served(
    shared: tuple[World, HttpServer],
) -> None:
    world, server = shared
    secret = entered(world, server)
    there, elsewhere = f"evil.example:{server.port}", f"http://127.0.0.1:{server.port + 1}"
    for path in ("/", "/page/static/main.js", "/page/costs", "/page/older?before=x"):
        assert get(server, path, secret, Host=there).status == 421
        foreign = get(server, path, secret, Origin="http://evil.example")
        asked = server.ask("OPTIONS", path, None, None, Origin=elsewhere, Authorization=f"Bearer {secret}")
        for answer in (foreign, asked):
            assert answer.status == 403, "no other page may read it"
            assert not [name for name in answer.headers if name.startswith("access-control-allow")]


def test_a_change_is_no_reading_and_a_session_is_needed_for_it_too(shared: tuple[World, HttpServer]) -> None:
    world, server = shared
    run_id = world.start_asking()
    secret = entered(world, server)
    for verb in ("reply", "stop", "continue", "rerun"):
        path = f"/page/runs/{run_id}/{verb}"
        assert post(server, path, {"answer": "yes", "prompt": "x"}, "x" * 43).status == 401
        assert get(server, path, secret).status == 405, "a link or an image must not change anything"
    assert post(server, f"/page/runs/{run_id}/stop", {}, secret[:-1]).status == 401
    assert world.meta(run_id).pending_questions == 1 and world.store.run_ids()[0] == run_id


def test_a_run_that_is_started_on_the_page_is_of_the_page(shared: tuple[World, HttpServer]) -> None:
    world, server = shared
    secret, ended = entered(world, server), world.start_asking()
    world.stop(ended)
    for verb, fields in (("rerun", {}), ("continue", {"prompt": "x"})):
        run_id = post(server, f"/page/runs/{ended}/{verb}", fields, secret).json["runId"]
        starter = world.meta(run_id).started_by
        world.stop(run_id)
        assert starter is not None and starter.client == "page"


def test_of_two_browsers_with_one_link_one_enters(tmp_path: Path) -> None:
    access = PageAccess(tmp_path / "page")
    code = access.new_code(here())
    with ThreadPoolExecutor(8) as browsers:
        sessions = list(browsers.map(lambda _: access.redeem(code), range(16)))
    assert len([session for session in sessions if session is not None]) == 1


def test_a_directory_of_codes_that_another_user_could_have_made_is_not_used(world: World) -> None:
    kept, elsewhere = world.home / ".local" / "state" / "subagent" / "page", world.home / "elsewhere"
    PageAccess(kept).announce("http://127.0.0.1:1", str(world.runs))
    shutil.move(kept, elsewhere)
    kept.symlink_to(elsewhere)
    assert "cannot be used" in world.refused("page", "--no-open")
    kept.unlink()
    shutil.copytree(elsewhere, kept)
    kept.chmod(0o777)
    assert "cannot be used" in world.refused("page", "--no-open")


def test_what_a_verb_refuses_is_its_sentence(shared: tuple[World, HttpServer]) -> None:
    world, server = shared
    secret = entered(world, server)
    unknown = get(server, "/page/runs/nobody", secret)
    assert unknown.status == 404 and "There is no run 'nobody'" in unknown.json["error"]
    assert "`subagent ls`" in unknown.json["error"]  # a person has commands, not tools
    assert post(server, "/page/runs/..%2f..%2fetc/stop", {}, secret).status == 404
    world.store.create(make_request(scripted=True))
    world.store.publish(make_meta())
    paid = post(server, f"/page/runs/{RUN_ID}/rerun", {}, secret)
    assert paid.status == 400 and "a real model is not called by mistake" in paid.json["error"]
    half = post(server, "/page/runs/nobody/continue", {"prompt": "\ud83d"}, secret)
    assert half.status == 400 and "'prompt' holds half a character" in half.json["error"]


def test_a_run_in_a_root_whose_name_is_no_text_is_shown(world: World) -> None:
    odd = world.runs.with_name(os.fsdecode(b"caf\xe9"))
    try:
        (run_id,) = make_stored(odd, 1)
    except OSError:
        pytest.skip("this file system has names of UTF-8 only")
    world.environment["SUBAGENT_RUNS"] = str(odd)
    with world.http_server() as server:
        shown = get(server, f"/page/runs/{run_id}", entered(world, server))
    assert shown.status == 200 and shown.json["view"]["runId"] == run_id


def test_the_page_itself_forbids_foreign_and_inline_scripts(shared: tuple[World, HttpServer]) -> None:
    _, server = shared
    page = server.ask("GET", "/", token=None)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert b"<script>" not in page.body and b"style=" not in page.body and b" on" not in page.body
    for name in ("main.js", "style.css"):
        assert server.ask("GET", f"/page/static/{name}", token=None).status == 200
    assert server.ask("GET", "/page/static/..%2froutes.py", token=None).status == 404


def test_the_page_of_a_server_stays_its_own_while_another_version_is_installed(world: World) -> None:
    package = world.home / "installed" / "subagent_server"
    shutil.copytree(Path(subagent_server.__file__).parent, package)
    world.environment["PYTHONPATH"] = str(package.parent)
    with world.http_server() as server:
        before = [server.ask("GET", path, token=None) for path in ("/", "/page/static/main.js")]
        shutil.rmtree(package / "server" / "page" / "static")
        for path, reply in zip(("/", "/page/static/main.js"), before, strict=True):
            answer = server.ask("GET", path, token=None)
            assert (reply.status, reply.body) == (200, answer.body) and answer.status == 200


def test_without_a_server_the_command_serves_the_page_itself_until_ctrl_c(world: World) -> None:
    environment = world.environment
    with (
        world.http_server() as server,
        popen(
            [*PROGRAM, "--runs", "other", "page", "--no-open"],
            environment,
            cwd=world.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as command,
    ):
        assert command.stdout is not None
        link = command.stdout.readline().decode().strip()
        address, _, code = link.partition("/#code=")
        assert str(server.port) not in address, "that one shows other runs"
        own = HttpServer([], environment, world.work, world.errors, int(address.rpartition(":")[2]))
        assert post(own, "/page/session", {"code": code}).status == 200
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=60)
        assert command.returncode == 0 and b"until Ctrl-C; the runs continue." in said


def test_a_program_gets_a_link_to_a_living_server_only(
    world: World, shared: tuple[World, HttpServer]
) -> None:
    there, server = shared
    assert f"http://127.0.0.1:{server.port}/#code=" in there.cli("page", "--no-open").stdout
    assert "Open this link" in there.cli("page", env={"BROWSER": "'%s"}).stderr
    assert "subagent serve --http" in world.refused("page", "--json")
