"""The list of tools as a client and the model behind it see it (SPEC section 5)."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import mcp_types as types
import pytest
from jsonschema import Draft202012Validator

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import COMMANDS, BadArgument
from subagent_server.tools.parent_tools import MANY_AGENTS, run_tool
from subagent_server.tools.spec import Schema, ToolSpec, check_arguments, output_answer
from subagent_server.tools.tool_table import LIFECYCLE_TOOLS, TOOLS
from tests.helpers.mcp_client import Mode
from tests.helpers.turns import says
from tests.helpers.world import World

PARENT = list(COMMANDS)
CHILD = ["ask_parent", "update_status"]
RESULT = {
    "type": "object",
    "properties": {"verdict": {"$ref": "#/$defs/verdict"}, "next": {"$ref": "#"}},
    "required": ["verdict"],
    "additionalProperties": False,
    "$defs": {"verdict": {"enum": ["good", "bad"]}},
}


def names(tools: Sequence[types.Tool]) -> list[str]:
    return [tool.name for tool in tools]


def seen_by_the_model(tool: types.Tool | ToolSpec) -> int:
    """Return how many bytes of a tool a model sees."""
    schema = tool.shown_arguments if isinstance(tool, ToolSpec) else tool.input_schema
    shown = {"name": tool.name, "description": tool.description, "input_schema": schema}
    return len(json.dumps(shown, separators=(",", ":"), ensure_ascii=False).encode())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_tool_is_listed_in_a_stable_order_with_all_that_a_client_shows(
    world: World, mode: Mode
) -> None:
    world.agent("Zoe Two")
    world.agent("anna", outputSchema=RESULT)
    with world.serve(mode=mode) as parent:
        assert parent.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert "run_<agent>" in parent.instructions
        tools = parent.tools()
    assert names(tools) == ["run_zoe_two", "run_anna", *PARENT, *CHILD]
    for tool in tools:
        assert tool.title and tool.description and tool.annotations is not None
        Draft202012Validator.check_schema(tool.input_schema)
        if tool.output_schema is not None:
            assert tool.output_schema["type"] == "object"
            Draft202012Validator.check_schema(tool.output_schema)
    assert [tool.name for tool in tools if tool.output_schema is None] == ["run_zoe_two"]
    hints = {tool.name: tool.annotations for tool in tools}
    assert [n for n, hint in hints.items() if hint and hint.read_only_hint] == PARENT[1:4]
    assert [n for n, hint in hints.items() if hint and hint.destructive_hint] == ["stop_run"]


def test_the_output_schema_of_an_agent_holds_the_schema_of_its_result_with_its_references(
    world: World,
) -> None:
    world.agent(outputSchema=RESULT)
    with world.serve() as parent:
        schema = next(tool.output_schema for tool in parent.tools() if tool.name == "run_worker")
    assert schema is not None
    validator = Draft202012Validator(schema)

    def fits(output: Any) -> bool:
        view = {"runId": "r", "agent": "worker", "status": "completed", "revision": 3, "elapsedSeconds": 1.0}
        return validator.is_valid({**view, "output": output})

    assert fits({"verdict": "good"}) and fits({"verdict": "good", "next": {"verdict": "bad"}})
    assert not fits({"verdict": "ugly"}) and not fits({"verdict": "good", "next": {}}) and not fits([])


@pytest.mark.parametrize(
    "rule",
    [
        *({"pattern": "(?i)^a"}, {"patternProperties": {"(?P<n>a)": {}}}, {"multipleOf": 0.01}),
        *({"nullable": True}, {"id": "a"}, {"enum": []}, {"$ref": "http://json-schema.org/draft-07/schema#"}),
    ],
)
def test_an_output_has_no_schema_with_rules_that_clients_read_otherwise(rule: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": rule}}
    assert output_answer(schema)["properties"]["output"] == {}
    names: dict[str, Any] = {"properties": {"pattern": {}, "id": {}, "multipleOf": {}, "nullable": {}}}
    assert output_answer(names)["properties"]["output"] == names, "names of properties are no rules"


def test_a_parent_sees_no_tool_of_a_child_and_pays_little_for_the_others(world: World) -> None:
    world.agent("security-reviewer")
    with world.serve("--role", "parent") as parent:
        agent, *generic = parent.tools()
    assert names(generic) == PARENT
    assert sum(map(seen_by_the_model, generic)) <= 3400
    assert agent.description is not None
    assert seen_by_the_model(agent) - len(agent.description.encode()) <= 400


def test_role_child_needs_the_environment_of_a_run(world: World) -> None:
    assert "SUBAGENT_RUN_ID and SUBAGENT_RUN_TOKEN" in world.refused("serve", "--role", "child")


def test_a_model_reads_defaults_in_words_and_bounds_when_it_breaks_them(world: World) -> None:
    with world.serve() as parent:
        assert "default 0" in parent.instructions
        listed = [
            argument for tool in parent.tools() for argument in tool.input_schema["properties"].values()
        ]
        numbers = [argument for argument in listed if argument.get("type") in ("number", "integer")]
        assert "greater than the maximum of 500" in parent.refused("list_runs", limit=501)
    assert len(numbers) >= 6 and all("Default " in argument["description"] for argument in numbers)
    assert not any({"default", "title", "minimum", "maximum", "maxLength"} & set(each) for each in listed)


def test_every_argument_says_what_it_is_for() -> None:
    for tool in EVERY_TOOL:
        shown = tool.shown_arguments["properties"]
        assert [name for name, argument in shown.items() if "description" not in argument] == [], tool.name


def test_what_is_no_text_may_be_given_as_text(world: World) -> None:
    world.agent_saying(says("Done."))
    with world.serve() as parent:
        run_id = parent.call("run_worker", prompt="Go.", waitSeconds=" 45 ", inputs="[]")["runId"]
        assert parent.call("wait_for_runs", runIds=f'["{run_id}"]', waitSeconds="0.5")["runs"]
        assert len(parent.call("list_runs", limit="5", all="True")["runs"]) == 1
        assert parent.call("get_logs", runId=run_id, lines="2.0")["text"].count("\n") == 1
        for odd in ("many", "1e3", "0x10", "9" * 40, "\uff11\uff12"):
            assert "limit: " in parent.refused("list_runs", limit=odd)
        assert "50.5 is not of type 'integer'" in parent.refused("list_runs", limit="50.5")
        assert "greater than the maximum" in parent.refused("list_runs", limit="501")


@pytest.mark.parametrize(
    ("kinds", "written", "read"),
    [
        (("integer", "null"), "5", 5),
        (("array", "object", "null"), '["a"]', ["a"]),
        (("integer", "string"), "5", "5"),
        (("number", "boolean"), "yes", "yes"),
    ],
)
def test_a_choice_of_types_takes_text_for_what_is_none(
    kinds: tuple[str, ...], written: str, read: object
) -> None:
    schema: Schema = {"properties": {"x": {"anyOf": [{"type": kind} for kind in kinds]}}, "required": []}
    sent: dict[str, Any] = {"x": written}
    with suppress(BadArgument):
        check_arguments("run_flow", sent, schema)
    assert sent == {"x": read}


EVERY_TOOL = (*TOOLS, *LIFECYCLE_TOOLS, *MANY_AGENTS, run_tool(AgentDefinition(name="worker")))
OPTIONAL = [
    (tool, name)
    for tool in EVERY_TOOL
    for name in tool.arguments["properties"]
    if name not in tool.arguments["required"]
]


@pytest.mark.parametrize("filled", [None, ""])
@pytest.mark.parametrize(("tool", "name"), OPTIONAL, ids=lambda each: getattr(each, "name", each))
def test_an_optional_argument_that_is_null_or_empty_is_left_out(
    tool: ToolSpec, name: str, filled: str | None
) -> None:
    needed = {each: _anything(tool.arguments["properties"][each]) for each in tool.arguments["required"]}
    arguments = {**needed, name: filled}
    check_arguments(tool.name, arguments, tool.arguments)
    assert arguments == needed


def _anything(schema: Schema) -> Any:
    return schema["enum"][0] if "enum" in schema else ["x"] if schema.get("type") == "array" else "x"


def test_a_server_works_in_the_directory_of_its_flag(world: World) -> None:
    project = world.home / "project"
    (project / "agents").mkdir(parents=True)
    world.agent("local")
    (world.agents / "local.md").rename(project / "agents" / "local.md")
    for name in ("SUBAGENT_AGENTS", "SUBAGENT_RUNS"):
        del world.environment[name]
    world.play(says("Done."))
    with world.serve("--cwd", "../project", "--runs", "kept", "--trust") as parent:
        run_id = parent.call("run_local", prompt="Go.", waitSeconds=60)["runId"]
    request = json.loads((project / "kept" / run_id / "request.json").read_bytes())
    assert request["cwd"] == str(project)
    assert "nowhere" in world.refused("serve", "--cwd", "nowhere")


def test_a_call_of_an_agent_whose_file_has_gone_since_the_list_is_refused(world: World) -> None:
    world.agent("first")
    world.agent("second")
    with world.serve("--role", "parent") as parent:
        assert names(parent.tools())[:2] == ["run_first", "run_second"]
        (world.agents / "first.md").unlink()
        assert "the tools here are run_second" in parent.refused("run_first", prompt="Go.")


def test_a_server_without_any_agent_offers_the_other_tools_and_names_them_in_a_refusal(world: World) -> None:
    world.environment["SUBAGENT_AGENTS"] = str(world.home / "nowhere")
    with world.serve("--role", "parent") as parent:
        assert names(parent.tools()) == PARENT
        assert parent.call("list_runs") == {"runs": []}
        assert "the tools here are check_status" in parent.refused("run_worker", prompt="Go.")
