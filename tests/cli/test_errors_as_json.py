"""With --json an error is one object on one line of stderr: code, message and next step."""

import json

import pytest

from subagent_server.cli.console.app import last_clause
from tests.cli.command import FAILED, STOPPED, Cli, asked


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "next_step"),
    [
        (["show", "nope"], 3, "unknown_run", "`subagent ls` shows them."),
        (["show"], 2, "usage", "`subagent show --help` says more."),
        (["ls", "--all=1"], 2, "usage", "`subagent ls --help` says more."),
        (["run", "worker", "x", "--detach", "--wait", "1"], 2, "usage", "`subagent run --help` says more."),
        (["run", "worker", ""], 2, "bad_argument", "say what the agent should do."),
        (["new", "../x"], 2, "bad_argument", "take another, of 1 to 48 of a-z, 0-9, '-' and '_'."),
        (
            ["new", "x", "--agents", "/proc/none"],
            6,
            "environment",
            "fix that, or name another path, then try again.",
        ),
        (["stop", "nope"], 3, "unknown_run", "`subagent ls` shows them."),
        (["init", "claude"], 5, "needs_answer", "add --yes to write this without being asked."),
        (["nope"], 2, "usage", "`subagent --help` says more."),
    ],
)
def test_an_error_is_the_sentence_for_people_as_an_object(
    cli: Cli, words: list[str], exit_code: int, code: str, next_step: str
) -> None:
    cli.agent("worker")
    done = cli(*words, "--json")
    told = json.loads(done.stderr)
    assert (done.returncode, told["code"], done.stderr.count("\n")) == (exit_code, code, 1)
    assert f"subagent: {told['message']}\n" == cli(*words).stderr
    assert told["nextStep"] == next_step
    assert not done.stdout or json.loads(done.stdout) is not None


def test_a_colon_in_parentheses_is_before_no_next_step(cli: Cli) -> None:
    meta = cli.home / "runs" / cli.completed("aaaaaa") / "run.meta.json"
    meta.unlink()
    meta.mkdir()
    told = json.loads(cli("show", "aaaaaa", "--json").stderr)
    assert f"({meta}: " in told["message"] and told["nextStep"].startswith("fix that, then try again; ")
    assert last_clause(told["message"].partition("): ")[0] + ").") is None


def test_how_a_run_ended_is_an_object_too(cli: Cli) -> None:
    done = cli("wait", cli.made("aaaaaa", FAILED), "--json")
    told = json.loads(done.stderr)
    assert (done.returncode, told["code"]) == (1, "agent_error") and told["nextStep"]
    assert json.loads(done.stdout)[0]["error"]["code"] == "agent_error"


def test_a_question_names_the_command_that_answers_it(cli: Cli) -> None:
    with cli.living("aaaaaa", asked("Which \x1b[1mcolour?")) as run_id:
        done = cli("wait", run_id, "--json")
    told = json.loads(done.stderr)
    assert (done.returncode, told["code"]) == (5, "needs_answer")
    assert told["nextStep"] == f"subagent reply {run_id} q1 ANSWER" and "\x1b" not in done.stderr


def test_the_next_step_after_a_stop_is_that_of_the_view(cli: Cli) -> None:
    run_id = cli.made("aaaaaa", STOPPED)
    told = json.loads(cli("wait", run_id, "--json").stderr)
    assert told["nextStep"] == cli.json("show", run_id)["instructions"]


def test_a_prompt_that_says_json_changes_nothing(cli: Cli) -> None:
    assert cli("show", "--", "--json").stderr.startswith("subagent: ")
