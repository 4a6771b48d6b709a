"""Files that are meant to hurt, or that nobody meant at all: each ends, soon, in an agent or a reason."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_agent_file, load_config
from subagent_server.agents.known_names import missing_agents, tool_refusals, verdict_of
from subagent_server.agents.variables import expand_as_far_as_set, redact
from subagent_server.agents.yaml_reader import MAX_BYTES, AgentFileError
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import visible
from tests.agents.conftest import WriteFile
from tests.helpers.scale import times

MIB = 1 << 20
LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
HEAVY = {
    "aliases-that-multiply": LAUGHS,
    "merges-that-multiply": "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}\n" if n else "a0: &a0 {k: 1}\n"
        for n in range(12)
    ),
    "an-alias-of-itself": "a: &a [*a]\n",
    "deep-brackets": "x: " + "[" * MIB,
    "deep-braces": "x: " + "{a: " * (MIB // 4),
    "deep-blocks": "".join(" " * depth + "k:\n" for depth in range(1400)),
    "many-keys": "".join(f"k{n}: v\n" for n in range(MIB // 10)),
    "many-equal-keys": "k: v\n" * (MIB // 5),
    "many-lines-of-prose": "description: Use: it\n" + "Context: foo bar\n" * (MIB // 17),
    "many-colons": "description: " + "a: " * (MIB // 3),
    "many-quotes": 'description: "' + '\\n"' * (MIB // 3),
    "many-blank-lines": "name: a: b\ndescription: x" + "\n" * MIB,
    "many-tools": "tools: " + "Read(a, " * (MIB // 8),
    "many-brackets": "tools: " + "(" * MIB,
    "a-long-key": "? " + "k" * MIB + "\n: v",
    "a-long-tag": "model: !" + "t" * 100_000 + " x",
}


@pytest.mark.parametrize("name", list(HEAVY))
def test_front_matter_that_multiplies_or_nests_is_read_in_seconds(write: WriteFile, name: str) -> None:
    path = write("a.md", f"---\nname: a\n{HEAVY[name]}\n---\nbody\n")
    started = time.monotonic()
    try:
        agent = load_agent_file(path)
    except AgentFileError as error:
        assert len(error.sentence) < 2000
    else:
        assert agent.name in ("a", "a: b")
        assert len(redact(agent)) > 0
        assert all(len(reason) < 5_000 for reason in (*agent.faults, *agent.warnings))
    assert time.monotonic() - started < 60


def test_a_key_that_does_not_print_is_named_by_escapes(write: WriteFile) -> None:
    twice = r'{command: x, env: {"\U00011500\x1b": a, "\U00011500\x1b": b}}'
    agent = load_agent_file(write("a.md", f"---\nname: a\nmcpServers:\n  s: {twice}\n---\nbody\n"))
    assert agent.faults and all(visible(reason) == reason for reason in agent.faults)
    with pytest.raises(AgentFileError) as caught:
        load_config(write("a.cpe.yaml", f"version: '1.0'\nmodels:\n- {twice}\n"))
    assert visible(caught.value.sentence) == caught.value.sentence


@pytest.mark.parametrize("name", ["aliases-that-multiply", "deep-brackets", "many-keys"])
def test_a_configuration_that_multiplies_or_nests_is_refused(write: WriteFile, name: str) -> None:
    path = write("a.yaml", f"subagent: {{name: a, description: d}}\n{HEAVY[name]}\n")
    with pytest.raises(AgentFileError, match="not YAML"):
        load_config(path)


MANY = range(9_000)
NAMES = {
    "agents": f"agents: {', '.join(f'x{n}' for n in MANY)}",
    "domains": f"tools: {', '.join(f'WebFetch(domain:a{n}.b)' for n in MANY[:2_500])}\n"
    f"webFetch: {{allowedDomains: [{', '.join(f'b{n}.c' for n in MANY[:5_000])}]}}",
    "servers": f"mcpServers: [{', '.join(f's{n}' for n in MANY)}]\ntools: mcp__a__b",
    "patterns": f"mcpServers: [{', '.join(f's{n}' for n in MANY[:5_000])}]\n"
    f"tools: {', '.join(f'mcp__*{n}__b' for n in range(500))}",
    "patterns-in-parts": "mcpServers: {s: {command: x}}\n"
    f"tools: {', '.join(f'mcp__a*{n}' + '__bcd' * 38 for n in range(500))}",
    "tools-and-agents": f"agents: {', '.join('é' * 60 + str(n) for n in range(500))}\n"
    f"tools: {', '.join(f'x{n}' for n in range(500))}",
    "references": f"env: {{A: '{'${A:-' * 9_000}'}}",
    "a-long-name": f"tools: mcp__{'a__' * 30_000}",
    "a-costly-pattern": "failIf: {output: '(?i)%s'}" % ("[\u0100-\uffff]" * 500),
    "a-long-code": f"failIf: {{exitCodes: [{'9' * 5_000}]}}",
}


@pytest.mark.parametrize("front", NAMES.values(), ids=NAMES)
def test_no_names_hold_up_a_listing(write: WriteFile, front: str) -> None:
    path = write("a.md", f"---\nname: a\ndescription: d\n{front}\n---\nbody\n")
    took = []
    for _ in range(2):
        began = time.thread_time()
        agent = load_agent_file(path)
        verdict_of(agent)
        list(tool_refusals(agent))
        missing_agents(agent, [f"agent{n}" for n in MANY])
        expand_as_far_as_set(agent, {})
        took.append(time.thread_time() - began)
    assert min(took) < 1


def test_a_list_of_models_is_as_long_as_any_list_of_names(write: WriteFile) -> None:
    path = write("a.md", f"---\nname: a\ndescription: d\nmodel: [{', '.join(['opus'] * 501)}]\n---\nbody\n")
    assert load_agent_file(path).faults == ["model must have at most 500 names"]


def test_thousands_of_broken_keys_are_refused_at_once(write: WriteFile) -> None:
    keys = "".join(f"x{n}: a: b\n" for n in MANY)
    path = write("a.md", f"---\nname: a\ndescription: a: b\n{keys}---\nbody\n")
    began = time.thread_time()
    with pytest.raises(AgentFileError, match="cannot be understood"):
        load_agent_file(path)
    assert time.thread_time() - began < 1


def test_a_variable_that_no_program_can_get_is_a_fault(write: WriteFile) -> None:
    agent = "subagent: {name: a, description: d}\nrunner: command\ncommand: x\nenv: {A: '%s'}\n"
    just, over = (load_agent_file(write("a.yaml", agent % ("x" * n))).faults for n in (131_069, 131_070))
    assert just == [] and "128 KiB" in over[0]


def test_a_flow_with_a_number_that_nobody_can_write_down_has_a_fault(write: WriteFile) -> None:
    path = write("a.flow.py", f'"""d"""\ndef run(x: Literal[0x{"f" * 9_000}]) -> str: ...\n')
    assert "too long" in load_agent_file(path).faults[0]


def test_a_prompt_of_a_megabyte_loads_quickly(write: WriteFile) -> None:
    body = "Look at it twice.\n" * (MIB // 18)
    path = write("a.md", f"---\nname: a\ndescription: d\n---\n{body}")
    started = time.monotonic()
    assert load_agent_file(path).system_prompt == body.rstrip()
    assert time.monotonic() - started < 60


def test_a_file_over_the_limit_is_refused_with_its_reason(write: WriteFile, tmp_path: Path) -> None:
    write("big.md", b"---\nname: a\n---\n" + b"x" * MAX_BYTES)
    (problem,) = discover([tmp_path]).problems
    assert (problem.kind, "4 MiB" in problem.reason) == ("error", True)


KEYS = [
    *(name for name in AgentDefinition.model_fields),
    *("maxTurns", "limits", "mcpServers", "outputSchemaPath", "systemPromptPath", "hooks", "color"),
    *("<<", "x"),
]
SYNTAX = [
    *("---", "\n", "\t", "  ", ": ", ":", "- ", "#", "&a ", "*a", "!!str ", "|", ">-"),
    *('"', "'", "{", "}", "[", "]", ","),
]
WORDS = [
    *("Read", "Context", "user", "<example>", "\\n", "null", "true", "1", "1e9", "${X}"),
    *("é", "\u2028", "\x07", "subagent", "defaults", "models"),
]
soup = st.lists(st.sampled_from([*SYNTAX, *WORDS, *KEYS]), max_size=40).map("".join)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | soup
keys = st.sampled_from(KEYS) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def accepts_or_explains(path: Path) -> None:
    """Load a file in each way there is; anything but an agent or an `AgentFileError` fails the test."""
    for load in (load_agent_file, load_config):
        try:
            agent = load(path)
        except AgentFileError as error:
            assert error.path == path
            assert "\n" not in error.sentence
            error.sentence.encode("utf-8")
        else:
            stored = redact(agent)
            assert AgentDefinition.model_validate(stored).name == agent.name
            assert visible(agent.name) == agent.name


fuzz = settings(
    max_examples=times(50, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@fuzz
@given(front=soup, body=st.text(max_size=20))
def test_any_front_matter_is_an_agent_or_a_reason(write: WriteFile, front: str, body: str) -> None:
    accepts_or_explains(write("a.md", encoded(f"---\n{front}\n---\n{body}")))


@fuzz
@given(content=st.dictionaries(st.sampled_from(KEYS), values, max_size=6))
def test_any_value_under_any_key_is_an_agent_or_a_reason(
    write: WriteFile, content: dict[str, object]
) -> None:
    lines = "".join(f"{key}: {as_flow(value)}\n" for key, value in content.items())
    accepts_or_explains(write("a.md", encoded(f"---\n{lines}---\nbody")))
    flow = as_flow(content)
    accepts_or_explains(write("a.yaml", encoded(f"subagent: {flow}\ndefaults: {flow}\n")))


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def as_flow(value: object) -> str:
    """Write a value as YAML does on one line, without care for what it holds."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_flow, value)) + "]"
    return str(value)
