"""Notifications for a client that asks: changes of a run, and of the list of runs (SPEC section 5)."""

import json
import signal
from typing import Any

import pytest

from subagent_server.run import durable, store
from tests.helpers.processes import open_files
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill
from tests.server.listening import ERAS, LOG_LEVEL, SUBSCRIPTION, Era, Listener

UPDATED = "resources/updated"


@pytest.mark.parametrize("era", ERAS)
def test_a_client_gets_the_changes_of_a_run_from_its_subscription_to_its_end(world: World, era: Era) -> None:
    run_id = world.asking_run(asks("Which colour?"), asks("How much?"), says("Painted."))
    uris = {kind: f"run://{run_id}/{kind}" for kind in ("meta", "log", "result")}
    with Listener(world, era) as client:
        stream = client.listen(*uris.values())
        world.reply(run_id, "blue")
        (updated, *_) = client.hears_of(UPDATED, uri=uris["meta"])
        if era == "modern":
            assert updated["params"]["_meta"][SUBSCRIPTION] == stream
        client.hears_of(UPDATED, uri=uris["log"])
        wait_for(lambda: not any(run_id in name for name in open_files(client.pid)), BOUND, "no open files")
        assert client.hears_of(UPDATED, 0, uri=uris["result"]) == []
        world.asking(run_id)
        world.reply(run_id, "a lot")
        client.hears_of(UPDATED, uri=uris["result"])
        client.hears(lambda m: json.loads(client.read(uris["meta"]))["status"] == "completed")

        second = world.start_asking("Again.")
        if era == "older":
            for uri in uris.values():
                client.ask("resources/unsubscribe", uri=uri)
            client.ask("resources/unsubscribe", uri="run://never-subscribed/meta")
        else:
            client.say(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stream}}
            )
        client.listen(f"run://{second}/meta")
        before = len(client.hears_of(UPDATED, 0, uri=uris["meta"]))
        store.announce(world.paths(run_id))
        world.paths(run_id).meta.touch()
        world.stop(second)
        client.hears_of(UPDATED, uri=f"run://{second}/meta")
        assert len(client.hears_of(UPDATED, 0, uri=uris["meta"])) == before


