"""The lifecycle of the seed `agent_mcp_server.txt` over stdio: its four tools, on runs like all others."""

import json
import os
import signal
from typing import Any

import pytest

from subagent_server.run.states import Status
from subagent_server.verbs.access import USER
from subagent_server.verbs.contract_agent import agent_statuses, contract_agent, status_of
from subagent_server.verbs.start import StartOrder, start_agent
from tests.helpers.mcp_client import Parent
from tests.helpers.runs import make_meta
from tests.helpers.turns import asks, call, calls, says, shell, use
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World

TOOLS = ["agent_start", "agent_status", "agent_complete", "agent_stop"]
OWN_ID = {"agent": r"you are (\S+)\."}
"""What a scripted model learns of itself from the refusal of a wrong id."""


def start(parent: Parent, contract: str = "Count to three.") -> str:
    """Start an agent and return its id."""
    agent_id: str = parent.call("agent_start", contract=contract)["agent_id"]
    return agent_id


def status(parent: Parent, *agent_ids: str) -> Any:
    found = parent.call("agent_status", agent_ids=list(agent_ids))["result"]
    return found if len(agent_ids) > 1 else found[0]


def test_an_agent_fulfils_its_contract_and_completes_with_summary_and_payload(world: World) -> None:
    payload = "one\ntwo\nthrée\n"
    done = call("agent_complete", agent_id="${agent}", summary="Counted.", payload=payload + API_KEY)
    model = world.play(call("agent_complete", agent_id="x", summary="Mine?"), done | {"capture": OWN_ID})
    with world.serve("--lifecycle", "--model", "haiku", "--role", "parent") as parent:
        assert [tool.name for tool in parent.tools()][-4:] == TOOLS
        started = parent.call("agent_start", contract="Count to three.")
        agent_id = started["agent_id"]
        assert started == {"agent_id": agent_id, "status": "running", "started_at": started["started_at"]}
        world.gone(agent_id)
        shown = status(parent, agent_id)
        assert shown == {
            "agent_id": agent_id,
            "status": "completed",
            "started_at": started["started_at"],
            "completed_at": shown["completed_at"],
            "summary": "Counted.",
            "payload_size": len(payload.encode() + b"***"),
        }
        assert parent.call("get_logs", runId=agent_id, stream="payload")["text"] == f"{payload}***"
        as_it_is = {key: shown[key] for key in ("status", "started_at", "completed_at")}
        assert parent.call("agent_stop", agent_id=agent_id) == as_it_is
        assert parent.call("agent_complete", agent_id=agent_id, summary="Again.") == as_it_is
        assert status(parent, agent_id) == shown
    request = model.requests[0].body
    assert request["model"] == "claude-haiku-5-5"
    assert agent_id in request["system"][-1]["text"] and "agent_complete" in request["system"][-1]["text"]
    offered = {tool["name"] for tool in request["tools"]}
    assert offered >= {"agent_complete", "ask_parent", "bash", "grep"}


def test_what_an_agent_has_given_is_kept_if_something_ends_it_in_the_same_turn(world: World) -> None:
    done = use("agent_complete", agent_id="${agent}", summary="Counted.", payload="one two")
    last = calls(done, use("bash", command="sleep 300"))
    world.play(call("agent_complete", agent_id="x", summary="Mine?"), last | {"capture": OWN_ID})
    with world.serve("--lifecycle") as parent:
        agent_id = start(parent)
        wait_for(lambda: len(world.events(agent_id, "tool_call")) == 3, BOUND, "the call behind it")
        os.kill(world.worker(agent_id).pid, signal.SIGTERM)
        world.gone(agent_id)
        shown = status(parent, agent_id)
        assert shown["status"] == "stopped" and shown["error"].startswith("crashed: ")
        assert (shown["summary"], shown["payload_size"]) == ("Counted.", 7)
        assert parent.call("get_logs", runId=agent_id, stream="payload")["text"] == "one two"


def test_the_last_line_contract_complete_completes_with_the_text_before_it(world: World) -> None:
    world.play(says("It is three.\n\nReally.\n[CONTRACT COMPLETE]\n"))
    with world.serve("--lifecycle") as parent:
        agent_id = start(parent)
        assert world.completed(agent_id) == "It is three.\n\nReally."
        assert status(parent, agent_id)["summary"] == "It is three.\n\nReally."


