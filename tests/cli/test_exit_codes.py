"""The exit code of every verb, and the one line that says why (SPEC section 11)."""

import pytest

from subagent_server.run import transitions
from subagent_server.run.records import Failure
from tests.cli.command import Cli, Completed, asked

FAILED = transitions.RunFailed(failure=Failure(code="agent_error", message="It broke.", hint="Try again."))
STOPPED = transitions.StopRequested(reason="enough")


def complains(done: Completed, code: int, *words: str) -> None:
    """Check that a command left with `code` and one line on stderr that holds `words`."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("subagent: ") and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_a_completed_run_exits_with_0(cli: Cli) -> None:
    assert cli("wait", cli.completed("aaaaaa")).returncode == 0


def test_a_failed_run_exits_with_1(cli: Cli) -> None:
    done = cli("wait", cli.made("aaaaaa", FAILED))
    assert done.returncode == 1
    assert "failed (agent_error): It broke. Try again." in done.stderr


def test_a_stopped_run_exits_with_4(cli: Cli) -> None:
    done = cli("wait", cli.made("aaaaaa", STOPPED))
    assert done.returncode == 4
    assert "was stopped. enough" in done.stderr


def test_an_open_question_exits_with_5_and_the_command_that_answers(cli: Cli) -> None:
    with cli.living("aaaaaa", asked("Which colour?", "blue", "red")) as run_id:
        done = cli("wait", run_id)
    assert done.returncode == 5
    assert (
        f"asks q1: Which colour? [blue | red] Answer with `subagent reply {run_id} q1 ANSWER`" in done.stderr
    )


def test_a_wait_that_is_over_exits_with_124_and_the_run_goes_on(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        done = cli("wait", run_id, "--timeout", "0.1")
        assert done.returncode == 124
        assert "continues" in done.stderr
        assert cli.json("show", run_id)["status"] == "running"


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["show"],
        ["show", "--bogus", "x"],
        ["ls", "--status", "happy"],
        ["ls", "-n", "-1"],
        ["ls", "--max-runs", "0"],
        ["ls", "--runs", ""],
        ["wait"],
        ["wait", "x", "--timeout", "nan"],
        ["wait", "x", "--timeout", "-1"],
        ["wait", "x", "--timeout", "soon"],
        ["run"],
        ["run", "x", "y", "--detach", "--wait", "1"],
        ["run", "x", "y", "--wait", "inf"],
        ["reply", "x"],
        ["reply", "x", "q1", "two", "words"],
        ["schema", "nothing"],
        ["logs", "x", "-n", "many"],
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_help(cli: Cli, words: list[str]) -> None:
    complains(cli(*words), 2, "--help`")


def test_an_unknown_verb_is_refused_with_similar_names(cli: Cli) -> None:
    complains(cli("lgos"), 2, "'logs'")


def test_a_setting_that_cannot_be_used_exits_with_2(cli: Cli) -> None:
    complains(cli("ls", env={"SUBAGENT_MAX_RUNS": "many"}), 2, "SUBAGENT_MAX_RUNS")


def test_an_ambiguous_prefix_exits_with_2(cli: Cli) -> None:
    cli.completed("aaaaaa"), cli.completed("bbbbbb")
    complains(cli("show", "20261122"), 2, "several")


BAD_NAMES = [
    *("nobody", "@last", "@first", "", ".", "..", "runs/x", ".changes", "-", "%s"),
    *("../../etc/passwd", "/etc/passwd", "a" * 5000, "\x1b[31mred", "Ä" * 40),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_unknown_run_exits_with_3_and_touches_nothing(cli: Cli, name: str) -> None:
    before = sorted(cli.home.rglob("*"))
    complains(cli("show", "--", name), 3, "There is no run")
    assert sorted(cli.home.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../etc/passwd", "a" * 5000, "\x1b]0;x\x07"])
@pytest.mark.parametrize("words", [["logs"], ["logs", "-f"], ["wait"], ["stop"]])
def test_every_verb_that_takes_a_run_refuses_bad_names(cli: Cli, words: list[str], name: str) -> None:
    complains(cli(*words, name), 3, "There is no run")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a" * 5000])
def test_reply_refuses_bad_names(cli: Cli, name: str) -> None:
    complains(cli("reply", name, "blue"), 3, "There is no run")


def test_a_bad_name_is_neither_shown_whole_nor_raw(cli: Cli) -> None:
    said = cli("show", "\x1b[31m" + "a" * 5000).stderr
    assert "\x1b" not in said
    assert len(said) < 500


def test_an_unknown_agent_exits_with_3_and_names_the_known_ones(cli: Cli) -> None:
    cli.agent("reviewer")
    complains(cli("run", "nobody", "Go"), 3, "reviewer")
    assert cli.json("ls", "-a") == []


def test_a_run_whose_state_cannot_be_read_exits_with_6(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    cli.store.paths.run(run_id).meta.path.write_text("{", encoding="utf-8")
    complains(cli("show", run_id), 6, "cannot be read")


def test_a_runs_root_that_is_a_file_exits_with_6(cli: Cli) -> None:
    (cli.home / "file").write_text("", encoding="utf-8")
    complains(cli("ls", "--runs", "file"), 6, "Not a directory")


def test_an_error_has_a_traceback_with_debug_only(cli: Cli) -> None:
    with cli.start("show", "nobody", "--debug") as command:
        code, _, said = command.end()
    assert code == 3
    assert said.startswith("Traceback")
    assert said.splitlines()[-1].startswith("subagent: There is no run")
