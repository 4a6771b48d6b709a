"""The events of runs as logging notifications, for clients that ask for them (SPEC section 5)."""

import json
from typing import Any

from subagent_server.run import durable, store
from tests.helpers.turns import asks, call, calls, says, shell, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.server.listening import LOG_LEVEL, Listener


def types_of(client: Listener, run_id: str) -> list[str]:
    """Return the types of the events of a run that the client has received, in their order."""
    return [data["type"] for _, _, data in client.events() if data.get("runId") == run_id]


def append_events(world: World, run_id: str, count: int) -> None:
    """Write events as a very busy worker would."""
    event = {"at": "2026-11-22T09:30:15.417Z", "type": "text", "text": "x" * 1_500}
    lines = [json.dumps({"seq": 1_000 + n, **event}) for n in range(count)]
    durable.append_bytes(world.paths(run_id).events, ("\n".join(lines) + "\n").encode())


def test_an_older_client_that_sets_a_level_hears_the_events_of_every_live_run(world: World) -> None:
    world.agent()
    world.agent("second")
    work = calls(use("bash", command="echo hello"), use("bash", command="exit 3"), thinking="First I look.")
    world.play(work, asks("Go on?"), says("Done."))
    before = world.start_asking("Go.", agent="second")
    with Listener(world, "older") as client:
        assert client.ask("logging/setLevel", level="debug") == {}
        run_id = client.call("run_worker", prompt="Go.")["runId"]
        world.asking(run_id)
        world.reply(run_id, "yes")
        world.reply(before, "yes")
        for each in (run_id, before):
            client.hears_event("run_ended", each)
        assert types_of(client, run_id) == [event["type"] for event in world.events(run_id)]
        heard_of_it = [data for _, _, data in client.events() if data["runId"] == before]
        assert heard_of_it[0]["type"] == "reply", "earlier events do not come again"
        loggers = {data["runId"]: logger for _, logger, data in client.events()}
        assert loggers == {run_id: "subagent.worker", before: "subagent.second"}
        levels = {(data["type"], bool(data.get("isError"))): level for level, _, data in client.events()}
        assert levels[("thought", False)] == "debug"
        assert levels[("tool_call", False)] == levels[("tool_result", False)] == "info"
        assert levels[("question", False)] == levels[("run_ended", False)] == "info"


def test_events_below_the_level_that_was_set_do_not_come_and_a_failure_is_an_error(world: World) -> None:
    world.agent_saying(call("no_such_tool", thinking="Hm."), says("", fault={"status": 400}))
    with Listener(world, "older") as client:
        client.ask("logging/setLevel", level="warning")
        run_id = client.call("run_worker", prompt="Go.")["runId"]
        client.hears(lambda m: m["params"].get("level") == "error")
        events = [(level, data["type"]) for level, _, data in client.events()]
        assert events[-1] == ("error", "run_ended") and ("warning", "tool_result") in events
        assert {level for level, _ in events} == {"warning", "error"}
        assert client.events()[-1][2]["error"]["code"] == world.failed(run_id)[0]
        client.ask("logging/setLevel", level="emergency")
        count = len(client.received)
        client.call("run_worker", prompt="Go.", waitSeconds=60)
        assert len(client.received) == count


