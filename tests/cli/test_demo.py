"""`subagent demo`: a real client, server and run with a scripted model, on a repository of the test."""

import sys
from pathlib import Path

import pytest

from tests.cli.command import BOUND, Cli
from tests.helpers.processes import REPOSITORY
from tests.helpers.repositories import git, make_repository


@pytest.fixture
def place(cli: Cli) -> Path:
    """A git repository with one commit, whose demo has no key."""
    cli.environment["ANTHROPIC_API_KEY"] = ""
    directory = cli.home.with_name(f"{cli.home.name}.repository")
    directory.mkdir()
    (directory / "shop.py").write_text("def price() -> int:\n    return 3\n", encoding="utf-8")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Give discounts"]):
        git("-C", directory, *words)
    return directory


def test_the_demo_shows_a_whole_run_and_no_agent_of_the_project(cli: Cli, place: Path) -> None:
    (cli.home / "agents" / "reviewer.md").write_text("---\nname: reviewer\n---\nSay no.", encoding="utf-8")
    environment = {"SUBAGENT_AGENTS": str(cli.home / "agents")}
    done = cli("demo", "--repo", str(place), env=environment, seconds=4 * BOUND)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parent → run_reviewer(" in done.stdout and '("Give discounts"): shall I' in done.stdout
    (run_id,) = cli.store.run_ids()
    assert cli.meta(run_id).messages[0].answered_by == "parent"
    assert "\nsummary: Commit " in done.stdout and "\nverdict: comment\n" in done.stdout
    assert len(done.stdout.splitlines()) <= 25 and "run_scout" not in done.stdout


def test_a_refusal_in_the_demo_is_one_sentence(cli: Cli, place: Path) -> None:
    foreign = cli.home / "foreign"
    foreign.mkdir()
    (foreign / "theirs").touch()
    done = cli("demo", "--repo", str(place), "--runs", str(foreign))
    assert done.returncode == 1 and "parent ← refused, run_reviewer: The runs root " in done.stdout


def test_a_named_directory_without_a_commit_or_a_name_for_messages_is_refused(cli: Cli) -> None:
    make_repository(cli.home / "\udcff")
    for name in (".", "\udcff"):
        cli.leaves_with(2, "leave --repo out.", "demo", "--repo", name)
    assert cli.store.run_ids() == []


def test_the_demo_needs_no_repository(cli: Cli) -> None:
    alone = {"GIT_CEILING_DIRECTORIES": str(cli.home.parent), "SUBAGENT_LAUNCHER": "ssh:nowhere.invalid"}
    done = cli("demo", env={"ANTHROPIC_API_KEY": "", **alone})
    assert done.returncode == 0 and "so the demo has a small one" in done.stdout, done.stderr
    assert "1 TODO or FIXME left" in done.stdout


def test_the_demo_of_code_mode_makes_all_calls_in_one_program_that_asks(cli: Cli, place: Path) -> None:
    """In the clone of the program, whose own files a box shows and does not let anybody write."""
    done = cli("demo", "--code", "--repo", str(REPOSITORY), seconds=4 * BOUND)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "31. tracker.get_issue" in done.stdout and "parent ← asks: 7 issues wait" in done.stdout
    assert "#12 checkout shows the wrong price: 22 days waits longest" in done.stdout


def test_the_demo_of_flows_shows_phases_and_the_state_of_each_call(cli: Cli, place: Path) -> None:
    done = cli("demo", "--flow", "--repo", str(place), seconds=4 * BOUND)
    assert done.returncode == 0, done.stderr
    assert "parent ← asks: Which side comes first?" in done.stdout and "Check the range" in done.stdout
    assert "parent ← completed: 7 turns, 3 tool calls" in done.stdout
    assert "\nlook: 3 new, " in done.stdout and "\n  new  looker (judge)  " in done.stdout


def test_a_demo_whose_server_does_not_start_ends_with_one_sentence(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    done = cli("demo", "--repo", str(place))
    assert done.returncode == 6 and "Exception" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("subagent: the demo lost its server (")


def test_a_demo_whose_reader_goes_away_ends_quietly(cli: Cli, place: Path) -> None:
    with cli.start("demo", "--repo", str(place)) as command:
        command.hear("parent sees the tools")
        assert command.process.stdout is not None
        command.process.stdout.close()
        assert command.process.wait(BOUND) == 0
        assert command.process.stderr is not None and b"Traceback" not in command.process.stderr.read()
