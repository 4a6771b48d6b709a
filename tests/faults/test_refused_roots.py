"""A runs root that cannot be written, or is somebody else's: one sentence, exit code 6, nothing broken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.run import transitions
from subagent_server.run.processes import now
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from tests.cli.command import Cli, Completed
from tests.faults.disks import read_only
from tests.helpers.raw_server import HELLO, READY, request, tool_call
from tests.helpers.world import World


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Cli]:
    """A home whose runs can only be read: one that has completed and is settled, one that seems to live."""
    cli = Cli(tmp_path)
    cli.store.make_root()
    cli.agent("reviewer")
    assert cli("show", cli.completed("aaaaaa")).returncode == 0
    with cli.living("bbbbbb"), read_only(cli.store.paths.root):
        yield cli


def refused(done: Completed) -> None:
    """Check that a command was refused by the machine, in one sentence."""
    assert done.returncode == 6, done
    assert done.stdout == ""
    assert done.stderr.startswith("subagent: ") and done.stderr.count("\n") == 1


READS = ("ls", "show aaaaaa", "logs aaaaaa", "wait aaaaaa", "inbox", "doctor --runs")


def test_where_nothing_can_be_written_reads_work_and_writes_are_refused_by_one_sentence(frozen: Cli) -> None:
    for words in READS:
        done = frozen(*words.split())
        assert done.returncode == 0, done.stderr
    before = sorted(frozen.store.paths.root.iterdir())
    for words in ("run reviewer Review. --detach", "stop bbbbbb"):
        refused(frozen(*words.split()))
    assert sorted(frozen.store.paths.root.iterdir()) == before


def test_every_reader_of_a_read_only_root_knows_how_a_dead_run_ended(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli.store.make_root()
    lost, finished, stopped = (cli.made(tail) for tail in ("aaaaaa", "bbbbbb", "cccccc"))
    result = RunResult(outcome=Status.COMPLETED, text="Done.")
    cli.store.paths.run(finished).result.path.write_bytes(result.to_json())
    cli.store.update(stopped, transitions.StopRequested(reason="enough"), now())
    with read_only(cli.store.paths.root):
        statuses = {row["runId"]: row.get("status") for row in cli.json("ls")}
        assert statuses == {lost: "failed", finished: "completed", stopped: "stopped"}
        shown = cli("show", "aaaaaa")
        assert "launch_failed" in shown.stdout and "the runs root can only be read" in shown.stdout
        assert cli("show", "bbbbbb").stdout.endswith("Done.\n")
        assert [cli("wait", tail).returncode for tail in ("aaaaaa", "bbbbbb", "cccccc")] == [1, 0, 4]
        refused(cli("rm", "aaaaaa"))
    assert cli.meta(lost).status is Status.RUNNING


def test_a_file_in_the_place_of_the_runs_root_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("I am a file.", encoding="utf-8")
    cli = Cli(tmp_path)
    cli.agent("reviewer")
    refused(cli("run", "reviewer", "Review.", "--detach", "--runs", "runs"))
    refused(cli("ls", "--runs", "runs"))
    passed = cli("ls")
    assert passed.returncode == 0 and "runs are in .subagent/runs" in passed.stderr
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "I am a file."


def test_a_server_whose_root_is_gone_wrong_names_it_to_every_caller(world: World) -> None:
    world.runs.write_text("I am a file.", encoding="utf-8")
    asked = (
        tool_call(1, "list_runs"),
        tool_call(2, "wait_for_runs", waitSeconds=1),
        request(3, "resources/list"),
        request(4, "logging/setLevel", level="info"),
    )
    with world.raw_server() as server:
        server.say(HELLO, READY, *asked)
        for each in asked:
            assert f"{world.runs}: Not a directory: fix that" in str(server.answer_to(each["id"]))
    assert world.errors.read_text(encoding="utf-8") == ""
    world.runs.unlink()


def test_a_directory_of_somebody_else_s_runs_is_left_as_it_is_and_no_run_is_seen_in_it(
    tmp_path: Path,
) -> None:
    for name in ("exp1", "exp1/checkpoints", "Nov22_host", "20261122-093015-417-abcdef"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "exp1" / "run.meta.json").write_text('{"loss": 0.1}', encoding="utf-8")
    (tmp_path / "runs" / "events.out").write_bytes(b"\0\1\2")
    before = sorted(path for path in (tmp_path / "runs").rglob("*"))
    cli = Cli(tmp_path)
    assert cli.json("ls") == []
    listed = cli.json("ls", "--runs", "runs")
    assert [row["runId"] for row in listed] == ["exp1"] and listed[0]["unreadable"]
    assert cli("--runs", "runs", "doctor", "--runs").returncode == 1
    assert sorted(path for path in (tmp_path / "runs").rglob("*")) == before


def test_a_state_directory_that_cannot_be_made_is_named_with_the_variable_that_names_another(
    world: World,
) -> None:
    world.agent()
    state = world.home / "state"
    state.write_text("I am a file.", encoding="utf-8")
    world.environment["XDG_STATE_HOME"] = str(state)
    error = world.ended(world.start()).error
    assert error is not None and error.code == "storage" and str(state / "subagent") in error.message
    assert "XDG_STATE_HOME" in (error.hint or "")
