"""`subagent rm`: removes runs that have ended, whole; refuses living ones."""

import json
import os
import time
from pathlib import Path

import pytest

from subagent_server.run.paths import REMOVED_CHILD
from subagent_server.run.records import LaunchInfo
from tests.cli.command import Cli, inside, stored, until_watching
from tests.helpers.files import names


def test_ended_runs_are_removed_with_all_their_files(cli: Cli) -> None:
    first, second, third = (cli.completed(tail) for tail in ("aaaaaa", "bbbbbb", "cccccc"))
    nested = cli.store.paths.run(first).directory / "outputs" / "kept"
    nested.mkdir(parents=True)
    (nested / "file").touch()
    nested.chmod(0o500)  # as package managers leave their caches
    done = cli("rm", first, "bbbbbb")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [first, second], "")
    assert stored(cli) == [third] and names(cli.store.paths.removed.path) == []
    assert cli("show", first).returncode == 3
    found = cli.json("rm", third, "nobody", code=3)
    assert found["removed"] == [third] and [each["runId"] for each in found["left"]] == ["nobody"]


def test_living_runs_are_refused_and_the_others_are_removed(cli: Cli) -> None:
    over = cli.completed("aaaaaa")
    far = cli.made("333333", launch=LaunchInfo(host="far-away", boot_id="other"))
    with cli.living("222222") as works:
        child = cli.completed("bbbbbb", parent_run_id=works)
        done = cli("rm", "nobody", works, child, far, over)
        assert done.returncode == 3 and done.stdout.split() == [over]
        unknown, *refusals = done.stderr.splitlines()
        assert "There is no run 'nobody'" in unknown and f"subagent stop {works}" in refusals[0]
        assert child in refusals[1] and works in refusals[1] and far in refusals[2]
        assert cli.json("prune", "--keep", "0")["removed"] == []
        assert set(stored(cli)) == {works, child, far}
    assert cli("rm", "nobody").returncode == 3


def test_a_run_stays_until_the_run_that_continues_it_has_read_it(cli: Cli) -> None:
    old = cli.completed("aaaaaa")
    with cli.living("222222", continues_run_id=old) as waits:
        done = cli("rm", old)
        assert done.returncode == 2 and old in done.stderr and waits in done.stderr
        assert cli.json("prune", "--keep", "0")["removed"] == []
        cli.store.paths.run(waits).transcript.path.touch()
        assert cli("rm", old).returncode == 0
    assert stored(cli) == [waits]


def test_a_run_that_has_just_ended_is_removed_as_soon_as_its_processes_are_gone(cli: Cli) -> None:
    ending = cli.completed("aaaaaa")
    lock = cli.hold(ending)
    with cli.start("rm", ending) as running:
        until_watching(running)
        os.close(lock)
        assert running.end() == (0, f"{ending}\n", "")
    assert stored(cli) == []


def test_a_parent_is_removed_without_its_children_and_a_child_with_its_mark(cli: Cli) -> None:
    parent = cli.completed("aaaaaa")
    first, second = (cli.completed(tail, parent_run_id=parent) for tail in ("bbbbbb", "cccccc"))
    marks = cli.store.paths.run(parent).children
    marks.path.mkdir(exist_ok=True)
    for child in (first, second):
        (marks.path / child).touch()
    assert cli("rm", first).returncode == 0
    assert names(marks.path) == [REMOVED_CHILD, second]
    assert cli("rm", parent).returncode == 0
    assert stored(cli) == [second] and cli("show", second).returncode == 0


def test_a_run_stays_while_processes_of_a_child_that_has_ended_are_left(cli: Cli) -> None:
    parent = cli.completed("aaaaaa")
    child = cli.completed("bbbbbb", parent_run_id=parent)
    marks = cli.store.paths.run(parent).children
    marks.path.mkdir(exist_ok=True)
    (marks.path / child).touch()
    lock = cli.hold(child)
    assert cli.json("prune", "--keep", "0")["removed"] == []
    os.close(lock)
    assert set(cli.json("prune", "--keep", "0")["removed"]) == {parent, child}


def test_a_run_with_an_unreadable_state_is_removed_by_rm_and_not_by_prune(cli: Cli) -> None:
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
    cli.leaves_with(2, "holds 'deep' and is not a run", "rm", "exp1")
    assert cli("prune", "--older-than", "0s").returncode == 0
    assert file.read_text(encoding="utf-8") == "weights"


def test_a_child_removes_nothing(cli: Cli) -> None:
    with cli.living("d2e3f4") as own:
        over = cli.completed("aaaaaa", parent_run_id=own)
        for words in (["rm", over], ["prune", "--keep", "0"], ["stats"]):
            cli.leaves_with(2, "only the owner of the runs may do this", *words, env=inside(own))
    assert over in stored(cli)


def test_a_failed_removal_loses_nothing_and_exits_with_6(cli: Cli) -> None:
    over = cli.completed("aaaaaa")
    cli("ls")
    cli.store.paths.removed.path.rmdir()
    cli.store.paths.removed.path.write_text("in the way", encoding="utf-8")
    done = cli("rm", over)
    assert done.returncode == 6 and done.stderr.count("\n") == 1
    assert cli("show", over).returncode == 0


@pytest.mark.parametrize("readable", [True, False])
def test_a_run_of_a_later_version_stays_with_one_sentence(cli: Cli, readable: bool) -> None:
    run_id = cli.completed("aaaaaa")
    file = cli.store.paths.run(run_id).meta.path
    state = json.loads(file.read_bytes()) | {"schemaVersion": 99}
    file.write_text(json.dumps(state if readable else {"schemaVersion": 99}), encoding="utf-8")
    done = cli("rm", run_id)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and "upgrade subagent-server" in done.stderr
    left = cli.json("prune", "--keep", "0")
    assert left["removed"] == [] and stored(cli) == [run_id]
    if readable:
        assert "upgrade subagent-server" in str(left["left"])