def test_a_modern_client_hears_the_events_of_the_runs_that_its_request_waits_for(world: World) -> None:
    world.agent_saying(shell("echo hello"), asks("Go on?"), says("Done."))
    other = world.start_asking("Nobody asks for me.")
    with Listener(world, "modern") as client:
        meta = {LOG_LEVEL: "info"}
        run_id = client.call("run_worker", prompt="Go.", waitSeconds=60, meta=meta)["runId"]
        first = types_of(client, run_id)
        assert first[0] == "run_started" and "tool_call" in first and "tool_result" in first
        assert "turn" not in first and "usage" not in first, "they are debug"
        silent = client.call("check_status", runId=run_id, waitSeconds=1)
        assert silent["status"] == "waiting_parent_reply"
        count = len(client.received)
        assert types_of(client, run_id) == first, "a request that does not ask gets no events"
        view = client.call("reply_subagent", runId=run_id, answer="yes", waitSeconds=60, meta=meta)
        assert view["updatedMetadata"]["status"] == "completed"
        rest = types_of(client, run_id)[len(first) :]
        assert "reply" in rest and rest[-1] == "run_ended" and rest.count("run_ended") == 1
        assert len(client.received) > count
        wait_for(lambda: world.events(run_id, "run_ended"), BOUND, "the end of the journal")
        expected = [e["type"] for e in world.events(run_id) if e["type"] not in ("turn", "usage", "thought")]
        assert first + rest == expected, "each once, in their order, across requests"
        assert types_of(client, other) == []
        client.call("wait_for_runs", runIds=[run_id], waitSeconds=5, meta=meta)
        assert types_of(client, run_id) == expected


def test_a_level_that_is_none_is_refused_and_null_passed_over(world: World) -> None:
    world.agent_saying(says("Done."))
    with Listener(world, "modern") as client:
        params = {"name": "run_worker", "arguments": {"prompt": "Go.", "waitSeconds": 40}}
        for level in ("nonsense", 7, None):
            answer = client.answer_to(client.begin("tools/call", meta={LOG_LEVEL: level}, **params))
            assert ("result" in answer) == (level is None)
            assert level is None or answer["error"]["code"] == -32602
        assert client.events() == []


def test_a_client_that_does_not_read_delays_nothing_and_learns_how_many_events_were_dropped(
    world: World,
) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    with Listener(world, "older") as client:
        client.ask("logging/setLevel", level="debug")
        for _ in range(30):
            append_events(world, run_id, 500)
            store.announce(world.paths(run_id))
        world.reply(run_id, "yes")
        assert world.completed(run_id) == "Done."
        client.hears_event("events_left_out")
        client.hears_event("run_ended")
        assert len(client.received) < 2_000
        assert client.call("check_status", runId=run_id)["status"] == "completed"
    world.abandoned.add(run_id)


def test_an_event_that_is_too_long_is_cut_and_damaged_lines_are_passed_over(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    path = world.paths(run_id).events
    with Listener(world, "older") as client:
        client.ask("logging/setLevel", level="debug")
        client.call("check_status", runId=run_id, waitSeconds=0)
        deep: Any = "bottom"
        for _ in range(50):
            deep = {"in": [deep]}
        long = {"at": "2026-11-22T09:30:15.417Z", "type": "tool_call", "toolName": "write"}
        durable.append_line(path, {"seq": 900, **long, "arguments": {"text": "x" * 60_000, "deep": deep}})
        durable.append_line(path, {"seq": 901, **long, "arguments": {str(n): "y" * 99 for n in range(999)}})
        half = '{"seq": 902, "type": "text", "text": "half a pair: \\ud800"}'
        durable.append_bytes(path, f"garbage\n[1]\n{'[' * 9_000}\n{half}\n".encode())
        client.hears(lambda m: m["params"].get("data", {}).get("seq") == 902)
        data = {d["seq"]: d for _, _, d in client.events() if "seq" in d}
        assert data[900]["arguments"]["text"].endswith("(60,000 characters)")
        assert len(json.dumps(data[900])) < 10_000 and "…" in json.dumps(data[900], ensure_ascii=False)
        assert data[901]["cut"] is True and data[901]["toolName"] == "write"
        assert data[902]["text"] == "half a pair: ?"
    world.abandoned.add(run_id)


def test_asking_for_events_before_there_is_any_run_makes_nothing_and_misses_nothing(
    world: World,
) -> None:
    world.agent_saying(says("Done."))
    with Listener(world, "older") as client:
        client.ask("logging/setLevel", level="info")
        client.ask("resources/list")
        client.ask("tools/list")
        assert not world.runs.exists()
        run_id = client.call("run_worker", prompt="Go.")["runId"]
        client.hears_event("run_ended")
        assert types_of(client, run_id)[0] == "run_started"
