"""A worktree whose end failed is taken up by the next reader, and until then the reason is on record."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.store import read_worktree
from subagent_server.verbs import run_worktree
from subagent_server.worktrees.git import _ALWAYS, harmless_git
from subagent_server.worktrees.store_of_run import set_reference
from tests.faults.disks import fill, memory_disk
from tests.helpers import forked
from tests.helpers.files import write_program
from tests.helpers.repositories import git, make_repository
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill
from tests.worktrees.repository import WORK, Repository

READERS: dict[str, Callable[[World, str], object]] = {
    "ls": lambda world, _: world.cli("ls"),
    "show": lambda world, run_id: world.cli("show", run_id),
    "wait": lambda world, run_id: world.cli("wait", run_id),
    "doctor": lambda world, run_id: world.cli("doctor", "--runs", run_id),
    "merge": lambda world, run_id: world.cli("merge", run_id),
    "check_status": lambda world, run_id: _checked(world, run_id),
}


def _checked(world: World, run_id: str) -> None:
    with world.serve() as parent:
        parent.call("check_status", runId=run_id)


def phase(world: World, run_id: str) -> str:
    """Return how the worktree of a run stands, as it is on disk."""
    state = read_worktree(world.paths(run_id))
    assert state is not None
    return state.phase


def test_work_that_could_not_be_brought_home_is_named_and_brought_home_by_any_reader(
    world: World, repository: Repository
) -> None:
    run_id = repository.left(settled=False)
    objects = repository.top / ".git" / "objects"
    away = objects.rename(objects.with_name("objects.away"))
    repository.gone(run_id)
    for found in (world.cli("doctor", "--runs", run_id).stdout, world.cli("doctor").stdout):
        assert run_id in found and "not settled" in found and "git could not" in found
    assert world.look(run_id).live is False and phase(world, run_id) == "working"
    away.rename(objects)
    record = world.paths(run_id).worktree.path
    unsettled = record.read_bytes()
    for reader, read in READERS.items():
        record.write_bytes(unsettled)
        read(world, run_id)
        assert phase(world, run_id) == "kept", reader
    assert run_id not in world.cli("doctor").stdout
    assert repository.shown(run_id)["commits"] == 1
    assert repository.git("fsck", "--no-dangling") == ""


def test_a_worktree_that_the_node_of_its_run_alone_has_is_not_taken_for_none(
    world: World, repository: Repository
) -> None:
    world.play(shell(WORK), asks("Go on?"))
    world.environment |= {"SUBAGENT_LEASE": "6", processes.NODE: "n7"}
    run_id = world.cli("run", "worker", "Work.", "--detach").stdout.strip()
    del world.environment[processes.NODE]
    world.asking(run_id)
    os.kill(world.shim(run_id).pid, signal.SIGKILL)
    away = repository.places.rename(repository.places.with_name("away"))
    repository.gone(run_id)
    assert phase(world, run_id) == "working" and "is not on this host" in world.cli("doctor").stdout
    assert world.cli("rm", run_id).returncode == 6 and "subagent/base" in repository.git("for-each-ref")
    away.rename(repository.places)
    assert repository.shown(run_id)["commits"] == 1


def test_a_git_that_is_killed_while_a_worker_reads_what_is_left_loses_nothing(
    world: World, repository: Repository
) -> None:
    world.play(shell(f"{WORK}; head -c 16M /dev/urandom > large"), says("Done."))
    run_id = world.start()

    worker = world.worker(run_id)
    at_work = wait_for(lambda: _reading_git_below(worker), BOUND, "git, which reads the objects")
    assert at_work is not None
    processes.send_signal(at_work, signal.SIGKILL)
    world.completed_and_gone(run_id)
    assert phase(world, run_id) == "working"
    assert any("was not settled" in event["message"] for event in world.events(run_id, "warning"))
    world.cli("ls")
    assert phase(world, run_id) == "kept" and repository.shown(run_id)["files"] == 3


def _reading_git_below(worker: processes.Identity) -> processes.Identity | None:
    below = processes.descendants([worker.pid])
    return next((one for one in below if b"index-pack" in processes.command_of(one.pid)), None)


def test_a_full_disk_keeps_the_work_until_there_is_room(world: World, repository: Repository) -> None:
    place = world.home / "small"
    with memory_disk(place, "16m"):
        world.environment["XDG_STATE_HOME"] = str(place)
        world.play(shell(WORK), asks("Go on?"), says("Done."))
        run_id = world.start_asking()
        filler = fill(place)
        world.reply(run_id, "Yes.")
        world.completed_and_gone(run_id)
        assert phase(world, run_id) == "working"
        for words in (["show", run_id, "--diff"], ["merge", run_id], ["rm", run_id]):
            refused = world.refused(*words)
            assert str(place) in refused and "(No space left on device)" in refused, words
        filler.unlink()
        assert repository.shown(run_id)["state"] == "kept"
        assert world.cli("rm", "--drop-unmerged", run_id).returncode == 0


def test_a_full_disk_refuses_a_worktree_as_a_disk_does(world: World, repository: Repository) -> None:
    place = world.home / "small"
    with memory_disk(place, "1m"):
        world.environment["XDG_STATE_HOME"] = str(place)
        filler = fill(place)
        code, why = world.failed(run_id := world.start())
        assert code == "launch_failed" and f"{run_id} could not be written (No space left on device)" in why
        filler.unlink()
        world.gone(run_id)


def test_a_file_that_there_is_no_room_to_bring_along_is_left_out_whole(
    world: World, repository: Repository
) -> None:
    (repository.top / ".worktreeinclude").write_text("*.env\n", encoding="utf-8")
    with (repository.top / "large.env").open("wb") as file:
        file.truncate(16 << 20)
    with memory_disk(world.home / "small", "8m"):
        world.environment["XDG_STATE_HOME"] = str(world.home / "small")
        run_id = repository.ran(f"ls; {WORK}")
        assert "large.env" not in world.events(run_id, "tool_result")[0]["text"]
        assert "large.env" in repository.shown(run_id)["notes"][0]


def test_what_a_power_cut_has_torn_in_the_store_of_a_run_stops_neither_diff_nor_merge(
    world: World, repository: Repository
) -> None:
    world.play(shell(WORK), asks("Go on?"))
    run_id = world.start_asking()
    branch, store = repository.shown(run_id)["branch"], repository.store(run_id)
    record, whole = world.paths(run_id).worktree.path, world.home / "whole"
    torn = ("index", "HEAD", f"refs/heads/{branch}", "index.lock")
    shutil.copytree(store, whole, symlinks=True)
    for name in torn:
        (store / name).write_bytes(b"")
        assert "+mine" in world.cli("show", run_id, "--diff").stdout, name
        shutil.copytree(whole, store, symlinks=True, dirs_exist_ok=True)
    unsettled = record.read_bytes()
    kill(world.worker(run_id))
    repository.gone(run_id)
    for name in torn:
        repository.git("update-ref", "-d", f"refs/heads/{branch}")
        record.write_bytes(unsettled)
        shutil.copytree(whole, store, symlinks=True, dirs_exist_ok=True)
        (store / name).write_bytes(b"")
        assert repository.shown(run_id)["commits"] == 1, name
        assert repository.git("show", f"{branch}:new.txt") == "new"
        (store / "index.lock").unlink(missing_ok=True)
    assert "merged" in repository.merge(run_id)


@pytest.mark.parametrize(
    "fault", ["is away", "is refused", "has a bad branch", "has torn references", "lacks its objects"]
)
def test_work_of_which_nobody_can_say_where_it_is_is_dropped_only_if_asked(
    world: World, repository: Repository, fault: str
) -> None:
    refused = '[submodule "a"]\n\tpath = a\n\turl = a\n\tupdate = !a\n'
    if fault == "is refused":
        (repository.top / ".gitmodules").write_text(refused, encoding="utf-8")
        repository.commit("what no git takes from another")
    run_id = repository.left(settled=False)
    if fault == "is away":
        (repository.top / ".git").rename(world.home / "away")
    repository.gone(run_id)
    if fault == "has a bad branch":
        (repository.top / ".git" / "refs" / "heads" / "bad").write_text(f"{1:040}\n", encoding="utf-8")
    torn, objects = (repository.top / ".git" / name for name in ("packed-refs", "objects"))
    if fault == "lacks its objects":
        objects.rename(objects.with_name("away"))
        objects.mkdir()
    if fault == "has torn references":
        torn.write_text("torn\n", encoding="utf-8")
    for words in (("prune", "--keep", "0"), ("rm", run_id)):
        world.cli(*words)
        assert (repository.place(run_id) / "new.txt").exists(), words
    torn.unlink(missing_ok=True)
    assert world.cli("rm", "--drop-unmerged", run_id).stdout == f"{run_id}\n"
    assert list(repository.places.iterdir()) == []


def test_files_that_take_longer_than_any_limit_hold_no_list_up(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_worktree, "_LIST_SECONDS", 0.5)  # for forks of this process: git burns a core
    run_id = repository.left(f"{WORK}; truncate -s 4T large", settled=False)
    world.cli("ls")
    assert "it took more than" in world.cli("prune", "--keep", "0").stderr
    assert phase(world, run_id) == "working"
    assert "it took more than" in world.cli("doctor", "--runs", run_id).stdout
    (repository.place(run_id) / "large").unlink()
    world.cli("ls", env={"PYTHONHASHSEED": "0"})  # of a process of its own, which was held up by nothing
    assert phase(world, run_id) == "kept"


def test_commits_that_cannot_be_read_do_not_keep_the_files_from_being_merged(
    world: World, repository: Repository
) -> None:
    commits = "git -c user.name=A -c user.email=a@b"
    tree = "$(git rev-parse --git-path objects)/$(git rev-parse HEAD^{tree} | sed 's,..,&/,')"
    damage = f"chmod u+w {tree}; printf x > {tree}"
    run_id = repository.left(f"{WORK}; git add -A; {commits} commit -qm mine; {damage}")
    assert phase(world, run_id) in ("working", "kept")
    shown = repository.shown(run_id)
    assert any("commits of its own" in note for note in shown["notes"]), shown
    assert "merged" in repository.merge(run_id)
    assert "it holds work that its branch has not" in world.refused("rm", run_id)
    assert (repository.top / "new.txt").read_text("utf-8") == "new\n"
    assert repository.git("fsck", "--no-dangling") == ""
    assert git("-C", repository.top, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("left", "seconds_old"),
    [
        (["refs/subagent/base/run.lock"], 0),
        (["refs/subagent/base/run.lock"], 60),
        (["packed-refs.lock"], 90),
        (["packed-refs.new", "packed-refs.lock"], 90),
        (["packed-refs.new"], 90),
        (["reftable/tables.list.lock"], 60),
    ],
)
def test_the_lock_of_a_git_that_was_killed_keeps_no_reader_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: list[str], seconds_old: int
) -> None:
    monkeypatch.setenv("GIT_DEFAULT_REF_FORMAT", "reftable" if "reftable" in left[0] else "files")
    make_repository(tmp_path / "top")
    directory, name = tmp_path / "top" / ".git", "refs/subagent/base/run"
    ours = harmless_git(os.environ, directory).at(directory, GIT_DIR=str(directory))
    set_reference(ours, name, ours.commit("HEAD"))
    locks = [directory / each for each in left]
    for lock in locks:
        lock.parent.mkdir(exist_ok=True)  # git before 2.45 knows no reftable
        lock.touch()
        os.utime(lock, (time.time() - seconds_old,) * 2)
    set_reference(ours, name, None)
    assert not any(map(Path.exists, locks)) and ours.commit(name) is None


def test_references_that_are_just_packed_are_waited_for_once_by_a_reader_of_many_runs(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_ALWAYS, "core.packedRefsTimeout", "1500")  # longer than a reader calls slow
    world.play(says("Done."))
    run_id = world.start()
    world.completed_and_gone(run_id)
    removed = world.paths(run_id).worktree.path.read_text(encoding="utf-8")
    world.paths(run_id).worktree.path.write_text(removed.replace("removed", "removing"), encoding="utf-8")
    repository.git("update-ref", f"refs/subagent/base/{run_id}", "HEAD")
    lock, new = (repository.top / ".git" / f"packed-refs.{end}" for end in ("lock", "new"))
    lock.touch()
    os.utime(lock, (time.time() - 90,) * 2)
    new.write_text("half of it", encoding="utf-8")
    assert world.look(run_id).live is False and phase(world, run_id) == "removing"
    assert "packed-refs.lock" in world.cli("doctor").stdout
    assert lock.exists() and new.exists()
    lock.unlink()
    new.unlink()
    assert world.look(run_id).live is False and phase(world, run_id) == "removing"
    world.cli("ls", env={"PYTHONHASHSEED": "0"})  # of a process of its own, which was held up by nothing
    assert phase(world, run_id) == "removed"


@pytest.mark.parametrize("lock", ["HEAD.lock", "refs/heads/main.lock", "index.lock"])
def test_a_merge_that_a_lock_stops_leaves_the_working_copy_as_it_was(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setitem(_ALWAYS, "core.filesRefLockTimeout", "300")  # 6 s in earnest
    run_id = repository.left(f"{WORK}; rm -r deep")
    (repository.top / "shared.txt").chmod(0o755)
    repository.git("update-index", "--chmod=+x", "shared.txt")
    (repository.top / "loose.txt").write_text("loose\n", encoding="utf-8")
    repository.commit("of the person")
    (repository.top / "loose.txt").write_text("changed\n", encoding="utf-8")
    (repository.top / ".git" / lock).touch()
    assert "as it was" in repository.merge(run_id, code=2)
    (repository.top / ".git" / lock).unlink()
    assert repository.git("status", "--short") == " M loose.txt"
    repository.merge(run_id)
    assert repository.git("status", "--short") == " M loose.txt" and not (repository.top / "deep").exists()


def test_a_merge_that_fills_the_disk_says_that_half_of_it_is_there(repository: Repository) -> None:
    run_id = repository.left("echo new > a.txt; mkdir full; head -c 9000 /dev/zero > full/new.bin")
    (repository.top / "full").mkdir()
    with memory_disk(repository.top / "full", "1m"):
        filler = fill(repository.top / "full")
        refused = repository.merge(run_id, code=2)
        assert "unable to write" in refused and "has left some" in refused and "as it was" not in refused
        filler.unlink()
        for written in ("a.txt", "full/new.bin"):
            (repository.top / written).unlink(missing_ok=True)
        repository.merge(run_id)
        assert (repository.top / "a.txt").read_text() == "new\n"


def test_a_merge_that_is_killed_leaves_a_working_copy_that_git_can_use(
    world: World, repository: Repository
) -> None:
    run_id = repository.left(f"{WORK}; for i in $(seq 1500); do echo $i > f$i; done")
    command = [*forked.PROGRAM, "merge", run_id]
    with forked.popen(command, world.environment, cwd=world.work, stdout=subprocess.DEVNULL) as merge:
        wait_for((repository.top / "f1").exists, BOUND, "files of the merge")
        left = processes.descendants([merge.pid])
        merge.kill()
    # without its lock it has yet to move the branch
    wait_for(lambda: not any(map(processes.is_alive, left)), BOUND, "the end of git")
    assert repository.git("status", "--porcelain") == ""


def test_a_merge_whose_git_is_killed_says_what_is_there(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = repository.left()
    monkeypatch.setattr("subagent_server.run.host_programs.SYSTEM_DIRECTORIES", ())
    program = world.home / "bin" / "git"
    program.parent.mkdir()
    dies = f'case "$*" in *--ff-only*) echo new > {repository.top}/new.txt; kill -KILL $$; esac'
    write_program(program, f'#!/bin/sh\n{dies}\nexec /usr/bin/git "$@"\n')
    world.environment["PATH"] = f"{program.parent}:{world.environment['PATH']}"
    said = repository.merge(run_id, code=2)
    assert "has left some of its files" in said and "SIGKILL" in said
