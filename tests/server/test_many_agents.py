"""More agents than have a tool each: two tools for all of them, pages, and a choice (SPEC section 5)."""

import os
from contextlib import closing

import pytest
from watchdog.events import FileOpenedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from subagent_server.settings import DEFAULT_TOOLS_BUDGET
from subagent_server.tools.parent_tools import PAGE_AGENTS
from subagent_server.tools.tool_table import PAGE_TOOLS, PARENT_TOOLS, ToolDispatcher
from subagent_server.verbs.access import USER
from subagent_server.verbs.wait_for_runs import Changes
from tests.helpers.mcp_client import Mode
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.server.listening import ERAS, Era, Listener
from tests.server.test_tool_list import seen_by_the_model

GENERIC = [tool.name for tool in PARENT_TOOLS]


def many(world: World, count: int) -> list[str]:
    """Write agents and return their names in order."""
    names = [f"agent-{number:03d}" for number in range(count)]
    for name in names:
        world.agent(name)
    return names


def test_many_agents_are_found_and_started_with_two_tools(world: World) -> None:
    names = [*many(world, 40), "inzoe", "zoe"]
    world.agent("inzoe")
    world.agent("zoe", description="Looks for leaks in databases.")
    world.play(says("Done."))
    with world.serve("--role", "parent") as parent:
        assert [tool.name for tool in parent.tools()] == ["run_agent", "list_agents", *GENERIC]
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = parent.call("list_agents", **cursor)
            assert page["total"] == len(names) and len(page["agents"]) <= PAGE_AGENTS
            found += [row["agent"] for row in page["agents"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert found == names
        best = parent.call("list_agents", query="Database LEAKS")["agents"][0]
        assert best == {"agent": "zoe", "description": "Looks for leaks in databases."}
        assert parent.call("list_agents", query="zoe")["agents"][0] == best
        assert parent.call("list_agents", query="none-has-this")["agents"] == []
        by_name = parent.call("run_agent", agent="zoe", prompt="Go.", waitSeconds=60)
        by_tool_name = parent.call("run_agent", agent="run_zoe", prompt="Go.", waitSeconds=60)
        alone = parent.call("run_zoe", prompt="Go.", waitSeconds=60)
    assert by_name["agent"] == by_tool_name["agent"] == alone["agent"] == "zoe"
    assert by_name["result"] == "Done." and by_name.keys() == alone.keys()


@pytest.mark.parametrize(
    ("count", "length", "key"),
    [(10, 20, "key"), (10, 20, ""), (10, 900, "key"), (1, 9_000, "key"), (700, 100, "key")],
)
def test_a_parent_never_reads_more_of_its_tools_than_the_budget(
    world: World, count: int, length: int, key: str
) -> None:
    world.environment["ANTHROPIC_API_KEY"] = key
    for number in range(count):
        world.agent(f"agent-{number:04d}", description="word " * (length // 5))
    with closing(Changes(world.store)) as changes:
        tools = ToolDispatcher(world.service, changes, USER, PARENT_TOOLS).table().tools
    assert sum(map(seen_by_the_model, tools)) <= DEFAULT_TOOLS_BUDGET
    names = [tool.name for tool in tools]
    assert names[-len(GENERIC) :] == GENERIC
    assert ("run_agent" in names) == (count > 10 or length > 20 or not key)
    assert "agent-0000" in (tools[0].description or "") or names[0] == "run_agent_0000"


def test_mistakes_in_calls_of_the_two_tools_are_refused_in_the_sentences_of_the_others(world: World) -> None:
    many(world, 42)
    with world.serve("--role", "parent") as parent:
        for wrong in (
            {"prompt": " "},
            {"prompt": "Go.", "inputs": ["nofile"]},
            {"prompt": "Go.", "cwd": "no"},
        ):
            sentence = parent.refused("run_agent-001".replace("-", "_"), **wrong)
            assert parent.refused("run_agent", agent="agent-001", **wrong) == sentence
        assert "'agent' is a required property" in parent.refused("run_agent", prompt="Go.")
        near = parent.refused("run_agent", agent="agent-0011", prompt="Go.")
        assert "the nearest of the 42 agents here are agent-0" in near
        assert "none of the 42 agents here has a name" in parent.refused("run_agent", agent="Ω", prompt="Go.")
        assert "list_agents" in parent.refused("run_nobody", prompt="Go.")
        for cursor in ("-", "0" * 16 + "-0", "9" * 5_000):
            assert "begin without a cursor" in parent.refused("list_agents", cursor=cursor)
        assert parent.call("list_runs") == {"runs": []}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_list_that_is_too_long_for_one_answer_comes_in_pages(world: World, mode: Mode) -> None:
    world.environment["SUBAGENT_TOOLS_BUDGET"] = "1000000"
    many(world, 2 * PAGE_TOOLS)
    with world.serve("--role", "parent", mode=mode) as parent:
        pages = parent.pages_of_tools()
    first = ["run_agent", "list_agents", *GENERIC]  # all that a client needs if it reads one page
    assert [len(page) for page in pages] == [PAGE_TOOLS, PAGE_TOOLS, len(first)]
    names = [tool.name for page in pages for tool in page]
    assert names == [*first, *(f"run_agent_{number:03d}" for number in range(2 * PAGE_TOOLS))]


@pytest.mark.parametrize("era", ERAS)
def test_a_cursor_of_a_list_that_has_changed_is_refused_as_one_that_never_was(world: World, era: Era) -> None:
    many(world, PAGE_TOOLS)
    with Listener(world, era, "--tools-budget", "1000000") as client:
        cursor = client.ask("tools/list")["nextCursor"]
        assert client.ask("tools/list", cursor=cursor)["tools"][-1]["name"] == "run_agent_099"
        world.agent("agent-000", description="Something else.")
        tools = {tool["name"]: tool for tool in client.ask("tools/list")["tools"]}
        assert tools["run_agent_000"]["description"] == "Something else."
        for wrong in (cursor, cursor[:-1], "", "x" * 5_000):
            code, sentence = client.refused("tools/list", cursor=wrong)
            assert code == -32602 and "begin without a cursor" in sentence


def test_patterns_choose_which_agents_are_offered(world: World) -> None:
    for name in ("review-code", "review-prose", "writer", "translator"):
        world.agent(name)
    with world.serve("--role", "parent", "--agent", "review-*", "--agent", "writer") as parent:
        names = [tool.name for tool in parent.tools()]
        assert names == ["run_review_code", "run_review_prose", "run_writer", *GENERIC]
        assert "There is no tool 'run_translator'" in parent.refused("run_translator", prompt="Go.")
        assert "no agent 'translator'" in parent.refused("run_agent", agent="translator", prompt="Go.")
        assert parent.call("list_agents", query="translator")["agents"] == []
    refused = world.refused("serve", "--agent", "writer", "--agent", "reviewer-*")
    assert "--agent 'reviewer-*' fits no agent" in refused


def test_the_list_is_made_anew_only_when_a_file_or_the_trust_has_changed(world: World) -> None:
    many(world, 2)
    changes = Changes(world.store)
    dispatcher = ToolDispatcher(world.service, changes, USER, PARENT_TOOLS)
    first = dispatcher.table()
    assert dispatcher.table() is first
    world.agent("agent-000", description="Something else.")
    second = dispatcher.table()
    assert second is not first and second.digest != first.digest
    (world.agents / "notes.txt").write_text("not an agent", encoding="utf-8")
    assert dispatcher.table().digest == second.digest
    changes.close()


def test_a_server_reads_the_agent_files_before_anybody_asks_for_its_tools(world: World) -> None:
    world.agent()
    opened: list[str] = []

    class Openings(FileSystemEventHandler):
        def on_opened(self, event: FileSystemEvent) -> None:
            opened.append(os.fsdecode(event.src_path))

    observer = Observer()
    observer.schedule(Openings(), str(world.agents), event_filter=[FileOpenedEvent])
    observer.start()
    try:
        with world.serve("--role", "parent"):
            wait_for(lambda: str(world.agents / "worker.md") in opened, BOUND, "the agent file is read")
    finally:
        observer.stop()
        observer.join()
