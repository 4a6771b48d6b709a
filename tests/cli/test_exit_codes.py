"""The exit code of every verb, and the one line that says why (SPEC section 11)."""

import os
import sys

import pytest

from subagent_server.__main__ import main
from tests.cli.command import Cli


def complains(cli: Cli, code: int, said: str, *words: str) -> None:
    """Check that a command leaves with `code` and one short line on stderr that holds `said`."""
    done = cli(*words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("subagent: ") and done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr and len(done.stderr) < 700 and done.stderr[:-1].isprintable()


def test_a_wait_that_is_over_exits_with_124_and_the_run_goes_on(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        cli.leaves_with(124, "continues", "wait", run_id, "--timeout", "0.1")
        assert cli.json("show", run_id)["status"] == "running"


@pytest.mark.parametrize(
    "words",
    [
        *("bogus", "show", "show --bogus x", "ls --status happy", "ls -n -1", "ls --max-runs 0"),
        *("wait", "wait x --timeout nan", "wait x --timeout -1", "wait x --timeout soon", "run"),
        *("run x y --detach --wait 1", "run x y --wait inf", "reply x", "reply x q1 two words"),
        *("schema nothing", "logs x -n many", "doctor agents/x.md --runs"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_help(cli: Cli, words: str) -> None:
    complains(cli, 2, "--help`", *words.split())


def test_a_number_out_of_bounds_is_refused_with_its_bounds(cli: Cli) -> None:
    complains(cli, 2, "'many' is no such number: give 0 or more.", "logs", "x", "-n", "many")
    complains(cli, 2, "'65' is no such number: give 1 to 64.", "eval", "x", "--jobs", "65")


def test_a_setting_that_cannot_be_used_exits_with_2(cli: Cli) -> None:
    complains(cli, 2, "it is empty", "ls", "--runs", "")
    cli.environment["SUBAGENT_MAX_RUNS"] = "many"
    complains(cli, 2, "SUBAGENT_MAX_RUNS", "ls")


def test_an_ambiguous_prefix_exits_with_2(cli: Cli) -> None:
    cli.completed("aaaaaa"), cli.completed("bbbbbb")
    complains(cli, 2, "several", "show", "20261122")


BAD_NAMES = [
    *("nobody", "@last", "@first", "", ".", "..", "runs/x", ".changes", "-", "%s"),
    *("../../etc/passwd", "/etc/passwd", "a" * 5000, "\x1b[31mred", "\x1b]0;x\x07", "Ä" * 40),
]


def test_an_unknown_run_exits_with_3_and_touches_nothing(cli: Cli) -> None:
    before = sorted(cli.home.rglob("*"))
    for name in BAD_NAMES:
        complains(cli, 3, "There is no run", "show", "--", name)
    for verb in ("logs", "logs -f", "wait", "stop", "rm", "export", "merge", "rerun", "continue"):
        complains(cli, 3, "There is no run", *verb.split(), "--", "../../etc/passwd")
    assert sorted(cli.home.rglob("*")) == before
    complains(cli, 3, "There is no run", "reply", "a" * 5000, "blue")
    complains(cli, 3, "There is no run", "doctor", "--runs", "nobody")


def test_an_unknown_agent_exits_with_3_and_names_the_known_ones(cli: Cli) -> None:
    cli.agent("reviewer")
    complains(cli, 3, "reviewer", "run", "nobody", "Go")
    assert cli.json("ls", "-a") == []


def test_what_cannot_be_read_exits_with_6(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    cli.store.paths.run(run_id).meta.path.write_text("{", encoding="utf-8")
    complains(cli, 6, "cannot be read", "show", run_id)
    (cli.home / "file").write_text("", encoding="utf-8")
    complains(cli, 6, "Not a directory", "ls", "--runs", "file")


def test_where_there_can_be_no_runs_each_verb_exits_with_6(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")  # the command is a fork of this process
    complains(cli, 6, "a Python with pidfd_open", "ls")
    assert cli("--version").returncode == 0


def test_an_error_has_a_traceback_with_debug_only(cli: Cli) -> None:
    with cli.start("show", "nobody", "--debug") as command:
        code, _, said = command.end()
    assert code == 3 and said.startswith("Traceback")
    assert said.splitlines()[-1].startswith("subagent: There is no run")


def test_another_system_than_linux_is_named_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main() == 6
    assert capfd.readouterr().err.startswith("subagent: It needs Linux, and this is darwin: ")
