"""`subagent rm` and `subagent prune`: what is over goes, whole; what lives stays."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest

from subagent_server.domain.records import LaunchInfo
from subagent_server.host.clock import now
from subagent_server.service.access import token_hash
from tests.cli.command import Cli, run_name
from tests.helpers.files import names
from tests.helpers.stored import make_stored

GONE = timedelta(days=40)


def stored(cli: Cli) -> list[str]:
    """Return the names of the runs that are there, oldest first."""
    return cli.store.run_ids(newest_first=False)


def test_runs_that_are_over_are_removed_with_all_their_files(cli: Cli) -> None:
    first, second, third = (cli.completed(tail) for tail in ("aaaaaa", "bbbbbb", "cccccc"))
    nested = cli.store.paths.run(first).directory / "outputs" / "kept"
    nested.mkdir(parents=True)
    (nested / "file").touch()
    nested.chmod(0o500)  # as package managers leave their caches
    done = cli("rm", first, "bbbbbb")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [first, second], "")
    assert stored(cli) == [third] and names(cli.store.paths.removed.path) == []
    assert cli("show", first).returncode == 3


def test_what_lives_is_refused_and_the_others_are_removed_all_the_same(cli: Cli) -> None:
    over = cli.completed("aaaaaa")
    far = cli.made("333333", launch=LaunchInfo(host="far-away", boot_id="other"))
    with cli.living("222222") as works:
        child = cli.completed("bbbbbb", parent_run_id=works)
        done = cli("rm", works, child, far, over)
        assert done.returncode == 2 and done.stdout.split() == [over]
        refusals = done.stderr.splitlines()
        assert f"subagent stop {works}" in refusals[0]
        assert child in refusals[1] and works in refusals[1] and far in refusals[2]
        assert cli.json("prune", "--keep", "0")["removed"] == []
        assert set(stored(cli)) == {works, child, far}
    assert cli("rm", "nobody").returncode == 3


def test_a_parent_goes_without_its_children_and_a_child_leaves_no_mark(cli: Cli) -> None:
    parent = cli.completed("aaaaaa")
    first, second = (cli.completed(tail, parent_run_id=parent) for tail in ("bbbbbb", "cccccc"))
    marks = cli.store.paths.run(parent).children
    marks.path.mkdir(exist_ok=True)
    for child in (first, second):
        (marks.path / child).touch()
    assert cli("rm", first).returncode == 0
    assert names(marks.path) == [second]
    assert cli("rm", parent).returncode == 0
    assert stored(cli) == [second] and cli("show", second).returncode == 0


def test_prune_takes_what_is_old_and_not_among_the_newest(cli: Cli) -> None:
    fresh = cli.completed("zzzzzz")
    old = make_stored(cli.home / "runs", 6, first=now() - GONE)
    assert cli("prune", "--older-than", "50d").stdout == ""
    planned = cli.json("prune", "--older-than", "30d", "--keep", "3", "--dry-run")
    assert planned == {"dryRun": True, "removed": old[3::-1], "left": []}
    assert set(stored(cli)) == {fresh, *old}
    done = cli("prune", "--older-than", "30d", "--keep", "3")
    assert done.stdout.split() == old[3::-1] and "4 runs removed." in done.stderr
    assert cli("prune").stdout.split() == old[:3:-1], "30 days, where nothing is said"
    assert stored(cli) == [fresh]
    assert cli("prune", "--keep", "0").stdout.split() == [fresh]


@pytest.mark.parametrize("span", ["30", "d", "-1d", "1y", "٣d"])
def test_a_span_that_is_none_is_refused(cli: Cli, span: str) -> None:
    assert cli("prune", "--older-than", span).returncode == 2


def test_starts_that_never_were_go_when_they_are_surely_not_in_the_making(cli: Cli) -> None:
    old, young, held = (cli.store.paths.run(run_name(tail)) for tail in ("aaaaaa", "bbbbbb", "cccccc"))
    for run in (old, young, held):
        run.directory.mkdir()
        run.live_lock.touch()
        cli.store.paths.change_mark(run.run_id).touch()
    for run in (old, held):
        for path in (run.live_lock.path, run.directory):
            os.utime(path, (time.time() - 7200, time.time() - 7200))
    lock = cli.hold(held.run_id)
    try:
        assert cli.json("prune")["removed"] == [old.run_id]
        assert stored(cli) == cli.store.live_ids() == [young.run_id, held.run_id]
        assert cli("rm", young.run_id).returncode == 2
    finally:
        os.close(lock)


def test_a_removal_that_was_killed_leaves_no_run_by_halves_and_the_next_one_finishes_it(cli: Cli) -> None:
    over = cli.completed("aaaaaa")
    cli.store.paths.removed.path.mkdir()
    shutil.copytree(cli.store.paths.run(over).directory, cli.store.paths.removed.path / f"{over}.0a0b0c0d")
    cli.store.paths.change_mark(run_name("bbbbbb")).touch()
    assert cli("ls", "-q").stdout.split() == [over]
    assert cli("prune").returncode == 0
    assert names(cli.store.paths.removed.path) == [] and cli.store.live_ids() == []
    assert stored(cli) == [over]


def test_a_run_whose_state_cannot_be_read_goes_by_name_only(cli: Cli) -> None:
    broken = cli.completed("aaaaaa")
    cli.store.paths.run(broken).meta.path.write_bytes(b"{")
    assert cli.json("prune", "--keep", "0")["removed"] == []
    lock = cli.hold(broken)
    assert cli("rm", broken).returncode == 2
    os.close(lock)
    assert cli("rm", broken).returncode == 0
    assert stored(cli) == []


def own_work(cli: Cli, name: str, *, state: str | None = None) -> Path:
    """Return a file of the user's in a directory below the root that has the name of a run."""
    mine = cli.store.paths.root / name
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "model.pt").write_text("weights", encoding="utf-8")
    if state is not None:
        (mine / "run.meta.json").write_text(state, encoding="utf-8")
    long_ago = time.time() - 1_000_000
    for path in (*mine.rglob("*"), mine):
        os.utime(path, (long_ago, long_ago))
    return mine / "deep" / "model.pt"


@pytest.mark.parametrize("state", [None, "", "{}", '{"runId": "exp1", "status": "completed"}'])
def test_a_directory_that_is_not_a_run_is_never_removed(cli: Cli, state: str | None) -> None:
    cli.completed("aaaaaa")
    file = own_work(cli, "exp1", state=state)
    done = cli("rm", "exp1")
    assert done.returncode != 0
    assert "holds 'deep' and is not a run" in done.stderr
    assert cli("prune", "--older-than", "0s").returncode == 0
    assert file.read_text(encoding="utf-8") == "weights"
    assert not cli.store.paths.run("aaaaaa").files.exists()


def test_a_child_removes_nothing(cli: Cli) -> None:
    with cli.living("222222", child_token_hash=token_hash("secret")) as own:
        over = cli.completed("aaaaaa", parent_run_id=own)
        env = {"SUBAGENT_RUN_ID": own, "SUBAGENT_RUN_TOKEN": "secret"}
        for words in (["rm", over], ["prune", "--keep", "0"], ["stats"]):
            assert cli(*words, env=env).returncode == 2
    assert over in stored(cli)


def test_a_root_that_takes_no_writes_loses_nothing_and_says_so(cli: Cli) -> None:
    over = cli.completed("aaaaaa")
    cli("ls")
    cli.store.paths.removed.path.write_text("in the way", encoding="utf-8")
    done = cli("rm", over)
    assert done.returncode == 6 and done.stderr.count("\n") == 1
    assert cli("show", over).returncode == 0
