"""The key `ask`: a call of the built-in loop becomes a question, and only a clear yes lets it happen."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp_types import Tool as ListedTool

from subagent_server.loop.resume import NOT_BEGUN
from subagent_server.run.errors import RunRefused
from subagent_server.toolbox.mcp.mcp_tools import McpTool, NamedTool
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.run_context import check_asked
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import call, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

EDITOR = "str_replace_based_edit_tool"


def test_a_call_that_needs_a_yes_happens_after_it_and_never_after_anything_else(world: World) -> None:
    world.agent(tools=["Bash"], ask=["Bash"])
    touched = [shell(f"touch {name}") for name in ("first", "second", "third", "fourth", "fifth")]
    simulator = world.play(*touched, says("Done."))
    run_id = world.start()
    for number, answer in enumerate(["no", "Rather tidy up.", "once", "for this run"], start=1):
        question = world.asking(run_id).pending[0]
        assert question.options == ["once", "for this run", "no"] and "touch" in question.question_content
        assert question.message_id == f"q{number}"
        world.reply(run_id, answer)
        wait_for(partial(_has_gone_on, world, run_id, number), BOUND, "the next question or the end")
    assert world.completed(run_id) == "Done."
    made = sorted(path.name for path in world.work.iterdir())
    assert made == ["fifth", "fourth", "third"], "the last one without a question"
    refused = [tool_results(request.body)[-1] for request in simulator.requests[1:3]]
    assert "did not allow" in refused[0] and "Rather tidy up." in refused[1]


def test_a_question_counts_what_it_hides_of_a_call(world: World) -> None:
    command = "true " + 720 * "\u202e" + 6_880 * "x"  # escapes are longer, and seemed to be all of it
    world.agent_saying(shell(command), says("Done."), tools=["Bash"], ask=["Bash"])
    run_id = world.start_asking()
    assert world.meta(run_id).messages[0].question_content.endswith("… (3,620 characters more)")
    world.reply(run_id, "no")
    world.completed(run_id)


def test_a_yes_to_view_files_for_the_run_is_none_to_write_them(world: World) -> None:
    world.agent(tools=["Read", "Write"], ask=["Read", "Write"])
    (world.work / "seen").write_text("seen", encoding="utf-8")
    made = str(world.work / "made")
    edit, view = partial(call, EDITOR), call(EDITOR, command="view", path=str(world.work / "seen"))
    world.play(view, view, edit(command="create", path=made, file_text="x"), says("Done."))
    run_id = world.start()
    for number, answer in enumerate(["for this run", "no"], start=1):
        world.asking(run_id)
        world.reply(run_id, answer)
        wait_for(partial(_has_gone_on, world, run_id, number), BOUND, "the next question or the end")
    assert world.completed(run_id) == "Done." and not Path(made).exists()


def test_silence_is_no_and_a_tool_that_nobody_can_be_asked_about_is_refused(world: World) -> None:
    world.agent(tools=["Bash"], ask=["Bash"], limits={"askTimeoutSeconds": 0.3})
    world.play(shell("touch made"), says("I was not allowed."))
    assert world.completed(world.start()) == "I was not allowed."
    assert not list(world.work.iterdir())
    world.agent(tools=["Read"], ask=["Bash", "WebSearch"])
    code, message = world.failed(world.start())
    assert code == "config" and "Bash" in message and "WebSearch" in message


def test_a_call_that_waited_for_a_yes_when_its_run_ended_has_not_begun(world: World) -> None:
    simulator = world.agent_saying(shell("touch made"), says("Seen."), tools=["Bash"], ask=["Bash"])
    run_id = world.start_asking()
    world.stop(run_id)
    new = continue_run(world.service, ContinueOrder(run_id)).run_id
    assert world.completed(new) == "Seen." and not world.events(new, "warning")
    assert tool_results(simulator.requests[-1].body) == [NOT_BEGUN]


def test_names_of_claude_code_in_disallowed_tools_take_away_what_comes_unnamed(world: World) -> None:
    world.agent("kid")
    world.agent(tools=["Read"], agents=["kid"], disallowedTools=["Task", "AskUserQuestion"])
    simulator = world.play(says("Done."))
    world.completed_run()
    assert [tool["name"] for tool in simulator.requests[0].body["tools"]] == ["str_replace_based_edit_tool"]
    listed = world.cli("doctor", str(world.agents / "worker.md")).stdout
    assert "takes the starting of agents away, so agents is not used" in listed


def _has_gone_on(world: World, run_id: str, number: int) -> bool:
    meta = world.meta(run_id)
    return len(meta.messages) > number or meta.status.is_terminal


@pytest.mark.parametrize(
    ("name", "tool", "is_kept"),
    [
        ("Bash", "bash", True),
        ("Write", EDITOR, True),
        *((f"mcp__github{rest}", "search", True) for rest in ("__search", "", "__s*")),
        ("mcp__github__search", "github__search", True),
        ("mcp__other__search", "search", False),
        ("Bash(git *)", "bash", False),
        ("Read", "bash", False),
    ],
)
def test_a_name_is_kept_if_it_means_a_tool(name: str, tool: str, is_kept: bool) -> None:
    listed = NamedTool("github", ListedTool(name="search", input_schema={}), tool)
    of_server = McpTool(listed, cast(Any, None), KeptOutputs())
    with nullcontext() if is_kept else pytest.raises(RunRefused, match="nobody can be asked"):
        check_asked([name], [of_server if "search" in tool else SimpleNamespace(name=tool)])


def test_a_tool_of_a_server_is_asked_for_by_the_name_that_tools_has_for_it(world: World) -> None:
    world.agent(ask=["mcp__own__told"], mcpServers={"own": {**scripted({"name": "told"}), "prefix": True}})
    simulator = world.play(call("own__told"), says("Done."))
    world.reply(world.start_asking(), "no")
    wait_for(lambda: len(simulator.requests) == 2, BOUND, "the second request")
    assert "did not allow" in tool_results(simulator.requests[1].body)[0]
