"""The real Claude Code carries out runs, with a scripted model: what the recorded stream cannot prove."""

import json
import re
from typing import Any

from tests.clients.installed import Installed
from tests.helpers.turns import call, says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


def painter(world: World, clients: Installed, **keys: Any) -> None:
    """Write an agent whose runs Claude Code carries out."""
    world.agent("worker", "You paint.", runner="claude", command=clients.claude[0], **keys)


def test_it_asks_wants_a_permission_and_is_carried_on(world: World, clients: Installed) -> None:
    painter(world, clients)
    world.play(
        call("mcp__subagent__ask_parent", question="Which colour?"),
        call("Bash", command="touch made", description="x"),
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
    again = world.continued(run_id, "Which one was it?")
    world.completed(again)
    assert "Which colour?" in str(simulator.requests[0].body["messages"])
    second = world.meta(again).usage
    assert second.cost_usd is not None and second.cost_usd < 2 * first.cost_usd, (
        "of this run, not of the session"
    )
    for session in world.home.glob(".claude/projects/*/*.jsonl"):
        session.unlink()
    simulator = world.play(says("Still blue."))
    assert world.completed(world.continued(again, "And now?")) == "Still blue."
    assert "<result>\\nPainted." in str(simulator.requests[0].body["messages"]), "it has lost its session"


def test_nothing_of_its_work_goes_on_after_its_answer(world: World, clients: Installed) -> None:
    painter(world, clients, tools=["Agent", "Workflow"])
    simulator = world.play(
        call("Agent", description="x", prompt="Look for it.", subagent_type="general-purpose"),
        says("It is ${found}.", capture={"found": "(blue)"}),
        conversations=[{"when": {"prompt": "Look for it"}, "turns": [says("The colour is blue.")]}],
    )
    assert world.completed(world.start("Paint it.")) == "It is blue."
    offered = json.dumps(simulator.requests[0].body)
    assert '"Agent"' in offered
    assert not [name for name in ("Workflow", "ScheduleWakeup", "CronCreate") if f'"{name}"' in offered]
    assert "CronCreate" not in offered, "nor later, by a search for tools"


def test_a_task_is_no_command_of_its_own_and_opens_no_file(world: World, clients: Installed) -> None:
    painter(world, clients)
    secret = world.home / "colour.txt"
    secret.write_text("ultramarine", encoding="utf-8")
    simulator = world.play(says("Painted."))
    assert world.completed(world.start(f"/cost of @{secret}")) == "Painted."
    assert str(secret) in str(simulator.requests[0].body)
    assert "ultramarine" not in str(simulator.requests[0].body)


def test_it_neither_follows_nor_changes_what_claude_remembers_unasked(
    world: World, clients: Installed
) -> None:
    painter(world, clients)
    memory = world.home / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(world.work)) / "memory"
    memory.mkdir(parents=True)
    (memory / "MEMORY.md").write_text("ultramarine", encoding="utf-8")
    simulator = world.play(call("Write", file_path=str(memory / "new.md"), content="x"), says("Painted."))
    run_id = world.start()
    assert str(memory) in world.asking(run_id).pending[0].question_content
    assert "ultramarine" not in str(simulator.requests[0].body) and not (memory / "new.md").exists()
    world.reply(run_id, "no")
    assert world.completed(run_id) == "Painted."


def test_without_an_output_that_fits_it_has_failed(world: World, clients: Installed) -> None:
    painter(world, clients, outputSchema=SCHEMA)
    world.play(says("Painted."), says("Painted."), says("Painted."))
    assert world.failed(world.start())[0] == "invalid_output"
