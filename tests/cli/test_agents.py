"""`subagent agents`: the list of agents, and the reason for each file that is not one."""

from typing import Any

import pytest

from tests.cli.command import Cli


def test_agents_are_listed_with_their_description_and_file(cli: Cli) -> None:
    cli.agent("reviewer")
    cli.agent("tester")
    first, second = cli("agents").stdout.splitlines()[:2]
    assert first.split() == ["reviewer", "agents/reviewer.md", "Does", "reviewer."]
    assert second.split() == ["tester", "agents/tester.md", "Does", "tester."]


def test_two_files_of_one_name_are_a_problem_and_strict_fails(cli: Cli) -> None:
    cli.agent("reviewer")
    text = (cli.home / "agents" / "reviewer.md").read_text(encoding="utf-8")
    (cli.home / "agents" / "later.md").write_text(f"{text}More.\n", encoding="utf-8")
    (cli.home / "agents" / "other.md").write_text(text, encoding="utf-8")
    found = cli.json("agents")
    assert [agent["file"] for agent in found["agents"]] == [str(cli.home / "agents" / "later.md")]
    kinds = [problem["kind"] for problem in found["problems"] if problem["agent"] == "reviewer"]
    assert kinds == ["duplicate", "duplicate"]
    assert cli("agents").returncode == 0
    assert cli("agents", "--strict").returncode == 2


@pytest.mark.parametrize(
    ("keys", "mark"),
    [
        ({"tools": "Bash(git diff:*)"}, "✘ refused: tools: Bash(git diff:*) asks for a restriction"),
        (
            {"runner": "command", "command": "no-such-program", "args": ["{systemPrompt}"]},
            "! not ready: The program 'no-such-program' of the runner command is not here",
        ),
    ],
    ids=["refused", "not ready"],
)
def test_an_agent_whose_run_would_fail_is_marked_and_strict_fails(
    cli: Cli, keys: dict[str, Any], mark: str
) -> None:
    cli.agent("reviewer")
    assert cli("agents", "--strict").returncode == 0
    cli.agent("other", **keys)
    said = cli("agents")
    (marked,) = [line for line in said.stdout.splitlines() if line.lstrip().startswith(("✘", "!"))]
    assert said.returncode == 0 and mark in marked
    assert cli("agents", "--strict").returncode == 2


def test_what_an_agent_above_lacks_too_is_not_repeated(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.agent(name)
    said = cli("agents", env={"ANTHROPIC_API_KEY": ""}).stdout
    assert said.count("ANTHROPIC_API_KEY is not set") == 1
    assert said.count("! not ready: as for one\n") == 2


def test_the_own_mistakes_of_a_file_whose_name_is_taken_are_listed_too(cli: Cli) -> None:
    cli.agent("reviewer")
    other = "---\nname: reviewer\ndescription: d\nmaxTurns: many\n---\nx"
    (cli.home / "agents" / "zz.md").write_text(other, encoding="utf-8")
    said = cli("agents").stdout
    assert "agents/zz.md:4: fault: limits.maxTurns must be" in said and "agents/zz.md: duplicate:" in said


def test_agents_for_programs_have_these_fields(cli: Cli) -> None:
    cli.agent("Code-Reviewer", model="gpt-5")
    (agent,) = cli.json("agents")["agents"]
    assert agent["name"] == "Code-Reviewer" and agent["tool"] == "run_code_reviewer"
    assert agent["description"] == "Does Code-Reviewer."
    assert agent["file"] == str(cli.home / "agents" / "Code-Reviewer.md")
    assert (agent["runner"], agent["refusals"], agent["warnings"]) == ("messages", [], [])
    assert "'gpt-5' is no known model" in agent["missing"]["model"]


def test_an_empty_list_says_how_to_write_an_agent(cli: Cli) -> None:
    done = cli("agents")
    assert done.returncode == 0
    assert "No agents in agents, .claude/agents (directories above are not searched)" in done.stderr


def test_a_description_cannot_steer_the_terminal(cli: Cli) -> None:
    cli.agent("reviewer", description="red \x1b[31malert\n\u202eend")
    said = cli("agents").stdout + cli("agents", "--json").stdout
    assert "red \\x1b[31malert" in said and "red \\u001b[31malert" in said
    assert all(c.isprintable() or c == "\n" for c in said)


def test_a_link_to_the_whole_disk_is_listed_and_not_walked(cli: Cli) -> None:
    cli.agent("reviewer")
    (cli.home / "agents" / "all").symlink_to("/")
    done = cli("agents")
    assert done.returncode == 0 and done.stdout.startswith("reviewer")
    assert "PROBLEMS\n" in done.stdout and "agents/all: skipped: a link leads out of" in done.stdout
