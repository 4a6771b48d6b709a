"""The real Claude Code carries out runs, with a scripted model: what the recorded stream cannot prove."""

import os
import signal
import sys
from typing import Any

import pytest

from subagent_server.host import process_scan
from subagent_server.service.reconcile import observe
from tests.clients.installed import Installed
from tests.helpers.turns import Turn, says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
WAITS = "import time; open('begun', 'w'); time.sleep(600)"


def uses(tool: str, **given: Any) -> Turn:
    """Return a turn with one call."""
    return {"tool_use": [{"name": tool, "input": given}]}


def painter(world: World, clients: Installed, **keys: Any) -> None:
    """Write an agent whose runs Claude Code carries out."""
    world.agent("worker", "You paint.", runner="claude", command=clients.claude[0], **keys)


def test_it_asks_wants_a_permission_and_is_carried_on(world: World, clients: Installed) -> None:
    painter(world, clients)
    world.play(
        uses("mcp__subagent__ask_parent", question="Which colour?"),
        uses("Bash", command="touch made", description="x"),
        says("Painted."),
    )
    run_id = world.start("Paint it.")
    assert world.asking(run_id).pending[0].question_content == "Which colour?"
    world.reply(run_id, "blue")
    wait_for(lambda: world.meta(run_id).messages[1:], BOUND, "the second question")
    assert "touch made" in world.meta(run_id).pending[0].question_content
    assert not (world.work / "made").exists()
    world.reply(run_id, "once")
    assert world.completed(run_id) == "Painted." and (world.work / "made").exists()
    first = world.meta(run_id).usage
    assert first.turns == 3 and first.cost_usd
    simulator = world.play(says("It is blue."))
    done = world.cli("continue", run_id, "Which one was it?", "--detach")
    assert done.returncode == 0, done.stderr
    world.completed(done.stdout.strip())
    assert "Which colour?" in str(simulator.requests[0].body["messages"])
    second = world.meta(done.stdout.strip()).usage
    assert second.cost_usd is not None and second.cost_usd < 2 * first.cost_usd, (
        "of this run, not of the session"
    )


def test_in_a_box_it_works_asks_and_its_session_is_carried_on(world: World, clients: Installed) -> None:
    painter(world, clients, sandbox="bwrap", tools=["Bash"])
    made = f"touch {world.work}/made; touch {world.home}/escaped"
    world.play(
        uses("Bash", command=made, description="x"),
        uses("mcp__subagent__ask_parent", question="Which colour?"),
        says("Painted."),
    )
    run_id = world.start("Paint it.")
    assert world.asking(run_id).pending[0].question_content == "Which colour?"
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "Painted."
    world.gone(run_id)
    simulator = world.play(says("It is blue."))
    done = world.cli("continue", run_id, "Which one was it?", "--detach")
    assert done.returncode == 0, done.stderr
    world.completed(done.stdout.strip())
    assert "'tool_use'" in str(simulator.requests[0].body["messages"]), "its own session, not words about it"
    assert (world.work / "made").exists() and not (world.home / "escaped").exists()


def test_it_gives_an_output_that_fits_or_has_failed(world: World, clients: Installed) -> None:
    painter(world, clients, outputSchema=SCHEMA)
    world.play(uses("StructuredOutput", colour="blue"), says("Painted."))
    run_id = world.start()
    world.completed(run_id)
    assert world.result(run_id).output == {"colour": "blue"}
    world.play(says("Painted."), says("Painted."), says("Painted."))
    assert world.failed(world.start())[0] == "invalid_output"


@pytest.mark.parametrize("victim", ["stop", "program", "worker", "shim"])
def test_a_stop_or_a_kill_in_a_call_leaves_nothing_alive_and_a_session_to_carry_on(
    world: World, clients: Installed, victim: str
) -> None:
    painter(world, clients, tools=["Bash"])
    command = f'{sys.executable} -c "{WAITS}" {world.work}'
    world.play(uses("Bash", command=command, description="x", timeout=600_000))
    run_id = world.start("Paint it.")
    wait_for((world.work / "begun").exists, BOUND, "the command")
    if victim == "stop":
        world.stop(run_id)
    else:
        os.kill(_pid(world, run_id, clients.claude[0], victim), signal.SIGKILL)
    wait_for(lambda: observe(world.store, run_id).meta.status.is_terminal, BOUND, "the end of the run")
    world.gone(run_id)
    assert not process_scan.with_words(WAITS.encode(), str(world.work).encode())
    simulator = world.play(says("Painted."), says("Painted."))
    done = world.cli("continue", run_id, "--detach")
    assert done.returncode == 0, done.stderr
    world.completed(done.stdout.strip())
    told = str(simulator.requests[0].body["messages"])
    assert "Paint it." in told and "'tool_use'" in told
    assert ("It is not known what they did" in told) is (victim != "stop"), "a stopped call has its result"


def _pid(world: World, run_id: str, program: str, victim: str) -> int:
    if victim == "program":
        of_run = {identity.pid for identity in process_scan.marked(f"SUBAGENT_RUN_ID={run_id}")}
        return min(of_run & {*process_scan.with_words(program.encode(), b"--verbose")})
    return (world.worker(run_id) if victim == "worker" else world.shim(run_id)).pid
