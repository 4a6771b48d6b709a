"""The functions of tools as the model reads them. Pure."""

import ast
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from subagent_server.extensions.code_mode.stubs import ServerTool, Stub, catalogue_of
from tests.extensions.code_mode.values import check_hints
from tests.fuzz.dice import FUZZED
from tests.helpers.processes import REPOSITORY
from tests.helpers.scale import times
from tests.toolbox.mcp.test_input_schemas import SCHEMAS

SEARCH = ServerTool(
    "github",
    "search-issues",
    'Finds "issues".\n\nNewest first.',
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words\nto find"},
            "state": {"enum": ["open", "closed"], "default": "open"},
            "page": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1, "description": "Page"},
            "labels": {"type": "array", "items": {"type": "string"}, "default": []},
            "from": {"type": "string", "format": "date"},
        },
        "required": ["query"],
    },
    {
        "type": "object",
        "properties": {"total": {"type": "integer"}, "items": {"items": {"$ref": "#/$defs/Issue"}}},
        "required": ["total"],
        "$defs": {
            "Issue": {
                "type": "object",
                "description": "An issue",
                "properties": {"number": {"type": "integer"}},
            }
        },
    },
)
WRITTEN = '''\
class Issue(TypedDict):  # An issue
    number: NotRequired[int]
class SearchIssuesResult(TypedDict):
    total: int
    items: NotRequired[list[Issue]]
def search_issues(*,
    query: str,  # Words to find
    state: Literal['open', 'closed'] = 'open',
    page: int = 1,  # Page; minimum 1; maximum 100
    labels: list[str] = ...,  # default []
    from_: str = ...,  # format date
) -> SearchIssuesResult:
    """Finds "issues".

    Newest first."""
'''


def stub_of(
    description: str = "", input_schema: Any = None, output_schema: Any = None, name: str = "tool"
) -> Stub:
    """Return the stub of one tool."""
    (function,) = catalogue_of([ServerTool("box", name, description, input_schema, output_schema)]).functions
    return function.stub


def test_a_tool_becomes_a_function_with_its_types_defaults_bounds_and_words() -> None:
    (function,) = catalogue_of([SEARCH]).functions
    assert function.stub.text == WRITTEN
    assert [(p.name, p.key, p.required) for p in function.stub.parameters][::4] == [
        ("query", "query", True),
        ("from_", "from", False),
    ]


def test_the_example_of_the_documents_is_what_the_model_reads() -> None:
    sort = {
        "type": "object",
        "properties": {
            "by": {"enum": ["created", "updated"]},
            "descending": {"type": "boolean", "default": True},
        },
        "required": ["by"],
    }
    properties = {
        "query": {"type": "string", "description": "Words to find"},
        "sort": sort,
        "page": {"type": "integer", "minimum": 1, "default": 1},
    }
    tool = ServerTool(
        "github",
        "search_issues",
        "Finds issues of a repository.",
        {"type": "object", "properties": properties, "required": ["query"]},
    )
    page = (REPOSITORY / "docs" / "code-mode.md").read_text(encoding="utf-8")
    assert f"```text\n{catalogue_of([tool]).text(10_000)}\n```" in page


@pytest.mark.parametrize(
    ("output_schema", "result", "unwraps"),
    [
        (None, "Text", False),
        ({}, "Any", False),
        ({"type": "object"}, "dict[str, Any]", False),
        (
            {"properties": {"result": {"items": {"type": "number"}}}, "required": ["result"]},
            "list[float]",
            True,
        ),
        ({"properties": {"result": {}, "more": {}}, "required": ["result"]}, "ToolResult", False),
        ({"prefixItems": [{}, {}], "minItems": 2, "maxItems": 2}, "list[Any]", False),
        ("object", "Any", False),
    ],
)
def test_the_result_is_typed_and_a_sole_result_is_unwrapped(
    output_schema: Any, result: str, unwraps: bool
) -> None:
    stub = stub_of(input_schema={"properties": {}}, output_schema=output_schema)
    assert f"def tool() -> {result}:" in stub.text and stub.unwraps is unwraps


