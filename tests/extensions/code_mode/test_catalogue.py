"""The functions of a program: their names, what the model reads, and how a program finds them. Pure."""

import builtins
import keyword
from typing import cast

import pytest

from subagent_server.extensions.code_mode.inside import Line, module_of, names_of
from subagent_server.extensions.code_mode.python_text import MODULE_NAMES, PROGRAM_NAMES
from subagent_server.extensions.code_mode.stubs import Catalogue, ServerTool, catalogue_of
from subagent_server.run.errors import RunRefused

PLENTY = 1_000_000
WITH_ID = {"type": "object", "properties": {"id": {}, "page": {}}, "required": ["id"]}


def named(*names: str) -> Catalogue:
    """Return the catalogue of tools that are named `server/tool`."""
    return catalogue_of([ServerTool(*name.split("/", 1)) for name in names])


@pytest.mark.parametrize(
    ("name", "qualified"),
    [
        ("github/search-issues", "github.search_issues"),
        ("my.server/get/one", "my_server.get_one"),
        ("time/now", "time_.now"),
        ("class/import", "class_.import_"),
        ("help/list", "help_.list_"),
        ("log/show", "log_.show"),
        ("1st/2nd", "_1st._2nd"),
        ("a/__init__", "a._init__"),
        ("größe/获取", "größe.获取"),
        ("!!/\ud800", "server_233d26e9.tool_91a681b9"),
        ("a/" + "x" * 300, "a." + "x" * 55 + "_0d4e2ca9"),
    ],
)
def test_a_name_in_any_script_becomes_a_name_of_python(name: str, qualified: str) -> None:
    (function,) = named(name).functions
    assert function.qualified == qualified
    compile(f"{function.stub.text}\n{qualified}()", "stub", "exec")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a/get-one", "a/get_one"], ["'get-one' and 'get_one'", "excludedTools", "disabledTools"]),
        (["a/execute_python_code"], ["execute_python_code", "excludedTools", "disabledTools"]),
        (["a-b/x", "a_b/x"], ["'a-b' and 'a_b'", "Rename"]),
    ],
)
def test_names_that_clash_refuse_the_start_and_say_the_ways_out(names: list[str], said: list[str]) -> None:
    with pytest.raises(RunRefused) as refused:
        named(*names)
    assert refused.value.failure_code == "config"
    for words in said:
        assert words in f"{refused.value.sentence} {refused.value.hint}"


def test_a_tool_that_is_listed_twice_is_one_function() -> None:
    assert len(named("a/x", "a/x").functions) == 1


def test_a_name_stands_alone_if_it_is_unique_and_means_nothing_else() -> None:
    reserved = ["help", "gather", "print", "json", "list", "b"]
    catalogue = named("a/one", "a/both", "b/both", *(f"a/{name}" for name in reserved), "a/match")
    assert {name: each.qualified for name, each in catalogue.flat.items()} == {
        "one": "a.one",
        "list_": "a.list_",
        "match": "a.match",
    }
    assert not any(keyword.iskeyword(name) or hasattr(builtins, name) for name in catalogue.flat)


def test_the_names_that_a_program_has_anyway_are_reserved() -> None:
    assert names_of(cast(Line, None), [], []).keys() <= PROGRAM_NAMES
    module = {name for name in vars(module_of(cast(Line, None), {}, [])) if not name.startswith("__")}
    assert module <= PROGRAM_NAMES | MODULE_NAMES


def test_the_model_reads_every_stub_under_its_server() -> None:
    catalogue = catalogue_of([ServerTool("a", "get", "Gets.", WITH_ID), ServerTool("b", "go", "", WITH_ID)])
    assert catalogue.text(PLENTY) == (
        "# Call each with its server: a.get(...)\n"
        "# --- a ---\n"
        'def get(*, id: Any, page: Any = ...) -> Text:\n    """Gets."""\n'
        "# --- b ---\n"
        "def go(*, id: Any, page: Any = ...) -> Text:\n    ..."
    )
    assert named().text(PLENTY) == ""


def test_five_hundred_tools_cost_a_few_hundred_tokens_and_every_server_is_named() -> None:
    names = [
        f"server{number % 10}/{verb}_{number}"
        for verb in ("get", "list", "set", "drop")
        for number in range(125)
    ]
    catalogue = named(*names)
    text = catalogue.text(16_000)
    assert len(catalogue.text(PLENTY)) > 16_000 and len(text) < 1_600
    assert text.startswith("# 500 functions. In a program, help(server0.get_0) prints one whole,\n")
    for server in range(10):
        assert f"# server{server} (" in text
    assert len(named(*(f"s{number}/x" for number in range(500))).text(0)) < 1_600


def test_a_program_finds_functions_by_words_and_prints_one_whole() -> None:
    issues = ServerTool("github", "search_issues", "Finds issues.\nMore.", WITH_ID)
    catalogue = catalogue_of([issues, ServerTool("mail", "send", "Sends mail about an issue.")])
    found = catalogue.search("Issues, please").splitlines()
    assert found == ["github.search_issues(id, page=...)  # Finds issues."]
    assert [line.partition("(")[0] for line in catalogue.search("issue").splitlines()] == [
        "github.search_issues",
        "mail.send",
    ]
    assert catalogue.search("zebra").startswith("No function has a word of 'zebra'.\n# 2 functions.")
    assert catalogue.help("github.search_issues") == f"# github\n{catalogue.functions[0].stub.text}"
    assert catalogue.help("send") == f"# mail\n{catalogue.functions[1].stub.text}"
    assert catalogue.help("mail") == "mail.send(...)  # Sends mail about an issue."
    assert "are github.search_issues, " in catalogue.help("github.search_isues")
    assert len(catalogue.help("x" * 10_000)) < 300


def test_lists_for_a_program_have_an_end() -> None:
    catalogue = catalogue_of([ServerTool("a", f"get_{number}", "d" * 999) for number in range(1_000)])
    assert len(catalogue.search("get " * 10_000)) < 4_000 and "and 980 more" in catalogue.search("get")
    assert len(catalogue.help("a")) < 40_000 and "and 800 more" in catalogue.help("a")


def test_who_looks_for_functions_where_there_are_none_is_told_so() -> None:
    nothing = Catalogue((), {})
    for answer in (nothing.help(""), nothing.help("x"), nothing.search(""), nothing.search("x")):
        assert "no function" in answer.lower()
