"""`WebSearch` and `WebFetch` of agent files, from the file to the result (SPEC section 6)."""

import json
from typing import Any

import pytest

from subagent_server.agents.known_names import missing_sentence, missing_tools, verdict_of
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.verbs.check_agent import AgentChecker
from tests.helpers.truth import check_status
from tests.helpers.turns import call, cites, says, search, used
from tests.helpers.world import World

CATS = search("cats", ("https://cats.org", "Cats"))
ANSWER: dict[str, Any] = {
    "content": [*CATS, cites("Cats purr.", "https://cats.org", "Cats")],
    "usage": used(web_search=1),
}


def offered(body: Any) -> dict[str, Any]:
    """Return the web tools that the model was offered."""
    return {tool["name"]: tool for tool in body["tools"] if tool["name"].startswith("web_")}


def test_the_web_is_searched_if_the_file_names_it_and_result_log_and_view_name_the_pages(
    world: World,
) -> None:
    simulator = world.agent_saying(ANSWER, tools="Read, WebSearch, WebFetch")
    run_id = world.start()
    assert world.completed(run_id) == "Cats purr."
    tools = offered(simulator.requests[0].body)
    assert tools["web_search"] == {"type": "web_search_20250305", "name": "web_search", "max_uses": 20}
    assert tools["web_fetch"]["max_content_tokens"] == 20_000
    assert [(s.url, s.title) for s in world.result(run_id).sources or []] == [("https://cats.org", "Cats")]
    assert world.meta(run_id).usage.web_searches == 1
    log = world.paths(run_id).log.path.read_text(encoding="utf-8")
    assert "→ web_search cats" in log and "Cats https://cats.org" in log
    transcript = world.paths(run_id).transcript.path.read_text(encoding="utf-8")
    assert "encrypted_content" in transcript and "encrypted_index" in transcript
    with world.serve() as parent:
        view = parent.call("check_status", runId=run_id)
    assert view["sources"] == [{"url": "https://cats.org", "title": "Cats"}]


def test_the_bounds_of_the_file_are_those_of_the_tools_and_stay_the_same_over_the_run(world: World) -> None:
    world.agent(
        tools=["*", "WebSearch", "WebFetch(domain:example.com)", "WebFetch(domain:*.docs.org)"],
        webSearch={"maxUses": 2, "blockedDomains": ["spam.org"]},
        webFetch={"maxUses": 5, "maxContentTokens": 900},
    )
    simulator = world.play({"content": [*CATS, {"name": "glob", "input": {"pattern": "*"}}]}, says("Done."))
    world.completed(world.start())
    first, second = (offered(request.body) for request in simulator.requests)
    assert first == second and first["web_search"]["blocked_domains"] == ["spam.org"]
    assert first["web_search"]["max_uses"] == 2 and first["web_fetch"]["max_uses"] == 5
    assert first["web_fetch"]["max_content_tokens"] == 900
    assert sorted(first["web_fetch"]["allowed_domains"]) == ["docs.org", "example.com"]


def refusals(world: World, **keys: Any) -> str:
    """Return why the runs of an agent with these keys would be refused, as every door says it."""
    world.agent(**keys)
    return AgentChecker(world.service).check(world.service.registry.get("worker")).sentences


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tools": "WebFetch", "network": False}, "network is false, and WebFetch in tools"),
        ({"tools": "WebSearch, WebFetch", "network": False}, "WebSearch and WebFetch in tools"),
        ({"tools": "WebSearch(cats)"}, "tools: WebSearch(cats) asks for a restriction"),
        ({"tools": "WebFetch(domain:a.org)", "webFetch": {"blockedDomains": "b.org"}}, "cannot both be kept"),
        ({"tools": "WebFetch(domain:a.org)", "webFetch": {"allowedDomains": "a.org"}}, "cannot both be kept"),
        ({"tools": "WebFetch", "webFetch": {"allowedDomains": "https://a.org"}}, "without https://"),
        ({"tools": "WebFetch", "webSearch": {"maxUses": 0}}, "webSearch.maxUses"),
        (
            {"tools": "WebSearch", "webSearch": {"allowedDomains": "a.org", "blockedDomains": "b.org"}},
            "give one of them",
        ),
    ],
)
def test_bounds_that_cannot_be_kept_refuse_a_run(world: World, keys: Any, words: str) -> None:
    assert words in refusals(world, **keys)


@pytest.mark.parametrize("tools", [None, ["*"], ["Read", "Bash"]])
def test_a_file_that_does_not_name_the_web_tools_does_not_offer_them(tools: list[str] | None) -> None:
    assert verdict_of(AgentDefinition(name="worker", tools=tools)).web.names == []


def test_tools_that_are_not_here_are_a_warning_with_the_nearest_name(world: World) -> None:
    servers = ["mcp__github__search", "mcp__*"]
    world.agent(tools=["Read", "NotebookEdit", "WebSerch", "AskUserQuestion", *servers, "Task"])
    words = (
        "'NotebookEdit' (nearest: Edit), 'WebSerch' (nearest: WebSearch), 'Task' (nearest: the key `agents`)"
    )
    simulator = world.play(says("Done."))
    (agent,) = json.loads(world.cli("agents", "--json").stdout)["agents"]
    assert {tool["name"]: tool["nearest"] for tool in agent["missingTools"]} == {
        "NotebookEdit": "Edit",
        "WebSerch": "WebSearch",
        "Task": "the key `agents`",
        "mcp__github__search": None,
        "mcp__*": None,
    }
    run_id = world.completed_run()
    (warning,) = check_status(world.service, run_id).warnings or []
    assert words in warning and words in world.paths(run_id).log.path.read_text(encoding="utf-8")
    assert [event["message"] for event in world.events(run_id, "warning")] == [warning]
    offered = [tool["name"] for tool in simulator.requests[0].body["tools"]]
    assert offered == ["str_replace_based_edit_tool", "ask_parent"]


def test_very_many_missing_tools_are_said_in_one_short_sentence() -> None:
    agent = AgentDefinition(name="worker", tools=["Read", *(f"Nowhere{n}{'x' * 300}" for n in range(300))])
    warning = missing_sentence("tools", missing_tools(agent))
    assert warning is not None and "and 290 more" in warning and len(warning) < 2_000


def test_the_todo_list_stands_in_the_journal_and_the_log(world: World) -> None:
    world.agent(tools="TodoWrite, TaskUpdate, TaskList")
    todos = [{"content": "Look", "status": "completed"}, {"content": "Write", "status": "pending"}]
    update = call("task_update", taskId="2", status="in_progress")
    world.play(call("todo_write", todos=todos), update, call("task_list"), says("Done."))
    run_id = world.completed_run()
    _, last = world.events(run_id, "todos")
    assert last["todos"] == [
        {"id": "1", "content": "Look", "status": "completed"},
        {"id": "2", "content": "Write", "status": "in_progress"},
    ]
    log = world.paths(run_id).log.path.read_text(encoding="utf-8")
    assert "1 of 2 to-dos done" in log and "▸ Write" in log