@pytest.mark.parametrize(
    ("input_schema", "signature", "takes_more"),
    [
        ({"type": "object", "properties": {}}, "tool()", False),
        ({"type": "object"}, "tool(**others: Any)", True),
        ({"type": "object", "additionalProperties": False}, "tool()", False),
        (
            {"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
            "tool(**others: str)",
            True,
        ),
        (
            {"properties": {"others": {}}, "additionalProperties": {"type": "string"}},
            "tool(*, others: Any = ..., **others_: str)",
            True,
        ),
        (
            {"properties": {"a!": {}, "a": {}, "a_": {}, "a?": {}}},
            "tool(*, a_242ed538: Any = ..., a: Any = ..., a_: Any = ..., a_5289f1df: Any = ...)",
            False,
        ),
        (
            {"properties": {"a b": {}, "a-b": {}, "a_b": {}}},
            "tool(*, a_b_: Any = ..., a_b_d44362d6: Any = ..., a_b: Any = ...)",
            False,
        ),
        (
            {"properties": {"": {}, "1": {}, "ñ": {}, "None": {}}, "required": ["1"]},
            "tool(*, argument_e3b0c442: Any = ..., _1: Any, ñ: Any = ..., None_: Any = ...)",
            False,
        ),
        ("nonsense", "tool(**others: Any)", True),
    ],
)
def test_arguments_of_any_name_are_parameters(input_schema: Any, signature: str, takes_more: bool) -> None:
    stub = stub_of(input_schema=input_schema)
    assert f"def {signature} -> Text:" in stub.text and stub.takes_more is takes_more


HOSTILE = st.text(
    st.sampled_from("\"\\'#\n\r\t\x00\x1b\x0c\u2028\u202e\ud800{}abc:") | st.characters(codec=None),
    max_size=40,
)


@pytest.mark.fuzz
@FUZZED
@given(SCHEMAS, SCHEMAS)
def test_whatever_a_server_calls_a_schema_becomes_a_function(taken: Any, returned: Any) -> None:
    for schema in (taken, {"properties": taken, "required": returned, "$defs": {"a": returned}}):
        (function,) = catalogue_of([ServerTool("box", "tool", "", schema, returned)]).functions
        check_hints(function)


@settings(max_examples=times(50, 150), deadline=None, database=None)
@given(HOSTILE, HOSTILE, HOSTILE)
@example('Ends with """', "", "a")
def test_words_of_a_server_stay_words(description: str, about: str, key: str) -> None:
    inner = {"type": "object", "properties": {key: {"description": about, "enum": [about]}}}
    schema = {"type": "object", "properties": {key: {"description": about, "default": about}, "in": inner}}
    text = stub_of(description, schema, schema, name=key or "t").text
    assert text.replace("\n", "").isprintable()
    *types, function = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef) and len(function.body) == 1
    assert all(isinstance(each, ast.ClassDef | ast.Assign) for each in types)
    words = " ".join(description.split())
    assert " ".join((ast.get_docstring(function) or "").split()) == words


def test_long_words_are_cut_and_no_comment_is_read_as_code() -> None:
    long = {"properties": {"a": {"description": "a" * 50_000, "default": "b" * 50_000}}}
    text = stub_of("d" * 50_000, long).text
    assert len(text) < 13_000 and text.count("…") == 3
    for words, shown in {"type: ignore": "# (type: ignore)", "type:int": "# (type:int)"}.items():
        assert shown in stub_of(input_schema={"properties": {"a": {"description": words}}}).text
    wrong = {"properties": {"n": {"type": "integer", "default": "ten"}}}
    assert "n: int = ...,  # default ten" in stub_of(input_schema=wrong).text
