"""A parent hears the runs that it started; those of others are a count while their parents are there."""

import json
import os
import signal
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.store import RunStore
from subagent_server.verbs import list_runs
from tests.helpers.stored import make_stored
from tests.helpers.turns import asks, says
from tests.helpers.world import World
from tests.server.listening import Listener


def test_a_parent_is_not_woken_by_the_runs_of_another_until_that_one_has_gone(world: World) -> None:
    world.agent_saying(asks("Which colour?"), says("Painted."))
    with world.serve(client="second") as second:
        with world.serve(client="first") as first:
            run_id = first.call("run_worker", prompt="Paint it.")["runId"]
            world.asking(run_id)
            nothing = second.call("wait_for_runs", waitSeconds=0)
            assert nothing["runs"] == nothing["working"] == []
            assert nothing["otherParents"] == "1 run of another parent asks: list_runs(all=true) shows it."
            assert second.call("list_runs") == {"runs": [], "otherParents": nothing["otherParents"]}
            (row,) = second.call("list_runs", all=True)["runs"]
            owner = row["startedBy"]
            assert row["runId"] == run_id and owner.startswith("first, process ")
            (named,) = second.call("wait_for_runs", runIds=[run_id], waitSeconds=0)["runs"]
            assert named["startedBy"] == owner, "what is named is shown, with its parent"
            assert second.call("check_status", runId=run_id)["startedBy"] == owner

            (view,) = first.call("wait_for_runs", waitSeconds=0)["runs"]
            assert view["runId"] == run_id and "startedBy" not in view
            listed = first.call("list_runs")
            assert listed["runs"][0]["startedBy"] == "you" and "otherParents" not in listed
        with world.serve(client="third") as third:
            (view,) = third.call("wait_for_runs", waitSeconds=0)["runs"]
            assert view["runId"] == run_id and view["messages"] and "startedBy" not in view
            (row,) = third.call("list_runs")["runs"]
            assert row["startedBy"] == "first, gone"


def test_events_and_the_list_of_resources_leave_out_the_runs_of_another_parent(world: World) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    with Listener(world, "older") as client:
        client.ask("logging/setLevel", level="debug")
        client.listen(resources=True)
        with Listener(world, "older") as another:
            another.listen(resources=True)
            run_id = another.call("run_worker", prompt="Go.")["runId"]
            world.asking(run_id)
            another.hears_of("resources/list_changed")
            assert client.ask("resources/list")["resources"] == []
            assert client.hears_of("resources/list_changed", 0) == []
            own = client.call("run_worker", prompt="Go.")["runId"]
            client.hears_event("question", own)
            assert {data["runId"] for _, _, data in client.events()} == {own}
            listed = client.ask("resources/list")["resources"]
            assert {resource["uri"].split("/")[2] for resource in listed} == {own}
            client.hears_of("resources/list_changed")
        world.reply(run_id, "yes")
        client.hears_event("run_ended", run_id)
        types = [data["type"] for _, _, data in client.events() if data["runId"] == run_id]
        assert "question" not in types, "events from before its parent has gone do not come again"


def test_the_end_of_a_run_is_heard_however_soon_after_its_parent_it_came(world: World) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    with Listener(world, "older") as client:
        client.ask("logging/setLevel", level="info")
        with Listener(world, "older") as another:
            run_id = another.call("run_worker", prompt="Go.")["runId"]
            world.asking(run_id)
            own = client.call("run_worker", prompt="Go.")["runId"]
            client.hears_event("question", own)  # it has looked at the other run, too
            os.kill(client.pid, signal.SIGSTOP)
        world.reply(run_id, "yes")
        world.gone(run_id)
        os.kill(client.pid, signal.SIGCONT)
        client.hears_event("run_ended", run_id)
        assert [data["type"] for _, _, data in client.events() if data["runId"] == run_id] == ["run_ended"]


def test_the_run_of_a_command_is_heard_by_all_parents_when_nobody_watches_it(world: World) -> None:
    world.agent_saying(asks("Which colour?"), says("Painted."))
    run_id = world.cli("run", "--detach", "worker", "Paint it.").stdout.strip()
    world.asking(run_id)
    with world.serve(client="\x1b[2J" + "x" * 1_000) as parent:
        (view,) = parent.call("wait_for_runs", waitSeconds=0)["runs"]
        assert view["runId"] == run_id
        assert parent.call("list_runs")["runs"][0]["startedBy"] == "command line, gone"
        own = parent.call("run_worker", prompt="Paint it too.")["runId"]
    said = world.cli("show", own).stdout
    assert "client    \\x1b[2Jxxx" in said and len(max(said.split("\n"), key=len)) < 300, "a name is data"


def test_a_list_looks_at_so_many_runs_of_another_parent_and_says_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_runs, "MAX_SEARCHED", 50)  # 5,000 in earnest
    store = RunStore(tmp_path / "many")
    another = json.dumps({**processes.this_process().to_json(), "client": "another"}).encode()
    for run_id in make_stored(store.paths.root, 51):
        state = store.paths.run(run_id).meta.path
        state.write_bytes(state.read_bytes().replace(b"{", b'{"startedBy": %s,' % another, 1))
    with world.serve(env={"SUBAGENT_RUNS": str(store.paths.root)}) as parent:
        nothing = parent.call("list_runs")
        assert nothing["runs"] == [] and "Only the newest 5,000 runs" in nothing["omitted"]
        everything = parent.call("list_runs", all=True)
        assert len(everything["runs"]) == 20 and "omitted" not in everything
