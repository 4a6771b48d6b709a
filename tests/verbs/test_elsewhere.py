"""The verdict on a run of another host: files, heartbeat, engine, lease, in this order; and what follows."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from subagent_server.process import slurm
from subagent_server.process.launcher import Sight
from subagent_server.run import processes
from subagent_server.run.errors import UnreadableMeta
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import LaunchInfo, RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import StopRequested
from subagent_server.verbs.reconcile import SETTLE_SECONDS, Facts, judge, observe
from subagent_server.worker.supervisor import ParentWatch
from tests.helpers.files import names
from tests.helpers.runs import RUN_ID, STARTED, T0, make_meta, make_request

LEASE = 60.0
ON = Facts(LEASE, "n2", engine="Slurm")
QUEUED = Facts(LEASE, engine="Slurm")
NO_NODE = Sight("silent", "NODE_FAIL")
ENDED = Sight("ended", "CANCELLED")

CASES: dict[str, tuple[Facts, bool | None, str | None]] = {
    "a fresh beat outweighs the engine": (replace(ON, beat_age=14, sight=ENDED), True, None),
    "its own record outweighs a fresh beat": (replace(ON, beat_age=1, tree_gone=True), False, None),
    "NODE_FAIL is no proof": (
        replace(ON, beat_age=41, sight=NO_NODE),
        None,
        "n2 was last heard 41 s ago; Slurm says NODE_FAIL",
    ),
    "an unknown job is no proof": (
        replace(ON, beat_age=41, sight=Sight("absent")),
        None,
        "n2 was last heard 41 s ago; Slurm says nothing of it",
    ),
    "no answer is no proof": (
        replace(ON, beat_age=119, sight=None),
        None,
        "n2 was last heard 119 s ago; Slurm does not answer",
    ),
    "a beat of tomorrow is no proof": (
        replace(ON, beat_age=-86_400, sight=None),
        None,
        "n2 was last heard at a time to come; Slurm does not answer",
    ),
    "a script that ended on a living node is one": (
        replace(ON, beat_age=20, sight=ENDED),
        False,
        "Slurm says CANCELLED",
    ),
    "two leases are one": (replace(ON, beat_age=121, sight=NO_NODE), False, "n2 was last heard 121 s ago"),
    "a job that waits lives": (
        replace(QUEUED, sight=Sight("waiting", "Priority")),
        True,
        "waits in Slurm (Priority)",
    ),
    "a job that just begins lives": (replace(QUEUED, sight=Sight("working")), True, "is being started"),
    "a starter at work may still submit": (
        replace(QUEUED, starting=True, sight=Sight("absent"), unseen_age=99),
        True,
        "is being started",
    ),
    "no job at a first look is no proof": (
        replace(QUEUED, sight=Sight("absent")),
        None,
        "nothing was heard of it yet; Slurm says nothing of it",
    ),
    "no job at a second look is one": (
        replace(QUEUED, sight=Sight("absent"), unseen_age=SETTLE_SECONDS),
        False,
        "it never began; Slurm says nothing of it",
    ),
    "a job cancelled in the queue never begins": (
        replace(QUEUED, sight=ENDED, unseen_age=SETTLE_SECONDS),
        False,
        "it never began; Slurm says CANCELLED",
    ),
    "a job given to a dying node may still begin": (
        replace(QUEUED, sight=NO_NODE, unseen_age=119),
        None,
        "nothing was heard of it yet; Slurm says NODE_FAIL",
    ),
    "or never begins": (
        replace(QUEUED, sight=NO_NODE, unseen_age=120),
        False,
        "it never began; Slurm says NODE_FAIL",
    ),
    "without an answer nobody knows": (
        replace(QUEUED, unseen_age=9_999),
        None,
        "nothing was heard of it yet; Slurm does not answer",
    ),
    "without an engine it begins within two leases": (
        Facts(LEASE, unseen_age=119),
        None,
        "nothing was heard of it yet",
    ),
    "or never": (Facts(LEASE, unseen_age=120), False, "it never began"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_believed_of_another_host(case: str) -> None:
    facts, live, reason = CASES[case]
    verdict = judge(facts)
    assert (verdict.live, verdict.reason) == (live, reason)


# -- what follows for the files of a run; the ages of its beat are made


@pytest.fixture
def slurm_says(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sight | None], None]:
    return lambda sight: monkeypatch.setattr(slurm, "sight", lambda _: sight)


@pytest.fixture
def run(store: RunStore) -> RunPaths:
    """A run that works on n2 by a job."""
    store.create(make_request(RUN_ID))
    launch = LaunchInfo(kind="slurm", host="slurm", boot_id="boot", lease=LEASE)
    store.publish(make_meta(RUN_ID, launch=launch))
    store.update(RUN_ID, STARTED, T0)
    paths = store.paths.run(RUN_ID)
    paths.shim_claim.touch()
    process = {"host": "n2", "pid": os.getpid(), "startTime": 1, "bootId": "boot"}
    record = {"shim": process, "worker": process, "directory": os.fstat(paths.files.descriptor).st_ino}
    paths.shim.path.write_text(json.dumps(record), encoding="utf-8")
    beat(paths, 0)
    return paths


def beat(run: RunPaths, age: float) -> None:
    """Make the last beat of a run so old."""
    run.beat.touch()
    moment = run.beat.stat().st_mtime - age
    os.utime(run.beat.path, (moment, moment))


def test_a_silent_node_is_unknown_and_nothing_is_written(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    slurm_says(NO_NODE)
    beat(run, 41)
    before = run.meta.path.read_bytes()
    seen = observe(store, RUN_ID)
    assert (seen.live, seen.node, seen.meta.status) == (None, "n2", Status.RUNNING)
    assert seen.reason is not None and seen.reason.endswith("s ago; Slurm says NODE_FAIL")
    assert run.meta.path.read_bytes() == before and not run.exit.exists()


def test_after_two_leases_a_run_is_lost_and_over(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    slurm_says(NO_NODE)
    beat(run, 2 * LEASE + 1)
    seen = observe(store, RUN_ID)
    assert seen.live is False and seen.meta.error is not None
    assert seen.meta.error.code == "lost" and "n2 was last heard 121 s ago" in seen.meta.error.message
    assert json.loads(run.exit.path.read_bytes())["treeGone"] is True
    assert "beat" not in names(run.directory)


def test_a_suspended_run_is_not_lost_however_silent(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    """Its worker acts again as soon as it is resumed: once it wrote its end after a reader had."""
    slurm_says(Sight("waiting", "SUSPENDED"))
    beat(run, 2 * LEASE + 1)
    seen = observe(store, RUN_ID)
    assert (seen.live, seen.reason, seen.meta.error) == (True, "waits in Slurm (SUSPENDED)", None)


def test_a_result_of_a_silent_node_counts(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    slurm_says(None)
    beat(run, 2 * LEASE + 1)
    run.result.path.write_bytes(RunResult(outcome=Status.COMPLETED, text="Done.", summary="Done.").to_json())
    assert observe(store, RUN_ID).meta.status is Status.COMPLETED


def test_an_ended_tree_on_a_living_node_is_not_called_gone(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    """The lock is free here, and no process of the run can be seen: both say nothing of n2."""
    slurm_says(Sight("working", "RUNNING"))
    run.exit.path.write_text(json.dumps({"workerStarted": True, "exitCode": 1}), encoding="utf-8")
    seen = observe(store, RUN_ID)
    assert seen.meta.status is Status.FAILED and seen.live is True
    assert "treeGone" not in json.loads(run.exit.path.read_bytes())


def test_a_job_that_never_was_is_called_so_at_the_second_look(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    slurm_says(Sight("absent"))
    for file in (run.beat, run.shim, run.shim_claim):
        file.unlink()
    run.worker_out.path.write_text("slurm_script: 6\nexec: /opt/python: not found\n", encoding="utf-8")
    assert observe(store, RUN_ID).live is None
    moment = run.unseen.stat().st_mtime - SETTLE_SECONDS - 1
    os.utime(run.unseen.path, (moment, moment))
    error = observe(store, RUN_ID).meta.error
    assert error is not None and error.code == "launch_failed"
    assert error.message.endswith("Slurm says nothing of it. It printed: exec: /opt/python: not found")


def test_nothing_lives_of_a_run_that_ended_before_a_shim_claimed_it(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    slurm_says(Sight("waiting", "Priority"))
    for file in (run.beat, run.shim, run.shim_claim):
        file.unlink()
    assert observe(store, RUN_ID).live is True
    store.update(RUN_ID, StopRequested(), T0)
    assert observe(store, RUN_ID).live is False  # and the run that continues it need not wait
    assert json.loads(run.exit.path.read_bytes())["treeGone"] is True


def test_a_child_does_not_take_the_free_lock_of_a_parent_elsewhere_for_its_death(
    store: RunStore, run: RunPaths
) -> None:
    child = "20261122-093015-418-k3f9qz"
    store.create(make_request(child, parent_run_id=RUN_ID, depth=1, root_run_id=RUN_ID))
    store.publish(make_meta(child, parent_run_id=RUN_ID, depth=1, root_run_id=RUN_ID))
    watch = ParentWatch(store, child)
    assert watch.is_dead  # has to be looked at, by every door that reads a run
    watch.reconcile()
    assert store.read(RUN_ID).status is Status.RUNNING
    assert not watch.is_dead


HOSTILE: list[Any] = [{"host": 7}, {"host": "\x1b[2Jn\n" * 999}, [], "n2", None]


@pytest.mark.parametrize("shim", HOSTILE, ids=range(len(HOSTILE)))
def test_the_name_of_a_node_is_data(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None], shim: Any
) -> None:
    slurm_says(None)
    beat(run, 41)
    run.shim.path.write_text(json.dumps({"shim": shim}), encoding="utf-8")
    seen = observe(store, RUN_ID)
    assert seen.live is None and seen.reason is not None and len(seen.reason) < 600
    assert "\x1b" not in seen.reason and "\n" not in seen.reason


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_beat_that_is_no_file_is_no_beat(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None], kind: str
) -> None:
    slurm_says(NO_NODE)
    run.beat.unlink()
    made = {"fifo": os.mkfifo, "link": lambda path: path.symlink_to("/dev/zero"), "directory": os.mkdir}
    made[kind](run.beat.path)
    with pytest.raises(UnreadableMeta, match="beat"):
        observe(store, RUN_ID)


def test_a_namesake_of_this_host_is_another_host(
    store: RunStore, run: RunPaths, slurm_says: Callable[[Sight | None], None]
) -> None:
    slurm_says(NO_NODE)
    shim = {"host": processes.host_name(), "pid": os.getpid(), "startTime": 1, "bootId": "another"}
    run.shim.path.write_text(json.dumps({"shim": shim}), encoding="utf-8")
    beat(run, 41)
    assert observe(store, RUN_ID).live is None  # its lock is free here, and it is not called dead


def test_what_squeue_prints_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f"{RUN_ID}|PENDING|Resources",
        "../../etc|RUNNING|None",
        f"{RUN_ID}|\x1b[2J|x",
        "x" * 100_000,
        "20261122-093015-418-k3f9qz|NODE_FAIL|\x1b[31mNone|x",
        "",
    ]
    monkeypatch.setattr(slurm, "_answer", lambda *_: "\n".join(lines))
    monkeypatch.setattr(slurm, "_asked", {"until": -1.0, "sights": None})
    assert slurm.sight(RUN_ID) == Sight("waiting", "Resources")
    assert slurm.sight("20261122-093015-418-k3f9qz") == Sight("silent", "NODE_FAIL")
    assert slurm.sight("20261122-093015-419-k3f9qz") == Sight("absent")
