"""`${VAR}` in definitions, and the names of models."""

import pytest

from subagent_server.agents.known_names import ALIASES, DEFAULT_MODEL, resolve_model
from subagent_server.agents.variables import MissingVariable, expand, expand_definition
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "1"),
        ("x${A}y${B_2}", "x1y2"),
        ("${env:A} ${env:NOT:-b} ${input:A}", "1 b ${input:A}"),
        ("$${A} ${A}", "${A} 1"),
        ("${NOT:-fallback}", "fallback"),
        ("${EMPTY:-fallback}", "fallback"),
        ("${NOT:-}", ""),
        ("$${A} ${NOT:-${A:-$${b", "${A} ${NOT:-${A:-${b"),
        ("${EMPTY}", ""),
        ("$A ${} ${x%.py} ${a b} $", "$A ${} ${x%.py} ${a b} $"),
        ("${SELF}", "${A}"),
    ],
)
def test_a_variable_is_replaced_once_and_other_dollars_stay(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B_2": "2", "EMPTY": "", "SELF": "${A}"}) == expected


def test_a_missing_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(MissingVariable, match="GONE is not set") as caught:
        expand("x ${GONE}", {})
    assert caught.value.variable == "GONE"


def test_a_definition_is_expanded_where_programs_and_servers_read_it() -> None:
    definition = AgentDefinition(
        name="a",
        system_prompt="Keep ${A}.",
        env={"B": "${A}2"},
        cwd="/srv/${A}",
        args=["${B}"],
        mcp_servers={
            "s": ServerDefinition(command="${A}", args=["${B}"], env={"X": "${A}"}),
            "h": ServerDefinition(type="http", url="http://${B}/", headers={"K": "v ${A}"}),
        },
    )
    expanded = expand_definition(definition, {"A": "1"})
    assert expanded.system_prompt == "Keep ${A}."
    assert (expanded.env, expanded.cwd, expanded.args) == ({"B": "12"}, "/srv/1", ["12"])
    assert expanded.mcp_servers["s"] == ServerDefinition(command="1", args=["12"], env={"X": "1"})
    assert (expanded.mcp_servers["h"].url, expanded.mcp_servers["h"].headers) == ("http://12/", {"K": "v 1"})


def test_a_missing_variable_of_a_server_names_server_and_field() -> None:
    server = ServerDefinition(type="http", url="http://h", headers={"Authorization": "Bearer ${TOKEN}"})
    with pytest.raises(MissingVariable, match=r"TOKEN is not set for mcpServers\.s\.headers\.Authorization"):
        expand_definition(AgentDefinition(name="a", mcp_servers={"s": server}), {})


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("opus", "claude-opus-5-5"),
        ("Sonnet", "claude-sonnet-5-5"),
        ("haiku", "claude-haiku-5-5"),
        ("sonnet[1m]", "claude-sonnet-5-5"),
        ("inherit", DEFAULT_MODEL),
        (None, DEFAULT_MODEL),
        ("", DEFAULT_MODEL),
        ("claude-opus-4-8", "claude-opus-4-8"),
        ("anthropic/claude-opus-4-8", "claude-opus-4-8"),
        ("my-gateway/Model", "my-gateway/Model"),
        ("Claude Sonnet 4.5", "claude-sonnet-4-5"),
        ("Claude Opus 4.1 (copilot)", "claude-opus-4-1"),
        ("My Own Model", "My Own Model"),
    ],
)
def test_an_alias_is_an_id_and_an_id_is_itself(name: str | None, model: str) -> None:
    assert resolve_model(name) == model


def test_no_alias_leads_to_an_alias() -> None:
    assert not set(ALIASES.values()) & set(ALIASES)
