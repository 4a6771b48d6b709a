"""`subagent stop`: ends runs, and reports whether their processes have exited."""

import os

import pytest

from subagent_server.domain import events
from tests.cli.command import Cli, until_watching
from tests.helpers.wait import wait_for


def test_it_waits_until_the_processes_are_gone(cli: Cli) -> None:
    run_id = cli.made("aaaaaa")
    lock = cli.hold(run_id)
    with cli.start("stop", run_id, "--reason", "enough") as command:
        wait_for(lambda: cli.meta(run_id).status == "stopped", 60, "the status")
        until_watching(command)
        assert command.process.poll() is None
        os.close(lock)
        code, said, complaint = command.end()
    assert (code, complaint) == (0, "")
    assert said == f"■ stopped     {run_id}  reviewer\n"
    assert cli.meta(run_id).summary == "enough"


def test_processes_that_stay_are_reported_after_12_seconds(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        done = cli("stop", run_id, "--json")
    assert done.returncode == 124
    assert '"live": true' in done.stdout
    assert "still live" in done.stderr


@pytest.mark.parametrize("ending", [events.Finished(), events.StopRequested(reason="before")])
def test_stopping_a_run_that_has_ended_changes_nothing(cli: Cli, ending: events.RunEvent) -> None:
    run_id = cli.made("aaaaaa", ending)
    before = cli.store.paths.run(run_id).meta.path.read_bytes()
    assert cli("stop", run_id, "--reason", "late").returncode == 0
    assert cli.store.paths.run(run_id).meta.path.read_bytes() == before


def test_an_unknown_name_is_reported_and_the_others_are_stopped(cli: Cli) -> None:
    run_id = cli.made("aaaaaa")
    done = cli("stop", "nobody", run_id)
    assert done.returncode == 3 and "There is no run 'nobody'" in done.stderr
    assert run_id in done.stdout and cli.meta(run_id).status.is_terminal
    assert cli("stop", "nobody").returncode == 3


def test_one_that_cannot_be_stopped_does_not_keep_the_others_alive(cli: Cli) -> None:
    broken, fine = cli.made("aaaaaa"), cli.made("bbbbbb")
    cli.store.paths.run(broken).meta.path.write_text("{", encoding="utf-8")
    done = cli("stop", broken, fine)
    assert done.returncode == 6
    assert broken in done.stderr and fine in done.stdout
    assert cli.meta(fine).status.is_terminal


def test_programs_get_a_list_of_views(cli: Cli) -> None:
    one, other = cli.completed("aaaaaa"), cli.completed("bbbbbb")
    views = cli.json("stop", other, one)
    assert [(view["runId"], view["live"]) for view in views] == [(other, False), (one, False)]
