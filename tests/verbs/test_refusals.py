"""What a definition asks for and cannot have is refused by its run, naming the field (SPEC section 3)."""

from typing import Any

import pytest

from subagent_server.run.errors import UnknownAgent
from subagent_server.run.states import Status
from tests.helpers.turns import says
from tests.helpers.world import World


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("runner", {"runner": "codex"}),
        ("runner", {"runner": "command", "command": "true"}),
        ("isolation", {"isolation": "worktree"}),
        ("maxTurns", {"maxTurns": 0}),
        ("maxTurns", {"maxTurns": "many"}),
        ("outputSchemaPath", {"outputSchemaPath": "nowhere.json"}),
        ("NO_SUCH_VARIABLE", {"env": {"VALUE": "${NO_SUCH_VARIABLE}"}}),
    ],
)
def test_what_cannot_be_done_is_refused_with_config_and_no_process_is_started(
    world: World, field: str, keys: dict[str, Any]
) -> None:
    world.agent(**keys)
    run_id = world.start()
    meta = world.meta(run_id)
    assert meta.status is Status.FAILED and meta.error is not None, "at once, not later"
    assert meta.error.code == "config" and field in meta.error.message and meta.error.hint
    assert not world.paths(run_id).shim_claim.exists() and not world.paths(run_id).shim.exists()
    assert world.look(run_id).live is False


def test_a_restriction_of_a_tool_that_cannot_be_kept_is_refused_before_any_model_call(world: World) -> None:
    world.agent(tools="Read, Bash(git diff:*)")
    simulator = world.play(says("Never said."))
    code, message = world.failed(world.start())
    assert code == "config" and "Bash(git diff:*)" in message
    assert not simulator.requests


def test_names_of_tools_that_nothing_offers_are_a_warning_and_the_others_are_offered(world: World) -> None:
    world.agent(tools="Read, Grep, NotebookEdit, mcp__github__search", colour="green")
    simulator = world.play(says("Done."))
    run_id = world.start()
    world.completed(run_id)
    (warning,) = world.events(run_id, "warning")
    assert "NotebookEdit" in warning["message"] and "mcp__github__search" in warning["message"]
    offered = [tool["name"] for tool in simulator.requests[0].body["tools"]]
    assert offered == ["str_replace_based_edit_tool", "grep", "ask_parent"]


def test_an_agent_whose_file_went_wrong_says_why_it_cannot_be_started(world: World) -> None:
    (world.agents / "broken.md").write_text("---\n: [\n---\nWork.", encoding="utf-8")
    world.agent("fine")
    with pytest.raises(UnknownAgent, match=r"broken\.md"):
        world.start(agent="broken")