def test_each_unknown_agent_is_an_error_in_its_own_object_and_a_stopped_one_stays_stopped(
    world: World,
) -> None:
    world.play(shell("echo counting"), asks("How far?"), says("Done."))
    with world.serve("--lifecycle") as parent:
        agent_id = start(parent)
        world.asking(agent_id)
        wrong = ["../../etc", "20990101-000000-000-aaaaaa", "x" * 100_000, ""]
        works, *errors = status(parent, agent_id, *wrong)
        assert works["status"] == "running" and "How far?" in works["preview"]
        assert [error.keys() for error in errors] == [{"agent_id", "error"}] * len(wrong)
        assert len(json.dumps(errors)) < 3_000

        stopped = parent.call("agent_stop", agent_id=agent_id)
        assert stopped.keys() == {"status", "started_at", "stopped_at"} and stopped["status"] == "stopped"
        assert parent.call("agent_complete", agent_id=agent_id, summary="Done all the same.") == stopped
        assert "There is no run" in parent.refused("agent_stop", agent_id=wrong[1])
        assert "is empty" in parent.refused("agent_start", contract=" \n")


def test_an_agent_that_cannot_start_is_stopped_with_the_reason(world: World) -> None:
    del world.environment["ANTHROPIC_API_KEY"]
    agent = contract_agent("haiku")
    meta = start_agent(world.service, agent, StartOrder(agent.name, "Count."), USER)
    ((status, _),) = agent_statuses(world.service, [meta.run_id])
    assert status.status == "stopped" and "ANTHROPIC_API_KEY is not set" in (status.error or "")


@pytest.mark.parametrize("message", ["Overloaded", "Overloaded."])
def test_the_error_of_a_stopped_agent_is_sentences(message: str) -> None:
    failure = {"code": "api_error", "message": message, "hint": "Try later."}
    assert status_of(make_meta(status="failed", error=failure)).error == "api_error: Overloaded. Try later."


def test_an_agent_that_waits_for_a_slot_is_running_and_may_be_completed(world: World) -> None:
    world.environment["SUBAGENT_MAX_RUNS"] = "1"
    model = world.play(shell("sleep 300"))
    with world.serve("--lifecycle") as parent:
        first = start(parent)
        wait_for(lambda: len(world.events(first, "tool_call")) == 1, BOUND, "the first agent works")
        second, third = start(parent), start(parent)
        assert world.meta(second).status is Status.READY
        assert status(parent, second)["status"] == "running"
        done = parent.call("agent_complete", agent_id=second, summary="Not needed.", payload="all of it")
        assert done.keys() == {"status", "started_at", "completed_at"} and done["status"] == "completed"
        world.gone(second)
        shown = status(parent, second)
        assert (shown["status"], shown["summary"], shown["payload_size"]) == ("completed", "Not needed.", 9)
        assert parent.call("agent_stop", agent_id=third)["status"] == "stopped"
        parent.call("agent_stop", agent_id=first)
        world.gone(first)
    assert len(model.requests) == 1 and world.meta(second).started_at is None


def test_a_contract_is_carried_on_by_the_same_agent_whatever_file_has_its_name(world: World) -> None:
    world.agent("contract", prompt="You are another.", tools="Read", byContract=True)
    assert world.service.registry.get("contract").by_contract is False, "no file makes itself one"
    done = "\n[CONTRACT COMPLETE]"
    model = world.play(says(f"Three.{done}"), says(f"Four.{done}"), says(f"Five.{done}"))
    with world.serve("--lifecycle", "--model", "opus") as parent:
        agent_id = start(parent)
        world.gone(agent_id)
        on = parent.call("continue_run", runId=agent_id, prompt="One more.", waitSeconds=60)
        assert on["summary"] == "Four."
    assert world.cli("rerun", agent_id).returncode == 0
    assert world.cli("continue", agent_id, "Six.").returncode == 0
    assert ["opus" in request.body["model"] for request in model.requests] == [True] * 4
    assert not any("another" in json.dumps(request.body) for request in model.requests)


def test_a_program_of_a_run_looks_and_completes_and_starts_nothing_by_contract(world: World) -> None:
    run_id = world.asking_run(asks("Well?"), says("Done."), agents=["contract", "worker"])
    with world.serve("--lifecycle", env=world.given_to(run_id)) as child:
        names = {tool.name for tool in child.tools()}
        assert names & set(TOOLS) == {"agent_status", "agent_complete"}
        assert "There is no tool" in child.refused("agent_start", contract="Mine.")
        assert "not open" in status(child, world.start())["error"]
        assert child.call("agent_complete", agent_id=run_id, summary="Done.")["status"] == "completed"


def test_a_model_without_lifecycle_is_refused_in_one_line(world: World) -> None:
    done = world.cli("serve", "--model", "opus")
    assert done.returncode == 2 and done.stdout == ""
    assert "--model" in done.stderr and "Traceback" not in done.stderr
