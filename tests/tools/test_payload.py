"""Payloads over HTTP: passed on as they are stored, to whoever may see the run and takes gzip."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.run import transitions
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.server.http import takes_gzip
from subagent_server.settings import read_settings
from subagent_server.verbs.end_run import NoPayload, open_payload
from subagent_server.verbs.service import open_service
from tests.helpers.http_server import HttpServer, Reply
from tests.helpers.mcp_client import Parent
from tests.helpers.runs import RUN_ID, STARTED, T0, start_run
from tests.helpers.turns import asks, says
from tests.helpers.world import API_KEY, World

PAYLOAD = "".join(chr(32 + (n * n) % 90) for n in range(1 << 10)).replace("\\", "é") * (4 << 10)
"""More than a request has in memory."""


def completed(world: World, parent: Parent, payload: str | None) -> str:
    """Start an agent, complete it from outside with this payload, and return its id."""
    agent_id: str = parent.call("agent_start", contract="Count.")["agent_id"]
    world.asking(agent_id)
    given = {} if payload is None else {"payload": payload}
    parent.call("agent_complete", agent_id=agent_id, summary="Done.", **given)
    return agent_id


def get(server: HttpServer, agent_id: str, coding: str = "gzip", **headers: str) -> Reply:
    """Ask for the payload of an agent."""
    return server.ask("GET", f"/api/agents/{agent_id}/payload", Accept_Encoding=coding, **headers)


def test_a_payload_is_passed_on_as_it_is_stored(world: World) -> None:
    world.play(asks("Shall I?"), says("Done."))
    with world.http_server() as server, server.parent(mode="legacy") as parent:
        agent_id = completed(world, parent, f"{PAYLOAD} {API_KEY}")
        (shown,) = parent.call("agent_status", agent_ids=[agent_id])["result"]
        assert shown["payload_url"] == f"http://127.0.0.1:{server.port}/api/agents/{agent_id}/payload"
        assert shown["payload_size"] == len(f"{PAYLOAD} ***".encode())
        whole = get(server, agent_id)
        assert (whole.status, whole.headers["content-encoding"]) == (200, "gzip")
        assert whole.body == world.paths(agent_id).payload.path.read_bytes()
        assert gzip.decompress(whole.body).decode() == f"{PAYLOAD} ***", "without secrets"
        assert get(server, agent_id, Range="bytes=0-9").body == whole.body, "a range is ignored"
        known = get(server, agent_id, If_None_Match=f'"old", W/{whole.headers["etag"]}')
        assert (known.status, known.body, known.headers["etag"]) == (304, b"", whole.headers["etag"])
        assert get(server, agent_id, If_None_Match='"old"').status == 200
        refused = get(server, agent_id, "gzip;q=0, br, identity")
        assert refused.status == 406 and "Accept-Encoding: gzip" in refused.json["error"]
        head = server.ask("HEAD", f"/api/agents/{agent_id}/payload", Accept_Encoding="gzip")
        assert (head.status, head.headers["content-length"]) == (200, str(len(whole.body)))
        without = server.ask("GET", f"/api/agents/{agent_id}/payload", token=None, Accept_Encoding="gzip")
        assert without.status == 401


def test_what_is_not_there_is_404_with_the_reason(world: World) -> None:
    world.play(asks("Shall I?"), says("Done."))
    with world.http_server() as server, server.parent() as parent:
        for agent_id in ("20990101-000000-000-aaaaaa", "..", "%2e%2e%2f%2e%2e", "x" * 5_000, "a%00b"):
            answer = get(server, agent_id)
            assert answer.status == 404 and len(answer.body) < 1_000
        agent_id = completed(world, parent, None)
        assert "has no payload" in get(server, agent_id).json["error"]
        world.paths(agent_id).payload.path.write_bytes(gzip.compress(b"planted"))
        assert get(server, agent_id).status == 404, "the state names no payload"


def link(payload: Path) -> None:
    """Put a link to a file of the user in place of a payload."""
    secret = payload.parent.parent.parent / "secret.gz"
    secret.write_bytes(gzip.compress(b"secret"))
    payload.symlink_to(secret)


def text(payload: Path) -> None:
    """Put a page in place of a payload."""
    payload.write_bytes(b"<script>not packed</script>")


def huge(payload: Path) -> None:
    """Put a file of a tebibyte, with nothing in it, in place of a payload."""
    payload.touch()
    os.truncate(payload, 1 << 40)


@pytest.mark.parametrize("plant", [link, os.mkfifo, text, huge])
def test_what_a_run_has_put_in_place_of_its_payload_is_not_passed_on(
    store: RunStore, tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    start_run(store, RUN_ID, STARTED)
    done = RunResult(outcome=Status.COMPLETED, text="Done.")
    store.update(RUN_ID, transitions.Finished(summary="Done."), T0, result=done, payload=b"all of it")
    service = open_service(read_settings(runs=store.paths.root, environment={}, cwd=tmp_path))
    stored = open_payload(service, RUN_ID)
    with stored.file as file:
        assert gzip.decompress(file.read(stored.size)) == b"all of it"
    payload = store.paths.run(RUN_ID).payload.path
    payload.unlink()
    plant(payload)
    with pytest.raises(NoPayload, match="cannot be read"):
        open_payload(service, RUN_ID)


@pytest.mark.parametrize(
    ("headers", "takes"),
    [
        (["gzip"], True),
        (["br, GZIP ; q=0.5"], True),
        (["*"], True),
        (["*;q=0.1", "gzip;q=0"], False),
        (["gzip;q=0.000"], False),
        (["identity"], False),
        (["gzipped"], False),
        ([], False),
        ([";;=,,q=" * 10_000], False),
    ],
)
def test_a_client_takes_gzip_only_if_it_says_so(headers: list[str], takes: bool) -> None:
    assert takes_gzip(headers) is takes
