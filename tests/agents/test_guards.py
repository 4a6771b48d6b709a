"""Limits, guards and conditions in the spelling of other tools: honoured, or the run is refused."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.agents import templates
from subagent_server.agents.formats import load_agent_file
from subagent_server.run.agent_definition import AgentDefinition, Selection, select

Load = Callable[[str], AgentDefinition]

ALL = {"bash", "view", "edit", "grep", "glob"}


def offered(agent: AgentDefinition) -> set[str]:
    """Return the tools on files and programs that runs of an agent have."""
    selection: Selection = select(agent.tools, agent.disallowed_tools)
    return {name for name in ALL if getattr(selection, name)}


@pytest.mark.parametrize(
    ("keys", "tools", "asked"),
    [
        ("permissionMode: plan", {"view", "grep", "glob"}, set()),
        ("permission-mode: Plan\ntools: Read, Bash, Write", {"view"}, set()),
        ("approvalMode: plan", {"view", "grep", "glob"}, set()),
        ("readonly: true", {"view", "grep", "glob"}, set()),
        ("readonly: false", ALL, set()),
        ("permissionMode: dontAsk", {"view", "grep", "glob"}, set()),
        ("permissionMode: default", ALL, {"Bash", "Write", "Edit"}),
        ("permissionMode: default\ntools: Read, Grep", {"view", "grep"}, set()),
        ("permissionMode: acceptEdits", ALL, {"Bash"}),
        ("approvalMode: auto-edit", ALL, {"Bash"}),
        ("permissionMode: bypassPermissions", ALL, set()),
        ("allowed-tools: Read, Grep", {"view", "grep"}, set()),
        ("allowedTools: [Read]", {"view"}, set()),
        ("tools: {write: false, bash: false}", {"view", "grep", "glob"}, set()),
        ("tools: {read: true}", ALL, set()),
        ("permission: {edit: deny, bash: deny}", {"view", "grep", "glob"}, set()),
        ("permission: {edit: ask, bash: allow}", ALL, {"Edit"}),
        ("permission: allow", ALL, set()),
        ("excludeTools: [Bash]", ALL - {"bash"}, set()),
        ("ask: Bash", ALL, {"Bash"}),
        ("ask: Bash, Write", ALL, {"Bash", "Write"}),
    ],
)
def test_a_guard_of_another_tool_is_honoured(
    agent: Load, keys: str, tools: set[str], asked: set[str]
) -> None:
    definition = agent(keys)
    assert definition.faults == []
    assert (offered(definition), set(definition.ask)) == (tools, asked)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("permissionMode: auto", "permissionMode: auto cannot be kept for any tool by the built-in loop"),
        ("permissionMode: yes please", "permissionMode must be one of default, acceptEdits"),
        ("permissionMode: [plan]", "permissionMode must be one of"),
        ("permissionMode: plan\nmcpServers: {s: {command: cat}}", "for the tools of MCP servers"),
        ("permissionMode: plan\nmcpServers: [s]", "for the tools of MCP servers"),
        ("permissionMode: plan\nagents: [b]", "for the agents that it may start"),
        ("permissionMode: default\ntools: WebFetch", "for WebFetch and WebSearch"),
        ("permissionMode: default\ncodeMode: true", "for programs of code mode"),
        ("readonly: true\npermissionMode: default", "permissionMode says again what readonly says"),
        ("hooks: {PreToolUse: [{matcher: Bash}]}", "hooks are kept by `runner: claude` alone"),
        ("hooks: deny.sh", "hooks must be a mapping"),
        (
            "permission: {bash: {'git *': allow, '*': deny}}",
            "permission.bash is a limit",
        ),
        ("permission: {webfetch: ask}", "permission.webfetch is a limit"),
        ("permission: {external_directory: deny}", "permission.external_directory is a limit"),
        ("permission: deny", "permission.* is a limit"),
        ("tools: {bash: {git: true}}", "a mapping of names to true or false"),
        ("tools: Read\nallowed-tools: Bash", "tools appears twice"),
        ("sandbox_mode: read-only", "sandbox_mode is a limit"),
        ("approval_policy: on-request", "approval_policy is a limit"),
        ("disable: true", "disable is a limit"),
        ("disable-model-invocation: true", "disable-model-invocation is a limit"),
        ("timeout_mins: 5", "timeout_mins is a limit that nothing here keeps (say it by timeoutSeconds)"),
        ("steps: 5", "say it by maxTurns"),
        ("max_cost: 1", "say it by budgetUsd"),
        ("toolsSettings: {write: {allowedPaths: [a]}}", "toolsSettings is a limit"),
        ("memory: project", "memory is a limit"),
        ("skills: [a]", "skills is a limit"),
    ],
)
def test_a_guard_that_cannot_be_kept_refuses_the_run_with_its_key(agent: Load, keys: str, words: str) -> None:
    faults = agent(keys).faults
    assert len(faults) == 1
    assert words in faults[0].replace("'", "")


@pytest.mark.parametrize(
    "keys",
    ["hooks:", "hooks: {}", "permission:", "disable: false", "sandbox_mode: danger-full-access", "memory:"],
)
def test_a_guard_that_limits_nothing_refuses_nothing(agent: Load, keys: str) -> None:
    assert agent(keys).faults == []


def test_claude_code_keeps_its_own_guards(agent: Load) -> None:
    definition = agent(
        "runner: claude\npermissionMode: auto\nhooks: {PreToolUse: [{matcher: Bash}]}\n"
        "tools: Bash(git log:*)\nmcpServers: {s: {command: cat}}"
    )
    assert definition.faults == []
    assert definition.permission_mode == "auto"
    assert definition.hooks == {"PreToolUse": [{"matcher": "Bash"}]}


TEMPLATE = templates.TEMPLATE.read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"(?:^#\w.*\n(?:^#  .*\n)*)", TEMPLATE, re.MULTILINE))
def test_every_line_of_the_template_works_when_uncommented(block: str, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(TEMPLATE.replace(block, re.sub("(?m)^#", "", block)), encoding="utf-8")
    definition = load_agent_file(path)
    assert (definition.faults, definition.warnings) == ([], [])
    assert set(definition.ask) <= set(definition.tools or [])
    assert definition.ask or definition.agents or definition.output_schema
