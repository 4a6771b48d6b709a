"""`subagent run`: starts, then follows, waits or detaches; real processes, a scripted model."""

import json

import pytest

from tests.cli.command import Cli, Model
from tests.helpers.turns import asks, says, shell

ASK = asks("Which\x07 colour?", "blue", "red")
ANSWER = says("It is \x1b[31mdone.")
SLOW = shell("sleep 600")


def the_run(cli: Cli) -> str:
    """Return the id of the only run."""
    (run_id,) = cli.store.run_ids()
    return run_id


def test_the_result_goes_to_stdout_and_the_log_to_stderr(cli: Cli, model: Model) -> None:
    model(ANSWER)
    done = cli("run", "worker", "Do it.")
    assert done.returncode == 0
    assert done.stdout == "It is \x1b[31mdone.\n"  # into a pipe or a file, as it is
    assert the_run(cli) in done.stderr and "✔ completed" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_question_without_a_terminal_exits_with_5_and_the_run_goes_on(cli: Cli, model: Model) -> None:
    model(ASK, ANSWER)
    done = cli("run", "worker", "Do it.")
    run_id = the_run(cli)
    assert (done.returncode, done.stdout) == (5, "")
    assert f"Which\\x07 colour? [blue | red] Answer with `subagent reply {run_id} q1 ANSWER`" in done.stderr
    assert cli("reply", run_id, "blue").returncode == 0
    assert cli("wait", run_id, "--timeout", "30").returncode == 0


def test_a_wait_is_silent_and_a_prompt_may_come_from_stdin(cli: Cli, model: Model) -> None:
    simulator = model(ANSWER)
    done = cli("run", "worker", "-", "--wait", "30", stdin="From a pipe: Größe.\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "It is \x1b[31mdone.\n", "")
    assert "From a pipe: Gr\\u00f6\\u00dfe." in json.dumps(simulator.requests[0].body)


def test_a_wait_that_is_over_exits_with_124_and_the_run_goes_on_unless_it_is_stopped(
    cli: Cli, model: Model
) -> None:
    model(SLOW)
    assert cli("run", "worker", "Do it.", "--stop").returncode == 2
    view = cli.json("run", "worker", "Do it.", "--wait", "0.5", "--stop", code=124)
    assert (view["status"], view["live"]) == ("stopped", False)
    assert view["summary"].startswith("It had not ended after 0.5 s")
    assert cli("rm", "@last").returncode == 0
    done = cli("run", "worker", "Do it.", "--wait", "0.1")
    run_id = the_run(cli)
    assert (done.returncode, done.stdout) == (124, "")
    assert f"`subagent logs -f {run_id}`" in done.stderr
    assert cli.json("show", run_id)["live"] is True
    assert cli("stop", run_id).returncode == 0


def test_a_run_that_asks_is_stopped_too_where_nobody_will_answer(cli: Cli, model: Model) -> None:
    model(ASK)
    view = cli.json("run", "worker", "Do it.", "--wait", "60", "--stop", code=5)
    assert (view["status"], view["live"]) == ("stopped", False)
    assert view["summary"] == r"It asked, and nobody answers here: Which\x07 colour?"


def test_letting_go_prints_the_id_and_nothing_else(cli: Cli, model: Model) -> None:
    model(ANSWER)
    done = cli("run", "worker", "Do it.", "--detach")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{the_run(cli)}\n"
    assert cli("wait", "@last", "--timeout", "30").returncode == 0


def test_a_run_that_is_stopped_meanwhile_exits_with_4(cli: Cli, model: Model) -> None:
    model(SLOW)
    with cli.start("run", "worker", "Do it.") as command:
        command.hear("turn 1", "stderr")
        cli("stop", "@last", "--reason", "enough")
        code, out, said = command.end()
    assert (code, out) == (4, "")
    assert "was stopped: `subagent show " in said and said.count("enough") == 1


@pytest.mark.parametrize("words", [[], ["--wait", "30"], ["--detach"]])
def test_a_run_that_is_refused_exits_with_1_and_the_reason(cli: Cli, words: list[str]) -> None:
    cli.agent("worker", tools="Bash(git diff:*)")
    done = cli("run", "worker", "Do it.", *words)
    assert (done.returncode, done.stdout) == (1, f"{the_run(cli)}\n" if "--detach" in words else "")
    assert f"run {the_run(cli)} failed (config): " in done.stderr.splitlines()[-1]
    assert done.stderr.count("Bash(git diff:*) asks for") == 1


@pytest.mark.parametrize(
    ("words", "stdin", "reason"),
    [
        (["worker", ""], b"", "prompt is empty"),
        (["worker"], b"", "prompt is empty"),
        (["worker", "-"], b"\xff", "not UTF-8"),
        (["worker", "Review", "the", "commit"], b"", "(the commit): put a text of several words in quotes. "),
        (["worker", "Go", "--input", "nowhere.txt"], b"", "'nowhere.txt'"),
        (["worker", "Go", "--input", ""], b"", "empty"),
        (["worker", "Go", "--input", "agents"], b"", "directory"),
        (["worker", "Go", "--cwd", "nowhere"], b"", "nowhere"),
        (["worker", "Go", "--label", "x" * 201], b"", "label"),
    ],
)
def test_a_refused_start_creates_no_run(cli: Cli, words: list[str], stdin: bytes, reason: str) -> None:
    cli.agent("worker")
    done = cli("run", *words, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr and done.stderr.count("\n") == 1
    assert cli.store.run_ids() == []


def test_inputs_are_found_from_here_and_else_from_the_agents_directory(cli: Cli) -> None:
    cli.agent("worker", tools="Bash(git diff:*)")
    (cli.home / "there").mkdir()
    for path in (cli.home / "here.txt", cli.home / "there" / "there.txt"):
        path.write_text("words", encoding="utf-8")
    cli("run", "worker", "Do it.", "--cwd", "there", "--input", "here.txt", "--input", "there.txt")
    copies = cli.store.paths.run(the_run(cli)).inputs
    assert sorted(path.name for path in copies.path.iterdir()) == ["01-here.txt", "02-there.txt"]
