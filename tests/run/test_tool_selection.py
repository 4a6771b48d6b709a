"""Which tools an agent file selects."""

import pytest

from subagent_server.run.agent_definition import AgentDefinition, CodeMode, select

EVERYTHING = "bash view edit grep glob"
SELECTED = {
    "Bash": "bash",
    "Read": "view",
    "Write": "view edit",
    "Edit": "view edit",
    "MultiEdit": "view edit",
    "Grep": "grep",
    "Glob": "glob",
    "LS": "ls",
    "bash, str_replace_based_edit_tool, grep, glob": EVERYTHING,
    "READ, grep ": "view grep",
    "*": EVERYTHING,
    "": "",
    "Bash(*)": "bash",
    "Bash, Bash(git diff:*), Grep": "grep",
    "WebSearch": "web_search",
    "webfetch(*)": "web_fetch",
    "WebFetch(domain:*)": "web_fetch",
    "*, WebSearch, LS, TodoWrite, TaskGet": f"{EVERYTHING} ls web_search todo_write task_get",
    # Behind the bar stand those that are disallowed.
    "Read, Edit | Edit": "view",
    "Write | Read": "edit",
    "Read, Write | Read, Write": "",
    "Read | *": "",
    "Read | Bash": "view",
    "WebSearch, LS, TodoWrite | *": "",
    "* | Bash": "view edit grep glob",
    "* | Write": "bash view grep glob",
    "* | str_replace_based_edit_tool": "bash grep glob",
    "* | Bash(rm:*)": "view edit grep glob",
}


def names(text: str) -> list[str]:
    return text.split(",")


@pytest.mark.parametrize(("written", "tools"), SELECTED.items())
def test_a_name_of_an_agent_file_selects_its_tools(written: str, tools: str) -> None:
    wanted, _, disallowed = written.partition("|")
    selection = select(names(wanted), names(disallowed))
    flags = ("bash", "view", "edit", "grep", "glob", "ls", "web_search", "web_fetch")
    found = [name for name in flags if getattr(selection, name)]
    assert [*found, *selection.todos] == tools.split()
    assert selection.unknown == []


def test_no_list_of_tools_selects_all_on_files_and_programs_and_all_of_servers() -> None:
    assert select(None, []) == select(["*"], [])


def test_names_of_mcp_tools_are_passed_through_as_written() -> None:
    selection = select(["Read", "mcp__GitHub__search_issues", "mcp__files"], ["mcp__files__remove"])
    assert selection.mcp == ["mcp__GitHub__search_issues", "mcp__files"]
    assert (selection.mcp_disallowed, selection.unknown) == (["mcp__files__remove"], [])
    assert [select(["Read"], []).mcp, select(["*"], []).mcp, select(None, ["*"]).mcp] == [[], None, []]


def test_a_name_that_nothing_offers_is_unknown_and_the_rest_counts() -> None:
    selection = select(["WebFetch", "Read", "NotebookEdit", "Skill(pdf)"], ["Bsh"])
    assert selection.unknown == ["NotebookEdit", "Skill(pdf)"] and selection.unknown_disallowed == ["Bsh"]
    assert selection.web_fetch and selection.view and not selection.edit


@pytest.mark.parametrize(
    "name",
    [
        *("Bash(git diff:*)", "Read(src/**)", "Edit (docs/*)", "mcp__a__b(x)"),
        *("WebFetch(https://a.org)", "WebSearch(domain:a.org)", "WebFetch(domain:)"),
    ],
)
def test_a_condition_that_cannot_be_kept_is_reported_and_grants_nothing(name: str) -> None:
    selection = select([name], [])
    assert selection.restricted == [name]
    nothing = select([], [])
    assert selection.__dict__ | {"restricted": []} == nothing.__dict__


@pytest.mark.parametrize(
    ("written", "domains"),
    [
        ("WebFetch", []),
        ("WebFetch(domain:Example.com)", ["example.com"]),
        ("WebFetch, WebFetch(domain:a.org)", ["a.org"]),
    ],
)
def test_pages_are_fetched_from_the_domains_that_are_named_or_from_all(
    written: str, domains: list[str]
) -> None:
    selection = select(names(written), [])
    assert selection.web_fetch and selection.fetch_domains == domains
    several = select(["WebFetch(domain: a.org, domain:*.b.org/docs)", "WebFetch(domain:a.org)"], [])
    assert several.fetch_domains == ["a.org", "b.org/docs"]


def test_code_mode_is_off_where_its_tool_is_forbidden() -> None:
    agent = AgentDefinition(name="a", code_mode=CodeMode(enabled=True))
    forbidden = agent.model_copy(update={"disallowed_tools": ["execute_python_code"]})
    assert agent.enabled_code_mode is not None and forbidden.enabled_code_mode is None
