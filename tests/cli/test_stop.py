"""`subagent stop`: ends runs, and reports whether their processes have exited."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from subagent_server.cli.console import follow
from subagent_server.process.marks import SHIM_FLAGS
from subagent_server.run import processes
from subagent_server.run.errors import BadArgument
from subagent_server.run.records import LaunchInfo
from subagent_server.settings import read_settings
from subagent_server.verbs.access import Caller
from subagent_server.verbs.reconcile import declare_host_gone
from subagent_server.verbs.service import open_service
from tests.cli.command import BOUND, Cli, until_watching
from tests.cli.terminal import person
from tests.helpers.processes import identity_of
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


def test_processes_that_stay_are_reported_and_why_if_their_shim_is_suspended(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "STOP_WAIT_SECONDS", 2.0)  # 12 in earnest
    with (
        cli.living("aaaaaa") as run_id,
        cli.living("bbbbbb") as suspended,
        suspended_shim(cli, suspended) as shim,
    ):
        done = cli("stop", run_id, suspended, "--json")
    assert done.returncode == 124
    assert '"live": true' in done.stdout
    first, second = done.stderr.splitlines()
    assert run_id in first and "still live: they are killed soon" in first
    assert suspended in second and f"`kill -CONT {shim}`" in second


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


@contextmanager
def suspended_shim(cli: Cli, run_id: str) -> Iterator[int]:
    """Give the pid of a suspended process that looks like the shim of a run, and that its record names."""
    run = cli.store.paths.run(run_id)
    program = cli.home / "process" / "shim.py"
    program.parent.mkdir()
    program.write_text("import time; time.sleep(600)", encoding="utf-8")
    with subprocess.Popen([sys.executable, *SHIM_FLAGS, program, run.directory]) as process:
        identity = identity_of(process.pid)
        record = {"shim": identity.to_json(), "directory": run.directory.stat().st_ino}
        run.shim.path.write_text(json.dumps(record), encoding="utf-8")
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: processes.is_stopped(identity), BOUND, "a suspended process")
            yield process.pid
        finally:
            process.kill()


def test_one_that_cannot_be_stopped_does_not_keep_the_others_alive(cli: Cli) -> None:
    broken, fine = cli.made("aaaaaa"), cli.made("bbbbbb")
    cli.store.paths.run(broken).meta.path.write_text("{", encoding="utf-8")
    done = cli("stop", broken, "nobody", fine)
    assert done.returncode == 3, "that of the first that was refused, and names are looked up first"
    assert broken in done.stderr and "There is no run 'nobody'" in done.stderr and fine in done.stdout
    assert cli("stop", broken).returncode == 6
    assert cli.meta(fine).status.is_terminal
