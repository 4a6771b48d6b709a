"""Which tools of which servers a run offers, and under which names."""

import pytest
from mcp_types import Tool

from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.errors import RunRefused
from subagent_server.sandbox.server_locations import ServerStart
from subagent_server.toolbox.mcp.mcp_tools import McpTool, NamedTool, Servers, ToolChoice, acceptable
from subagent_server.toolbox.mcp.server_connection import ServerConnection, ServerContext
from subagent_server.toolbox.outputs import KeptOutputs


def never(*_: object) -> ServerStart:
    raise AssertionError("no server is started")


def listing(server: str, *names: str, **keys: object) -> ServerConnection:
    """Return a server that has listed these tools."""
    definition = ServerDefinition.model_validate({"command": "x", **keys})
    made = ServerConnection(server, definition, ServerContext(never, print))
    made.tools = [Tool(name=name, input_schema={"type": "object"}) for name in names]
    return made


def offer(
    *listings: ServerConnection,
    tools: list[str] | None = None,
    disallowed: tuple[str, ...] = (),
    excluded: list[str] | None = None,
) -> tuple[list[McpTool], list[str]]:
    """Return the offer of these servers to an agent that has `bash` itself, and the warnings."""
    servers = Servers(list(listings))
    warnings = servers.choose(ToolChoice(tools, disallowed, excluded), {"bash"}, KeptOutputs())
    return servers.tools, warnings


def names(made: tuple[list[McpTool], list[str]]) -> list[str]:
    """Return the names that the model sees."""
    return [each.name for each in made[0]]


def test_a_filter_lets_named_tools_through_or_all_others() -> None:
    assert names(offer(listing("s", "a", "b", "c", enabledTools=["c", "a"]))) == ["a", "c"]
    assert names(offer(listing("s", "a", "b", "c", disabledTools=["b"]))) == ["a", "c"]


@pytest.mark.parametrize("key", ["enabledTools", "disabledTools"])
def test_a_filter_that_names_no_known_tool_is_a_warning_with_known_ones(key: str) -> None:
    keys = {key: ["Read_Fil", "zzz", "write"]}
    _, warnings = offer(listing("files", "read_file", "read_files", "write", **keys))
    warning, _ = [warning for warning in warnings if key in warning]
    assert (
        f"mcpServers.files.{key} names 'Read_Fil'" in warning
        and "are read_file, read_files, write" in warning
    )


def test_one_name_of_two_servers_is_an_error_that_names_both_and_the_way_out() -> None:
    with pytest.raises(RunRefused) as caught:
        offer(listing("one", "search", "x"), listing("two", "search", "y"), listing("three", "bash"))
    assert caught.value.failure_code == "config"
    assert "the servers one and two both offer a tool search" in caught.value.sentence
    assert "the server three offers a tool bash, and so does the agent itself" in caught.value.sentence
    assert "prefix: true" in str(caught.value.hint) and "two__<tool>" in str(caught.value.hint)


def test_a_prefix_a_filter_or_the_agent_file_leads_out_of_a_clash() -> None:
    one, two = listing("one", "search"), listing("two", "search", prefix=True)
    assert names(offer(one, two)) == ["search", "two__search"]
    assert names(offer(one, listing("two", "search", "y", disabledTools=["search"]))) == ["search", "y"]
    plain = listing("two", "search")
    assert names(offer(one, plain, disallowed=("mcp__two__search",))) == ["search"]
    (tool,), _ = offer(one, plain, tools=["mcp__two__search"])
    assert tool.named.server == "two"


def test_functions_of_programs_are_called_by_their_server_so_only_ordinary_tools_may_not_clash() -> None:
    listings = [listing("one", "search", "draw", "bash"), listing("two", "search", "draw")]
    assert len(names(offer(*listings, excluded=["mcp__two__draw"]))) == 5
    with pytest.raises(RunRefused, match="both offer a tool draw"):
        offer(*listings, excluded=["draw"])


def test_a_name_that_the_api_refuses_is_changed_with_a_warning_and_no_two_become_one() -> None:
    made = offer(listing("s", "get status", "get_status", "get.status", "x" * 200, ""))
    assert names(made)[:3] == ["get_status_2", "get_status", "get_status_3"]
    assert len(set(names(made))) == 5 and all(acceptable(name) == name for name in names(made))
    assert len(made[1]) == 4 and "'get status' of server s is called get_status_2" in made[1][0]
    _, warnings = offer(listing("s", "get status", "a.b"), excluded=["a.b"])
    assert ["'a.b'" in warning for warning in warnings] == [True], "functions have other names"


def test_a_tool_that_a_server_lists_twice_is_offered_once() -> None:
    made = offer(listing("s", "a", "a"))
    assert names(made) == ["a"] and "lists 'a' twice" in made[1][0]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("mcp__my-server", True),
        ("mcp__My_Server", False),
        ("mcp__my-server__*", True),
        ("mcp__my-server__get.status", True),
        ("mcp__my-server__get_status", True),
        ("MCP__MY-SERVER__GET_*", True),
        ("mcp__*", True),
        ("*", True),
        ("get_status", True),
        ("mcp__my", False),
        ("mcp__my-server__get", False),
        ("get", False),
    ],
)
def test_names_of_agent_files_mean_a_server_a_tool_or_many(pattern: str, meant: bool) -> None:
    tool = NamedTool("my-server", Tool(name="get.status", input_schema={}), "get_status")
    assert tool.is_named([pattern]) is meant
