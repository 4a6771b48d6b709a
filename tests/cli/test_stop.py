"""`subagent stop`: ends runs, and reports whether their processes have exited."""

import os

import pytest

from subagent_server.run.errors import BadArgument
from subagent_server.run.records import LaunchInfo
from subagent_server.settings import read_settings
from subagent_server.verbs.access import Caller
from subagent_server.verbs.reconcile import declare_host_gone
from subagent_server.verbs.service import open_service
from tests.cli.command import Cli, until_watching
from tests.cli.terminal import person
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


def test_a_person_learns_why_it_takes_longer_than_a_moment(cli: Cli) -> None:
    run_id = cli.made("aaaaaa")
    lock = cli.hold(run_id)
    with person(cli, "stop", run_id) as terminal:
        assert terminal.hear("billed anyway.").startswith("Stopped. The processes end within 12 s")
        os.close(lock)
        assert terminal.command.end()[:2] == (0, f"■ stopped     {run_id}  reviewer\n")


def test_processes_that_stay_are_reported_after_12_seconds(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        done = cli("stop", run_id, "--json")
    assert done.returncode == 124
    assert '"live": true' in done.stdout
    assert run_id in done.stderr and "still live: they are killed soon" in done.stderr


def test_a_person_ends_runs_whose_host_is_gone_for_good(cli: Cli) -> None:
    away = LaunchInfo(kind="local", host="old-container", boot_id="boot")
    top = cli.made("aaaaaa", launch=away)
    below = cli.made("bbbbbb", launch=away, parent_run_id=top, root_run_id=top, depth=1)
    here = cli.made("cccccc")
    assert cli("stop", below).returncode == 0 and cli.meta(below).status == "stopped"
    for verb in ("rm", "continue"):
        assert f"`subagent stop --host-gone {below}`" in cli(verb, below).stderr, "nobody can look there"
    service = open_service(read_settings(environment=cli.environment, cwd=cli.home))
    with pytest.raises(BadArgument, match="A run cannot say"):
        declare_host_gone(service, below, Caller(top))
    assert "is on this host" in cli("stop", "--host-gone", here).stderr
    assert "leave --reason out" in cli("stop", "--host-gone", "--reason", "old", top).stderr
    assert cli("stop", "--host-gone", top).returncode == 0
    error = cli.meta(top).error
    assert error is not None and "its host old-container is gone" in error.message
    done = cli("rm", top, below)
    assert (done.returncode, done.stderr) == (0, ""), "what ran below it is over, too"


def test_one_that_cannot_be_stopped_does_not_keep_the_others_alive(cli: Cli) -> None:
    broken, fine = cli.made("aaaaaa"), cli.made("bbbbbb")
    cli.store.paths.run(broken).meta.path.write_text("{", encoding="utf-8")
    done = cli("stop", broken, "nobody", fine)
    assert done.returncode == 3, "that of the first that was refused, and names are looked up first"
    assert broken in done.stderr and "There is no run 'nobody'" in done.stderr and fine in done.stdout
    assert cli("stop", broken).returncode == 6
    assert cli.meta(fine).status.is_terminal
