"""Runs as resources: what is listed, what is read, and what is refused (SPEC section 5)."""

import json
from typing import Any

import pytest

from subagent_server.run import transitions, wake
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from tests.helpers.runs import RUN_ID, STARTED, T0, start_run
from tests.helpers.turns import asks, says
from tests.helpers.world import World
from tests.server.listening import ERAS, Era, Listener

INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603


def listed(client: Listener) -> dict[str, dict[str, Any]]:
    """Return the resources by their URIs."""
    resources = client.ask("resources/list")["resources"]
    return {resource["uri"]: resource for resource in resources}


def made_by_hand(world: World, run_id: str = RUN_ID, *, live: bool = False, **facts: Any) -> None:
    """Make a run that nobody works on."""
    start_run(world.store, run_id, **facts)
    if not live:
        wake.retire(world.paths(run_id))
    world.abandoned.add(run_id)


@pytest.mark.parametrize("era", ERAS)
def test_a_run_offers_its_state_its_log_and_its_result(world: World, era: Era) -> None:
    world.agent_saying(says("All is well.\nReally."))
    run_id = world.start("Look.", label="nightly")
    world.completed_and_gone(run_id)
    with Listener(world, era) as client:
        resources = listed(client)
        assert [uri.rsplit("/", 1)[-1] for uri in resources] == ["meta", "log", "result"]
        for uri, resource in resources.items():
            assert uri.startswith(f"run://{run_id}/")
            assert resource["title"].startswith("worker nightly: ") and resource["name"]
            (content,) = client.ask("resources/read", uri=uri)["contents"]
            assert content["mimeType"] == resource["mimeType"] and content["uri"] == uri
        state = json.loads(client.read(f"run://{run_id}/meta"))
        assert state["status"] == "completed" and state["label"] == "nightly"
        stored = json.loads(world.paths(run_id).meta.path.read_bytes())
        assert state == {key: value for key, value in stored.items() if key != "childTokenHash"}
        log = client.read(f"run://{run_id}/log")
        assert log == world.paths(run_id).log.path.read_text(encoding="utf-8") and "Really." in log
        assert client.read(f"run://{run_id}/result") == "All is well.\nReally."
        templates = client.ask("resources/templates/list")["resourceTemplates"]
        assert [t["uriTemplate"].rsplit("/", 1)[-1] for t in templates] == ["meta", "log", "result"]
        assert all(t["uriTemplate"].startswith("run://{runId}/") and t["title"] for t in templates)


def test_what_never_changes_again_may_be_kept_and_a_structured_result_is_json(world: World) -> None:
    made_by_hand(world)
    result = RunResult(outcome=Status.COMPLETED, text="", output={"verdict": "good"})
    world.store.update(RUN_ID, STARTED, T0)
    world.store.update(RUN_ID, transitions.Finished(summary="Good."), T0, result=result)
    with Listener(world, "modern") as client:
        kept = {
            kind: client.ask("resources/read", uri=f"run://{RUN_ID}/{kind}")["ttlMs"]
            for kind in ("meta", "log", "result")
        }
        assert kept["meta"] == kept["log"] == 0 and kept["result"] > 60_000
        for method in ("tools/list", "resources/list"):
            answer = client.ask(method)
            assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")
        assert client.ask("server/discover")["ttlMs"] > 60_000
        assert client.ask("resources/templates/list")["cacheScope"] == "public"
        uri = f"run://{RUN_ID}/result"
        assert listed(client)[uri]["mimeType"] == "application/json"
        assert json.loads(client.read(uri))["output"] == {"verdict": "good"}


