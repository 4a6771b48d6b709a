"""`subagent rerun`, and the options that change an agent for one run."""

import json

import pytest

from tests.cli.command import Cli, Model, stored
from tests.helpers.turns import says

DONE = says("Done.")


def test_a_rerun_has_the_edited_prompt_the_inputs_and_the_options_given(cli: Cli, model: Model) -> None:
    simulator = model(DONE, DONE)
    (cli.home / "notes.txt").write_text("remember the milk", encoding="utf-8")
    first = cli("run", "worker", "Walk the dog.", "--input", "notes.txt", "-l", "pets", "--wait", "60")
    assert first.returncode == 0, first.stderr
    edit = {"EDITOR": "sed -i s/dog/cat/", "VISUAL": ""}
    again = cli("rerun", "@last", "--edit", "--model", "haiku", "--max-turns", "7", "--wait", "60", env=edit)
    assert (again.returncode, again.stdout) == (0, "Done.\n"), again.stderr
    old, new = (json.dumps(request.body) for request in simulator.requests)
    assert "Walk the dog." in old and "Walk the cat." in new
    assert "remember the milk" in new
    assert "haiku" not in old and "haiku" in new
    request = cli.store.read_request(stored(cli)[-1])
    assert request.label == "pets"
    limits = request.agent["limits"]
    assert isinstance(limits, dict) and limits["maxTurns"] == 7
    (file := cli.home / "agents" / "worker.md").unlink()
    why = f"(run {stored(cli)[-1]} had it from '{file}': name its directory with --agents)"
    cli.leaves_with(3, why, "rerun", "@last")


def test_a_task_whose_directory_was_moved_starts_in_the_new_one(cli: Cli, model: Model) -> None:
    model(DONE)
    after = cli.home / "after"
    after.mkdir()
    cli.completed("aaaaaa", agent_name="worker", prompt="Walk.", cwd=str(cli.home / "before"))
    assert "name one that exists" in cli("rerun", "@last").stderr
    again = cli("rerun", "@last", "--cwd", "after", "--wait", "60")
    assert (again.returncode, again.stdout) == (0, "Done.\n"), again.stderr
    assert cli.store.read_request(stored(cli)[-1]).cwd == str(after)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--max-turns", "0", "must be greater than or equal to 1"),
        ("--timeout", "nan", "must be a finite number"),
        ("--budget", "-1", "must be greater than or equal to 0"),
        ("--effort", "huge", "must be 'low', 'medium', 'high', 'xhigh' or 'max'"),
        ("--model", "two words", "must be the id of a model without spaces"),
        ("--model", "", "is empty"),
    ],
)
def test_an_option_is_checked_as_the_key_of_the_file_is(cli: Cli, option: str, value: str, why: str) -> None:
    cli.agent("worker")
    done = cli("run", "worker", "Do it.", option, value)
    assert done.returncode == 2
    assert f"'{option}': it {why}" in done.stderr and done.stderr.count("\n") == 1
    assert stored(cli) == []


def test_an_option_reaches_an_agent_with_a_program_of_its_own(cli: Cli) -> None:
    cli.agent("worker", runner="command", command="/bin/sh", args=["-c", "sleep 60", "{systemPrompt}"])
    late = cli("run", "worker", "Do it.", "--timeout", "0.5", "--wait", "60")
    assert late.returncode == 1 and "0.5 s of working time" in late.stderr, late.stderr
    for option, key in (("--budget", "budgetUsd"), ("--max-turns", "maxTurns")):
        why = f"{key} cannot be kept by the runner command"
        cli.leaves_with(2, why, "run", "worker", "Do it.", option, "1")
    assert len(stored(cli)) == 1, "what an option asks in vain starts nothing"


def test_a_prompt_that_was_not_kept_whole_is_not_started_again(cli: Cli) -> None:
    cli.agent("worker")
    run_id = cli.completed("aaaaaa", agent_name="worker", prompt="Use *** to log in.")
    done = cli("rerun", "aaaaaa")
    assert done.returncode == 2
    assert "held a secret, which is not kept" in done.stderr
    assert stored(cli) == [run_id]


def test_an_editor_that_fails_or_leaves_nothing_starts_nothing(cli: Cli) -> None:
    cli.agent("worker")
    cli.completed("aaaaaa", agent_name="worker", prompt="Do it.")
    latin = "sh -c 'printf \\\\377 > $0'"
    for editor in ("false", "truncate -s 0", "no-such-editor-here", "", "vi '", latin):
        done = cli("rerun", "aaaaaa", "--edit", env={"EDITOR": editor, "VISUAL": ""})
        assert done.returncode == 2
        assert done.stderr.startswith("subagent: The prompt") and done.stderr.count("\n") == 1
    assert len(stored(cli)) == 1
