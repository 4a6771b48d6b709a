"""What the keys of an agent may hold, and how a wrong value is told."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_agent_file
from subagent_server.run.agent_definition import AgentDefinition, CodeMode, Limits

WriteFile = Callable[[str, str | bytes], Path]
Load = Callable[[str], AgentDefinition]


def test_limits_may_stand_in_a_mapping_or_at_the_top(agent: Load) -> None:
    nested = "limits:\n  maxTurns: 9\n  timeoutSeconds: 60.5\n  budget_usd: '1.50'\n  onAskTimeout: fail"
    at_top = "maxTurns: '9'\ntimeout-seconds: 60.5\nbudgetUsd: 1.50\nonAskTimeout: Fail"
    expected = Limits(
        max_turns=9,
        timeout_seconds=60.5,
        budget_usd=Decimal("1.50"),
        ask_timeout_seconds=3600,
        on_ask_timeout="fail",
    )
    assert agent(nested).limits == agent(at_top).limits == expected
    assert agent(nested).faults == agent(at_top).faults == []


def test_every_key_of_the_table_is_read(agent: Load) -> None:
    definition = agent(
        "runner: command\nmodel: opus\nbaseUrl: https://gate.example/v1\napiKeyEnv: MY_KEY\nmaxTokens: 4096\n"
        "effort: High\ntools: Read\ndisallowedTools: Bash, Write\nagents: scout, reviewer\ncodeMode: true\n"
        "sandbox: none\nnetwork: off\nsandboxWrite: [.claude/agents/, ./my notes, ~/.cache/pip, /var/x]\n"
        "sandboxLimits: {memoryBytes: 1024, processes: 2, file_bytes: 3}\n"
        "outputSchema: {type: object}\nmaxConcurrent: 2\nisolation: worktree\nenv: {A: 1, B: yes, C: ~}\n"
        "cwd: ./sub/${DIR}\ncommand: ./run.sh\nargs: [--n, 3, yes, '{systemPrompt}']"
    )
    assert definition.faults == definition.warnings == []
    assert definition.runner == "command"
    assert (definition.base_url, definition.api_key_env) == ("https://gate.example/v1", "MY_KEY")
    assert (definition.max_tokens, definition.effort) == (4096, "high")
    assert definition.disallowed_tools == ["Bash", "Write"]
    assert definition.agents == ["scout", "reviewer"]
    assert definition.code_mode == CodeMode(enabled=True)
    assert (definition.sandbox, definition.network) == ("none", False)
    assert definition.sandbox_limits is not None
    assert definition.sandbox_limits.memory_bytes == 1024
    assert definition.sandbox_write == [".claude/agents", "my notes", "~/.cache/pip", "/var/x"]
    assert definition.output_schema == {"type": "object"}
    assert (definition.max_concurrent, definition.isolation) == (2, "worktree")
    assert definition.env == {"A": "1", "B": "yes", "C": ""}
    assert definition.cwd == "./sub/${DIR}"
    assert (definition.command, definition.args) == ("./run.sh", ["--n", "3", "yes", "{systemPrompt}"])


@pytest.mark.parametrize(
    ("written", "enabled"),
    [("true", True), ("'yes'", True), ("false", False), ("{enabled: true}", True), ("{}", False)],
)
def test_code_mode_is_a_truth_value_or_a_mapping(agent: Load, written: str, enabled: bool) -> None:
    code_mode = agent(f"codeMode: {written}").code_mode
    assert code_mode is not None
    assert code_mode.enabled is enabled


def test_code_mode_has_its_own_keys(agent: Load) -> None:
    definition = agent(
        "codeMode: {enabled: true, excludedTools: 'a, b', maxTimeoutSeconds: '20', python: /opt/py}"
    )
    assert definition.code_mode == CodeMode(
        enabled=True, excluded_tools=["a", "b"], max_timeout_seconds=20, python="/opt/py"
    )


def test_code_mode_is_off_where_its_tool_is_forbidden(agent: Load) -> None:
    assert agent("codeMode: true").enabled_code_mode is not None
    assert agent("codeMode: true\ndisallowedTools: execute_python_code").enabled_code_mode is None


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("maxTurns: many", "limits.maxTurns"),
        ("maxTurns: 0", "limits.maxTurns"),
        ("maxTurns: 1.5", "limits.maxTurns"),
        ("maxTurns: [3]", "limits.maxTurns"),
        ("limits: 5", "limits"),
        ("limits: {timeoutSeconds: 5m}", "limits.timeoutSeconds"),
        ("timeoutSeconds: -1", "limits.timeoutSeconds"),
        ("timeoutSeconds: inf", "limits.timeoutSeconds"),
        ("timeoutSeconds: .nan", "limits.timeoutSeconds"),
        ("budgetUsd: -0.01", "limits.budgetUsd"),
        ("budgetUsd: nan", "limits.budgetUsd"),
        ("budgetUsd: lots", "limits.budgetUsd"),
        ("onAskTimeout: wait", "limits.onAskTimeout"),
        ("runner: gpt", "runner"),
        ("effort: ultra", "effort"),
        ("sandbox: docker", "sandbox"),
        ("isolation: remote", "isolation"),
        ("network: sometimes", "network"),
        ("maxTokens: 0", "maxTokens"),
        ("maxConcurrent: none", "maxConcurrent"),
        ("model: {id: opus}", "model"),
        ("model: My Own Model", "model"),
        ("tools: {write: some}", "tools"),
        ("tools: [Read, [Grep]]", "tools"),
        ("agents: {a: b}", "agents"),
        ("env: [A=1]", "env"),
        ("env: {A: {B: c}}", "env"),
        ("env: {'A=B': c}", "env"),
        ('env: {A: "x\\0y"}', "env"),
        ("args: --flag", "args"),
        ("cwd: [a]", "cwd"),
        ("baseUrl: gate.example", "baseUrl"),
        ("baseUrl: 'ftp://gate.example'", "baseUrl"),
        ("apiKeyEnv: sk-ant-abc", "apiKeyEnv"),
        ("codeMode: maybe", "codeMode.enabled"),
        ("codeMode: {maxTimeoutSeconds: 0}", "codeMode.maxTimeoutSeconds"),
        ("codeMode: {maxTimeoutSeconds: 301}", "codeMode.maxTimeoutSeconds"),
        ("sandboxLimits: {processes: -1}", "sandboxLimits.processes"),
        ("sandboxLimits: none", "sandboxLimits"),
        ("sandboxWrite: /", "sandboxWrite"),
        ("sandboxWrite: [sub, ../sub]", "sandboxWrite"),
        ("sandboxWrite: [.]", "sandboxWrite"),
        ("sandboxWrite: {a: b}", "sandboxWrite"),
        ("outputSchema: {type: strin}", "outputSchema"),
        ("outputSchema: ./schema.json", "outputSchema"),
        ("outputSchema: [1]", "outputSchema"),
        ("outputSchema: {properties: {a: {$ref: '#/$defs/gone'}}}", "outputSchema"),
        ("outputSchema: {properties: {a: {$dynamicRef: '#gone'}}}", "outputSchema"),
        ("outputSchema: {properties: {a: {pattern: '['}}}", "outputSchema"),
        ("outputSchemaPath: gone.json", "outputSchemaPath"),
        ("outputSchemaPath: .", "outputSchemaPath"),
        ("systemPrompt: twice", "systemPrompt"),
        ("systemPromptPath: gone.md", "systemPromptPath"),
        ("model: opus\nMODEL: haiku", "model"),
        ("tools: Read\ntools: Bash", "tools"),
        ("maxTurns: 3\nlimits: {maxTurns: 4}", "limits.maxTurns"),
        ("env: {A: 1, A: 2}", "env.A"),
    ],
)
def test_a_wrong_value_is_a_fault_that_names_its_key_and_the_rest_is_read(
    agent: Load, keys: str, name: str
) -> None:
    definition = agent(keys)
    assert (definition.name, definition.description) == ("a", "d")
    assert definition.system_prompt == "You help."
    assert len(definition.faults) == 1, definition.faults
    assert name in definition.faults[0]
    assert "\n" not in definition.faults[0]
    assert "pydantic" not in definition.faults[0]


def test_a_name_in_a_list_of_tools_keeps_its_spaces(agent: Load) -> None:
    tools = agent("tools: ['Microsoft Docs', 'Read, Write', 'Bash(git diff:*, git log:*)']").tools
    assert tools == ["Microsoft Docs", "Read", "Write", "Bash(git diff:*, git log:*)"]


def test_the_first_of_a_list_of_models_is_used(agent: Load) -> None:
    found = agent("model: [opus, sonnet]")
    assert (found.model, found.faults) == ("opus", [])
    assert found.warnings == ["model is a list, and a run has one model: the first is used"]


@pytest.mark.parametrize(
    ("written", "kind"),
    [("type: local\ncommand: x", "stdio"), ("type: remote\nurl: https://a", "http")],
)
def test_the_types_of_servers_in_other_dialects_are_understood(agent: Load, written: str, kind: str) -> None:
    found = agent("mcpServers:\n  a:\n" + "".join(f"    {line}\n" for line in written.split("\n")))
    assert (found.mcp_servers["a"].type, found.faults) == (kind, [])


def test_a_fault_of_a_field_does_not_hide_its_neighbours(agent: Load) -> None:
    definition = agent("limits: {maxTurns: many, timeoutSeconds: 5, budgetUsd: x}\neffort: none\nmodel: opus")
    assert definition.limits.timeout_seconds == 5
    assert definition.limits.max_turns == 100
    assert definition.model == "opus"
    assert len(definition.faults) == 3


def test_a_secret_in_a_wrong_place_is_not_repeated_in_the_fault(agent: Load) -> None:
    definition = agent("apiKeyEnv: sk-ant-abcdef\nenv: {KEY: [sk-ant-abcdef]}\nbaseUrl: sk-ant-abcdef")
    assert len(definition.faults) == 3
    assert "sk-ant" not in " ".join(definition.faults)


def test_unknown_keys_inside_a_part_are_named_with_the_part(agent: Load) -> None:
    definition = agent(
        "limits: {maxTurn: 3}\ncodeMode: {enabled: true, magic: 1}\nmcpServers: {x: {command: y, z: 1}}"
    )
    assert definition.faults == []
    assert len(definition.warnings) == 1
    assert set(definition.unknown) == {"limits.maxTurn", "codeMode.magic", "mcpServers.x.z"}


def test_an_unknown_key_given_twice_is_only_a_warning(agent: Load) -> None:
    definition = agent("color: red\ncolor: blue")
    assert definition.faults == []
    assert definition.unknown == {"color": "red"}
    assert len(definition.warnings) == 2


def test_keys_without_a_value_count_as_absent(agent: Load) -> None:
    keys = "model:\neffort: ~\nlimits:\nmaxTurns: null\nmcpServers:\nenv:\noutputSchema:\ncodeMode:"
    definition = agent(keys)
    assert definition.faults == definition.warnings == []
    assert definition.limits == Limits()


def test_the_agents_own_bookkeeping_cannot_be_set_from_a_file(agent: Load) -> None:
    definition = agent("faults: [x]\nwarnings: [y]\nsource: /etc/passwd\nunknown: {z: 1}")
    assert definition.faults == []
    assert definition.source is not None
    assert definition.source.name == "a.md"
    assert set(definition.unknown) == {"faults", "warnings", "source", "unknown"}


def test_faults_and_warnings_are_listed_with_their_lines(write: WriteFile) -> None:
    path = write(
        "a.md", "---\nname: a\ndescription: d\nmaxTurns: many\nenv:\n  A: 1\n  A: 2\ncolor: red\n---\nx"
    )
    problems = discover([path.parent]).problems
    assert [(p.kind, p.line, p.agent) for p in problems if p.kind == "fault"] == [
        ("fault", 4, "a"),
        ("fault", 7, "a"),
    ]
    assert [p.kind for p in problems if p.kind == "warning"] == ["warning"]


def test_a_name_that_no_screen_can_show_is_a_fault(agent: Load, write: WriteFile) -> None:
    for name in ('"a\\nb"', '"\\e[31mred"', "x" * 200, "[a, b]"):
        definition = load_agent_file(write("z.md", f"---\nname: {name}\ndescription: d\n---\nx"))
        assert len(definition.faults) == 1
        assert definition.name.isprintable()
        assert 0 < len(definition.name) <= 100


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("maxTurn: 3", "'maxTurn' (nearest: maxTurns)"),
        ("descripton: x", "'descripton' (nearest: description)"),
        (
            "mcpServers: {x: {command: y, enabledTool: [a]}}",
            "'mcpServers.x.enabledTool' (nearest: enabledTools)",
        ),
        ("mcpServers: {x: {command: y, tools: [a]}}", "not used: 'mcpServers.x.tools'"),
        ("category: x", "not used: 'category'"),
        ("model: sonet", "model 'sonet' is not known (nearest: sonnet)"),
    ],
)
def test_what_is_misspelt_is_a_warning_with_the_nearest_name(agent: Load, keys: str, words: str) -> None:
    definition = agent(keys)
    (warning,) = definition.warnings
    assert warning.endswith(words) and definition.faults == []


def test_a_name_is_not_called_misspelt_that_an_api_may_know(agent: Load) -> None:
    for keys in ("model: claude-sonet-9", "model: gpt-5", "model: sonet\nbaseUrl: http://localhost:1"):
        assert agent(keys).warnings == []
