"""`subagent prune`: removes runs that ended long ago, and directories of starts that failed."""

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from subagent_server.run.errors import UnknownRun
from subagent_server.run.processes import now
from subagent_server.verbs.remove import Age, Pruned, prune, remove, sweep
from tests.cli.command import Cli, run_name, stored
from tests.helpers.files import names
from tests.helpers.stored import make_stored

GONE = timedelta(days=40)


def test_prune_removes_old_runs_and_keeps_the_newest(cli: Cli) -> None:
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


def test_where_no_run_ever_was_nothing_is_removed_and_nothing_is_wrong(cli: Cli) -> None:
    shutil.rmtree(cli.home / "runs", ignore_errors=True)
    done = cli("prune")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "0 runs removed.\n")
    assert "No such file" not in cli("rm", "nobody").stderr
    assert not (cli.home / "runs").exists()
    (cli.home / "runs").mkdir()
    (cli.home / "runs" / "README.md").touch()  # a clone of a repository with an empty root
    assert (cli("prune").returncode, cli("doctor", "--runs").stderr) == (
        0,
        "0 runs checked: nothing is wrong.\n",
    )


@pytest.mark.parametrize("span", ["30", "d", "-1d", "1y", "٣d"])
def test_an_invalid_span_is_refused(cli: Cli, span: str) -> None:
    assert cli("prune", "--older-than", span).returncode == 2


def test_an_abandoned_start_is_removed_unless_it_is_young_or_held(cli: Cli) -> None:
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
        assert stored(cli) == [young.run_id, held.run_id]
        assert cli.store.live_ids() == [held.run_id], "whose start may still be under way"
        assert cli("rm", young.run_id).returncode == 2
    finally:
        os.close(lock)


@pytest.mark.race
def test_what_another_removal_sweeps_meanwhile_is_removed_all_the_same(cli: Cli) -> None:
    old, is_over = make_stored(cli.home / "runs", 40), threading.Event()
    for run_id in old:
        for name in ("children", "code", "outputs"):
            (cli.store.paths.run(run_id).directory / name / "more").mkdir(parents=True)

    def sweeps() -> None:
        while not is_over.is_set():
            sweep(cli.store)

    with ThreadPoolExecutor(1) as threads:
        sweeping = threads.submit(sweeps)
        try:
            removed = list(prune(cli.store, Age()))
        finally:
            is_over.set()
    assert removed == [Pruned(run_id) for run_id in reversed(old)] and sweeping.result() is None


@pytest.mark.race
def test_a_run_that_another_removal_takes_meanwhile_is_unknown(cli: Cli) -> None:
    old = make_stored(cli.home / "runs", 60)

    def remove_each() -> int:
        removed = 0
        for run_id in old:
            with suppress(UnknownRun):
                remove(cli.store, run_id)
                removed += 1
        return removed

    with ThreadPoolExecutor(3) as threads:
        removed = [each.result() for each in [threads.submit(remove_each) for _ in range(3)]]
    assert sum(removed) == len(old) and stored(cli) == []


def test_a_run_that_is_continued_while_others_are_pruned_stays(cli: Cli) -> None:
    first, second = cli.completed("aaaaaa"), cli.completed("bbbbbb")
    pruning = prune(cli.store, Age())
    assert next(pruning) == Pruned(second)
    with cli.living("cccccc", continues_run_id=first) as waits:
        (left,) = pruning
    assert left.run_id == first and f"until run {waits}, which continues it, has read it" in (left.why or "")


def test_a_run_whose_parent_was_removed_before_is_removed(cli: Cli) -> None:
    parent = cli.completed("aaaaaa")
    child = cli.completed("bbbbbb", parent_run_id=parent, root_run_id=parent, depth=1)
    assert cli("rm", parent).returncode == 0
    assert cli.json("prune", "--keep", "0") == {"dryRun": False, "removed": [child], "left": []}


@pytest.mark.parametrize("verb", ["prune", "rm"])
def test_the_next_removal_finishes_one_that_was_killed(cli: Cli, verb: str) -> None:
    over, other = cli.completed("aaaaaa"), cli.completed("cccccc")
    shutil.copytree(cli.store.paths.run(over).directory, cli.store.paths.removed.path / f"{over}.0a0b0c0d")
    cli.store.paths.change_mark(run_name("bbbbbb")).touch()
    assert cli("ls", "-q").stdout.split() == [other, over]
    assert cli(verb, *([other] if verb == "rm" else [])).returncode == 0
    assert names(cli.store.paths.removed.path) == [] and cli.store.live_ids() == []
    assert over in stored(cli)
