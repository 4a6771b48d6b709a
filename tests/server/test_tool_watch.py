"""Agent files that change while the server runs: a client that asked gets a notification (SPEC section 2)."""

import shutil

import pytest

from tests.helpers.world import World
from tests.server.listening import ERAS, Era, Listener

CHANGED = "tools/list_changed"


def agents(client: Listener) -> list[str]:
    """Return the tools that start agents, as they are listed now."""
    names = [tool["name"] for tool in client.ask("tools/list")["tools"]]
    return [name for name in names if name.startswith("run_")]


@pytest.mark.parametrize("era", ERAS)
def test_files_that_come_change_or_go_are_notified_and_listed(world: World, era: Era) -> None:
    world.agent("first")
    with Listener(world, era) as client:
        assert agents(client) == ["run_first"]
        client.listen(tools=True)
        world.agent("second")
        client.hears_of(CHANGED, 1)
        assert agents(client) == ["run_first", "run_second"]
        world.agent("second", description="Does something else.")
        client.hears_of(CHANGED, 2)
        described = {tool["name"]: tool["description"] for tool in client.ask("tools/list")["tools"]}
        assert described["run_second"] == "Does something else."
        (world.agents / "first.md").unlink()
        client.hears_of(CHANGED, 3)
        assert agents(client) == ["run_second"]
        (world.agents / "second.md").write_text("# No agent any more\n", encoding="utf-8")
        client.hears_of(CHANGED, 4)
        assert agents(client) == []


@pytest.mark.parametrize("era", ERAS)
def test_a_change_that_changes_no_tool_is_not_notified(world: World, era: Era) -> None:
    world.agent("first")
    with Listener(world, era) as client:
        client.listen(tools=True)
        world.agent("first", prompt="You do something else now.")
        (world.agents / "notes.txt").write_text("not an agent", encoding="utf-8")
        (world.agents / "README.md").write_text("# Not an agent either\n", encoding="utf-8")
        client.call("list_runs")
        world.agent("second")
        client.hears_of(CHANGED, 1)
        client.ask("tools/list")
        world.agent("third")
        assert len(client.hears_of(CHANGED, 2)) == 2


def test_many_files_at_once_cause_one_notification(world: World) -> None:
    with Listener(world, "older", "--tools-budget", "1000000") as client:
        client.listen(tools=True)
        for number in range(40):
            world.agent(f"agent-{number:02d}")
        client.hears(lambda m: len(agents(client)) == 40 and m["method"] == f"notifications/{CHANGED}")
        assert len(client.hears_of(CHANGED)) <= 3


def test_nested_directories_and_directories_that_come_later_are_seen_too(world: World) -> None:
    shutil.rmtree(world.agents)
    with Listener(world, "modern") as client:
        client.listen(tools=True)
        assert agents(client) == []
        world.agents.mkdir()
        world.agent("late")
        client.hears_of(CHANGED, 1)
        assert agents(client) == ["run_late"]
        below = world.agents / "team" / "one"
        below.mkdir(parents=True)
        (world.agents / "late.md").rename(below / "late.md")
        (below / "other.md").write_text("---\nname: other\ndescription: Another.\n---\nDo.", encoding="utf-8")
        client.hears_of(CHANGED, 2)
        assert agents(client) == ["run_late", "run_other"]


def test_a_directory_that_is_replaced_as_a_whole_is_watched_on(world: World) -> None:
    world.agent("old")
    with Listener(world, "modern") as client:
        client.listen(tools=True)
        world.agents.rename(world.home / "before")
        world.agents.mkdir()
        world.agent("new")
        client.hears(lambda m: m["method"] == f"notifications/{CHANGED}" and agents(client) == ["run_new"])
        count = len(client.hears_of(CHANGED))
        world.agent("newer")
        client.hears_of(CHANGED, count + 1)
        assert agents(client) == ["run_new", "run_newer"]


@pytest.mark.race
def test_a_change_between_listing_and_listening_is_notified_at_once(world: World) -> None:
    world.agent("first")
    with Listener(world, "modern") as client:
        assert agents(client) == ["run_first"]
        world.agent("second")
        client.listen(tools=True)
        client.hears_of(CHANGED, 1)


def test_the_one_agent_of_a_config_is_not_watched_and_the_server_says_so(world: World) -> None:
    world.agent("only")
    with Listener(world, "older", "--config", str(world.agents / "only.md")) as client:
        assert client.capabilities["tools"] == {"listChanged": False}
        assert agents(client) == ["run_only"]
        world.agent("other")
        assert agents(client) == ["run_only"]