def test_a_run_without_a_result_says_so_and_does_not_list_one(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    with Listener(world, "modern") as client:
        assert f"run://{run_id}/result" not in listed(client)
        code, sentence = client.refused("resources/read", uri=f"run://{run_id}/result")
        assert code == INVALID_PARAMS and f"{run_id} is waiting_parent_reply: its result comes" in sentence
        world.stop(run_id)
        code, sentence = client.refused("resources/read", uri=f"run://{run_id}/result")
        assert code == INVALID_PARAMS and f"{run_id} is stopped and left no result" in sentence


def test_a_long_log_gives_its_end_and_the_call_that_gives_the_rest(world: World) -> None:
    made_by_hand(world)
    world.look(RUN_ID)  # who reads it first writes its end into the log
    lines = [f"09:30:15 line {number} {'é' * 40}" for number in range(5_000)]
    world.paths(RUN_ID).log.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with Listener(world, "modern") as client:
        text = client.read(f"run://{RUN_ID}/log")
        assert len(text.encode()) < 66_000
        page, _, note = text.rpartition("\n\n")
        assert page.endswith(lines[-1])
        assert f'get_logs(runId="{RUN_ID}", cursor="0", lines=1000)' in note
        first = client.call("get_logs", runId=RUN_ID, cursor="0", lines=1000)
        assert first["text"].startswith(lines[0])


NO_IDS = [
    "../../etc/passwd",
    "nothing-here",
    "",
    "a\0b",
    "x" * 5_000,
    "UPPER",
    "%2e%2e",
    "a b",
    "é",
    "*",
    "a\nb",
]
NO_URIS = ["", "run://", "run://x", "run://x/", "run://x/other", "file:///etc/passwd", "x" * 100_000]


@pytest.mark.parametrize("era", ERAS)
def test_an_id_that_names_no_run_is_refused_with_the_sentence_of_the_tools(world: World, era: Era) -> None:
    world.store.make_root()
    with Listener(world, era) as client:
        for name in NO_IDS:
            result = client.ask("tools/call", name="check_status", arguments={"runId": name})
            assert result["isError"]
            refusal = (INVALID_PARAMS, result["content"][0]["text"])
            assert client.refused("resources/read", uri=f"run://{name}/meta") == refusal
            if era == "older":
                assert client.refused("resources/subscribe", uri=f"run://{name}/log") == refusal
        assert client.ask("resources/list")["resources"] == []


def test_a_foreign_uri_is_refused_with_those_that_exist(world: World) -> None:
    with Listener(world, "modern") as client:
        for uri in NO_URIS:
            code, sentence = client.refused("resources/read", uri=uri)
            assert code == INVALID_PARAMS and len(sentence) < 400, sentence
            assert "is no resource here" in sentence and "run://<runId>/meta" in sentence


def test_the_live_runs_and_the_newest_are_listed_and_one_that_cannot_be_read_hides_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subagent_server.server.resources.NEWEST", 5)  # 50 in earnest
    world.store.make_root()
    ids = [f"20261122-093015-{number:03d}-abcdef" for number in range(8)]
    for run_id in ids:
        made_by_hand(world, run_id, live=run_id == ids[0])
    world.paths(ids[6]).meta.path.write_text("{", encoding="utf-8")
    with Listener(world, "modern") as client:
        offered = listed(client)
        found = [uri for uri in offered if uri.endswith("/meta")]
        assert found == [f"run://{run_id}/meta" for run_id in [*reversed(ids[3:]), ids[0]]]
        of_it = offered[f"run://{ids[6]}/meta"]
        assert "cannot be read" in of_it["title"] and "run.meta.json" in of_it["description"]
        code, sentence = client.refused("resources/read", uri=f"run://{ids[6]}/meta")
        assert code == INTERNAL_ERROR and "cannot be read" in sentence
        log = client.read(f"run://{ids[1]}/log")
        assert "never started" in log, "what is not listed is there all the same"


@pytest.mark.parametrize("era", ERAS)
def test_a_child_sees_its_own_run_and_the_newest_below_it(
    world: World, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subagent_server.server.resources.NEWEST", 5)  # 50 in earnest
    own, other = world.asking_run(asks("Go on?"), says("Done.")), RUN_ID
    made_by_hand(world)
    with Listener(world, era, env=world.given_to(own)) as client:
        assert set(listed(client)) == {f"run://{own}/meta", f"run://{own}/log"}
        assert json.loads(client.read(f"run://{own}/meta"))["runId"] == own
        for kind in ("meta", "log", "result"):
            code, sentence = client.refused("resources/read", uri=f"run://{other}/{kind}")
            assert code == INVALID_PARAMS and f"{other} is not open to run {own}" in sentence
        if era == "older":
            assert client.refused("resources/subscribe", uri=f"run://{other}/meta")[0] == INVALID_PARAMS
        else:
            client.listen(f"run://{other}/meta", f"run://{own}/meta", "run://nothing-here/log")
            (acknowledged,) = client.hears_of("subscriptions/acknowledged")
            wanted = acknowledged["params"]["notifications"]["resourceSubscriptions"]
            assert wanted == [f"run://{own}/meta"]
        ids = [f"20261122-093015-{number:03d}-abcdef" for number in range(8)]
        world.paths(own).children.make()
        for run_id in ids:
            made_by_hand(world, run_id, parent_run_id=own)
            world.paths(own).children.entry(run_id).touch()
        found = {uri.removesuffix("/meta") for uri in listed(client) if uri.endswith("/meta")}
        assert found == {f"run://{run_id}" for run_id in [*ids[3:], own]}