def test_a_log_that_grows_all_the_time_is_notified_once_a_second(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    uri = f"run://{run_id}/log"
    with Listener(world, "modern") as client:
        client.listen(uri)
        written = 0

        def has_come() -> bool:
            nonlocal written
            for _ in range(10):  # a call takes long beside other work
                durable.append_bytes(world.paths(run_id).log, b"09:30:15 one line more\n")
                store.announce(world.paths(run_id))
                written += 1
            client.call("list_runs", limit=1)
            return len(client.hears_of(UPDATED, 0, uri=uri)) >= 3

        wait_for(has_come, BOUND, "three notifications")
        assert written > 20, "and not at each line"


@pytest.mark.race
def test_the_end_of_a_killed_run_is_notified_without_any_reader(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"))
    with Listener(world, "modern") as client:
        client.listen(f"run://{run_id}/meta")
        kill(world.shim(run_id))
        kill(world.worker(run_id))
        client.hears_of(UPDATED, uri=f"run://{run_id}/meta")
        assert json.loads(client.read(f"run://{run_id}/meta"))["error"]["code"] == "lost"


@pytest.mark.parametrize("era", ERAS)
def test_a_new_run_and_a_new_result_change_the_list(world: World, era: Era) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    with Listener(world, era) as client:
        client.listen(resources=True)
        run_id = client.call("run_worker", prompt="Go.")["runId"]
        client.hears_of("resources/list_changed")
        listed = [r["uri"] for r in client.ask("resources/list")["resources"]]
        assert f"run://{run_id}/meta" in listed and f"run://{run_id}/result" not in listed
        count = len(client.hears_of("resources/list_changed"))
        world.asking(run_id)
        world.reply(run_id, "yes")
        client.hears_of("resources/list_changed", count + 1)
        assert f"run://{run_id}/result" in [r["uri"] for r in client.ask("resources/list")["resources"]]


def test_who_cancels_a_request_for_changes_may_ask_again(world: World) -> None:
    run_id = world.asking_run(asks("Which colour?"), says("Painted."))
    uri = f"run://{run_id}/meta"
    asked: dict[str, dict[str, Any]] = {
        "resources/subscribe": {"uri": uri},
        "resources/list": {},
        "logging/setLevel": {"level": "debug"},
    }
    with Listener(world, "older") as client:
        for method, params in asked.items():
            request = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": method}}
            client.say(request, {"jsonrpc": "2.0", **cancelled})
            client.ask(method, **params)
        world.reply(run_id, "blue")
        client.hears_of(UPDATED, uri=uri)
        client.hears_event("reply", run_id)
        world.start()
        client.hears_of("resources/list_changed")


def test_who_unsubscribes_while_it_is_being_subscribed_gets_no_notification(world: World) -> None:
    run_id = world.asking_run(asks("Which colour?"), says("Painted."))
    uri = f"run://{run_id}/meta"
    with Listener(world, "older") as client:
        for method in ("resources/subscribe", "resources/unsubscribe"):
            client.say({"jsonrpc": "2.0", "id": method, "method": method, "params": {"uri": uri}})
        client.listen(f"run://{run_id}/result")
        world.reply(run_id, "blue")
        client.hears_of(UPDATED, uri=f"run://{run_id}/result")
        assert client.hears_of(UPDATED, 0, uri=uri) == []


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_asked_for_nothing_gets_no_notification(world: World, era: Era) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    with Listener(world, era) as client:
        assert client.capabilities == {
            "logging": {},
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
        }
        assert not world.runs.exists(), "looking on makes no runs root"
        if era == "modern":
            client.ask("tools/list")
            client.ask("resources/list")
        view = client.call("run_worker", prompt="Go.", waitSeconds=60)
        world.agent("another")
        client.call("reply_subagent", runId=view["runId"], answer="yes", waitSeconds=60)
        client.call("wait_for_runs", waitSeconds=0)
        assert client.received == []


@pytest.mark.parametrize("era", ERAS)
def test_a_child_hears_of_its_own_run_and_of_no_other(world: World, era: Era) -> None:
    own = world.asking_run(asks("Go on?"), asks("And now?"), says("Done."))
    other = world.start_asking()
    with Listener(world, era, env=world.given_to(own)) as client:
        client.listen(f"run://{own}/meta", resources=True)
        if era == "older":
            client.ask("logging/setLevel", level="debug")
        question = world.meta(own).pending[0].message_id
        waiting = client.begin(
            "tools/call",
            meta={LOG_LEVEL: "debug"} if era == "modern" else None,
            name="check_status",
            arguments={"runId": own, "messageId": question, "waitSeconds": 40},
        )
        world.start_asking("Not yours.")
        world.reply(other, "yes")
        world.asking(other)
        world.reply(own, "yes")
        client.answer_to(waiting)
        world.until(own, lambda meta: len(meta.messages) == 2)
        client.hears_of(UPDATED, uri=f"run://{own}/meta")
        if era == "older":
            client.hears_event("question", own)
        assert {data["runId"] for _, _, data in client.events()} <= {own}
        assert {m["params"]["uri"] for m in client.hears_of(UPDATED)} == {f"run://{own}/meta"}
        assert client.hears_of("resources/list_changed", 0) == []


@pytest.mark.parametrize(("era", "leave"), [("older", signal.SIGTERM), ("modern", None)])
def test_it_leaves_at_once_during_many_notifications(
    world: World, era: Era, leave: signal.Signals | None
) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    with Listener(world, era) as client:
        client.listen(f"run://{run_id}/log", f"run://{run_id}/meta", tools=True, resources=True)
        if era == "older":
            client.ask("logging/setLevel", level="debug")
        waits = {"runId": run_id, "waitSeconds": 30}
        client.begin("tools/call", meta={LOG_LEVEL: "debug"}, name="check_status", arguments=waits)
        client.call("list_runs")
        if leave is None:
            client.end_input()
        else:
            client.signal(leave)
        assert client.leaves(60.0) == 0
        client.rest()
    assert world.look(run_id).live
