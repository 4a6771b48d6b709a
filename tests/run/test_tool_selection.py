"""Which tools an agent file selects."""

import pytest

from subagent_server.run.agent_definition import AgentDefinition, CodeMode, Selection, select


def offered(selection: Selection) -> set[str]:
    return {name for name in ("bash", "view", "edit", "grep", "glob") if getattr(selection, name)}


EVERYTHING = {"bash", "view", "edit", "grep", "glob"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Bash"], {"bash"}),
        (["Read"], {"view"}),
        (["Write"], {"view", "edit"}),
        (["Edit"], {"view", "edit"}),
        (["MultiEdit"], {"view", "edit"}),
        (["Grep"], {"grep"}),
        (["Glob"], {"glob"}),
        (["bash", "str_replace_based_edit_tool", "grep", "glob"], EVERYTHING),
        (["READ", " grep "], {"view", "grep"}),
        (["*"], EVERYTHING),
        ([], set()),
        (["", "  "], set()),
    ],
)
def test_a_name_of_an_agent_file_selects_its_tools(names: list[str], expected: set[str]) -> None:
    selection = select(names, [])
    assert offered(selection) == expected
    assert selection.unknown == selection.restricted == []


def test_no_list_of_tools_selects_everything() -> None:
    selection = select(None, [])
    assert offered(selection) == EVERYTHING
    assert selection.mcp is None


@pytest.mark.parametrize(
    ("names", "disallowed", "expected"),
    [
        (None, ["Bash"], EVERYTHING - {"bash"}),
        (None, ["Write"], EVERYTHING - {"edit"}),
        (["Read", "Edit"], ["Edit"], {"view"}),
        (["Write"], ["Read"], {"edit"}),
        (["Read", "Write"], ["Read", "Write"], set()),
        (None, ["str_replace_based_edit_tool"], EVERYTHING - {"view", "edit"}),
        (["Read"], ["*"], set()),
        (["Read"], ["Bash"], {"view"}),
    ],
)
def test_disallowed_tools_are_taken_away(
    names: list[str] | None, disallowed: list[str], expected: set[str]
) -> None:
    assert offered(select(names, disallowed)) == expected


def test_names_of_mcp_tools_are_passed_through_as_written() -> None:
    selection = select(["Read", "mcp__GitHub__search_issues", "mcp__files"], ["mcp__files__remove"])
    assert selection.mcp == ["mcp__GitHub__search_issues", "mcp__files"]
    assert selection.mcp_disallowed == ["mcp__files__remove"]
    assert selection.unknown == []


def test_a_list_without_mcp_names_asks_for_none() -> None:
    assert select(["Read"], []).mcp == []
    assert select(["*"], []).mcp is None
    assert select(None, ["*"]).mcp == []


def test_a_name_that_nothing_offers_is_unknown_and_the_rest_counts() -> None:
    selection = select(["WebFetch", "Read", "NotebookEdit", "WebFetch"], ["Bsh"])
    assert (selection.unknown, selection.unknown_disallowed) == (["NotebookEdit"], ["Bsh"])
    assert selection.web_fetch
    assert offered(selection) == {"view"}


@pytest.mark.parametrize("name", ["Bash(git diff:*)", "Read(src/**)", "Edit (docs/*)", "mcp__a__b(x)"])
def test_a_restricted_name_is_reported_and_grants_nothing(name: str) -> None:
    selection = select([name], [])
    assert selection.restricted == [name]
    assert offered(selection) == set()


def test_a_restriction_withholds_the_tool_even_if_it_is_also_named_freely() -> None:
    assert offered(select(["Bash", "Bash(git diff:*)", "Grep"], [])) == {"grep"}
    assert offered(select(None, ["Bash(rm:*)"])) == EVERYTHING - {"bash"}


def test_a_star_in_brackets_restricts_nothing() -> None:
    selection = select(["Bash(*)"], [])
    assert selection.bash
    assert selection.restricted == []


def test_a_restriction_of_a_name_that_no_tool_has_is_unknown() -> None:
    assert select(["Skill(pdf)"], []).unknown == ["Skill(pdf)"]


@pytest.mark.parametrize(
    ("names", "domains"),
    [
        (["WebFetch"], []),
        (["webfetch(*)"], []),
        (["WebFetch(domain:Example.com)"], ["example.com"]),
        (["WebFetch(domain: a.org, domain:*.b.org/docs)", "WebFetch(domain:a.org)"], ["a.org", "b.org/docs"]),
        (["WebFetch", "WebFetch(domain:a.org)"], ["a.org"]),
        (["WebFetch(domain:*)"], []),
    ],
)
def test_pages_are_fetched_from_the_domains_that_are_named_or_from_all(
    names: list[str], domains: list[str]
) -> None:
    selection = select(names, [])
    assert selection.web_fetch and selection.fetch_domains == domains and not selection.restricted


@pytest.mark.parametrize("name", ["WebFetch(https://a.org)", "WebSearch(domain:a.org)", "WebFetch(domain:)"])
def test_any_other_condition_of_a_web_tool_cannot_be_kept(name: str) -> None:
    selection = select([name], [])
    assert selection.restricted == [name] and not (selection.web_search or selection.web_fetch)


def test_web_tools_a_listing_and_the_to_do_list_are_there_only_if_they_are_named() -> None:
    for everything in (select(None, []), select(["*"], [])):
        assert not (everything.web_search or everything.web_fetch or everything.ls or everything.todos)
    named = select(["*", "WebSearch", "LS", "TodoWrite", "TaskGet"], [])
    assert named.web_search and named.ls and named.bash and named.todos == ["todo_write", "task_get"]
    removed = select(["WebSearch", "LS", "TodoWrite"], ["*"])
    assert not (removed.web_search or removed.ls or removed.todos)


def test_code_mode_is_off_where_its_tool_is_forbidden() -> None:
    agent = AgentDefinition(name="a", code_mode=CodeMode(enabled=True))
    forbidden = agent.model_copy(update={"disallowed_tools": ["execute_python_code"]})
    assert agent.enabled_code_mode is not None and forbidden.enabled_code_mode is None
