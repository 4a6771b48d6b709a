"""The verdict on a run of another host: files, heartbeat, engine, lease, in this order; and what follows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from subagent_server.process import slurm
from subagent_server.process.launcher import Sight
from subagent_server.run import locks, processes
from subagent_server.run.errors import UnreadableMeta
from subagent_server.run.files import Entry, held_open
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import LaunchInfo, RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import StopRequested
from subagent_server.verbs.examine import examine
from subagent_server.verbs.reconcile import BEGIN_SECONDS, Observed, observe
from subagent_server.verbs.remove import StillNeeded, remove
from subagent_server.worker.supervisor import ParentWatch
from tests.helpers.files import names
from tests.helpers.runs import RUN_ID, STARTED, T0, make_meta, make_request, start_run

LEASE = 60.0
NOW = 1_800_000_000.0
OLD = BEGIN_SECONDS + 1
NO_NODE = Sight("gone", "Slurm says NODE_FAIL")
NO_JOB = Sight("gone", "Slurm says nothing of it")
ENDED = Sight("ended", "Slurm says FAILED")
NO_ANSWER = Sight("silent", "Slurm does not answer")
WAITS = Sight("waiting", "waits in Slurm (Priority)")


def beat(run: RunPaths, age: float) -> None:
    """Make the last beat of a run so old."""
    run.beat.touch()
    set_back(run.beat, age)


def set_back(file: Entry, seconds: float) -> None:
    """Make a file so old."""
    os.utime(file.path, (NOW - seconds, NOW - seconds))


def never_began(run: RunPaths, age: float) -> None:
    """Remove what a shim leaves, of a run that was published so long ago."""
    for file in (run.beat, run.shim, run.shim_claim):
        file.unlink()
    set_back(run.meta, age)


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass on the file server: on a busy machine an age would be a second more, or less."""
    monkeypatch.setattr("subagent_server.process.beat._clock", lambda: 0.0)
    monkeypatch.setattr("subagent_server.process.beat._probed", {tmp_path.stat().st_dev: (0.0, NOW)})


def at_work(store: RunStore, kind: str) -> RunPaths:
    """Return a run that works on n2."""
    launch = LaunchInfo(kind=kind, host=kind, boot_id="boot", lease=LEASE)
    start_run(store, RUN_ID, STARTED, launch=launch)
    paths = store.paths.run(RUN_ID)
    paths.shim_claim.touch()
    process = {"host": "n2", "pid": os.getpid(), "startTime": 1, "bootId": "boot"}
    record = {"shim": process, "worker": process, "directory": os.fstat(paths.files.descriptor).st_ino}
    paths.shim.path.write_text(json.dumps(record), encoding="utf-8")
    beat(paths, 0)
    return paths


class Job:
    """A run that works on n2 by a job, and what Slurm answers about it."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch, kind: str = "slurm") -> None:
        self.store, self.run = store, at_work(store, kind)
        self._patch = monkeypatch

    def slurm_answers(self, sight: Sight) -> None:
        """Let Slurm answer this."""
        self._patch.setattr(slurm, "sight", lambda _: sight)

    def seen(self) -> Observed:
        """Return the run as the next reader sees it."""
        return observe(self.store, RUN_ID)


@pytest.fixture
def job(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of the root."""
    return Job(store, monkeypatch)


@pytest.mark.parametrize(
    ("age", "sight", "live", "reason"),
    [
        pytest.param(14, ENDED, True, None, id="a fresh beat outweighs the engine"),
        pytest.param(41, NO_NODE, None, "41 s ago; Slurm says NODE_FAIL", id="NODE_FAIL is no proof"),
        pytest.param(41, NO_JOB, None, "41 s ago; Slurm says nothing of it", id="an unknown job is no proof"),
        pytest.param(119, NO_ANSWER, None, "119 s ago; Slurm does not answer", id="no answer is no proof"),
        pytest.param(-86_400, NO_ANSWER, None, "at a time to come; Slurm does not answer", id="nor tomorrow"),
        pytest.param(20, ENDED, False, None, id="a script that ended on a living node is one"),
        pytest.param(121, NO_NODE, False, None, id="two leases are one"),
        pytest.param(121, WAITS, True, WAITS.words, id="a suspended job acts again"),
    ],
)  # fmt: skip
def test_what_is_believed_of_a_run_that_was_heard(
    job: Job, age: float, sight: Sight, live: bool | None, reason: str | None
) -> None:
    job.slurm_answers(sight)
    beat(job.run, age)
    before = job.run.meta.path.read_bytes()
    seen = job.seen()
    assert seen.live is live and (seen.reason or "").endswith(reason or "")
    assert (live is False) == seen.meta.status.is_terminal == (job.run.meta.path.read_bytes() != before)
    assert seen.node == "n2" and job.run.exit.exists() == seen.meta.status.is_terminal


@pytest.mark.parametrize(
    ("age", "sight", "live", "reason"),
    [
        pytest.param(9_999, WAITS, True, WAITS.words, id="a job that waits lives"),
        pytest.param(9_999, Sight("working"), True, "is being started", id="a job that just begins lives"),
        pytest.param(1, NO_JOB, None, "of it; Slurm says nothing of it", id="no job is no proof"),
        pytest.param(OLD, NO_JOB, False, None, id="after two minutes it is one"),
        pytest.param(1, ENDED, False, None, id="a job without its interpreter never begins"),
        pytest.param(1, NO_NODE, None, "Slurm says NODE_FAIL", id="a job of a dying node may still begin"),
        pytest.param(OLD, NO_NODE, False, None, id="or never begins"),
        pytest.param(9_999, NO_ANSWER, None, "Slurm does not answer", id="without an answer nobody knows"),
        pytest.param(1, None, None, "there was no sign of it", id="without an engine it begins soon"),
        pytest.param(OLD, None, False, None, id="or never, without an engine"),
    ],
)  # fmt: skip
def test_what_is_believed_of_a_run_that_was_never_heard(
    store: RunStore,
    monkeypatch: pytest.MonkeyPatch,
    age: float,
    sight: Sight | None,
    live: bool | None,
    reason: str | None,
) -> None:
    job = Job(store, monkeypatch, "slurm" if sight else "ssh")
    job.slurm_answers(sight or NO_JOB)
    never_began(job.run, age)
    seen = job.seen()
    assert seen.live is live and (seen.reason or "").endswith(reason or "")
    assert (live is False) == seen.meta.status.is_terminal


def test_a_starter_at_work_may_still_submit(job: Job) -> None:
    job.slurm_answers(NO_JOB)
    never_began(job.run, 9_999)
    with held_open(locks.open_lock(job.run.live_lock)) as lock:
        locks.lock(lock)
        seen = job.seen()
    assert (seen.live, seen.reason) == (True, "is being started")


# -- what follows for the files of a run; the ages of its beat are made


def test_after_two_leases_a_run_is_lost_and_over(job: Job) -> None:
    job.slurm_answers(NO_NODE)
    beat(job.run, 2 * LEASE + 1)
    for writer in ("n2.13471", f"n9.{os.getpid()}"):  # its shim, killed amid a write, and a reader at work
        (job.run.directory / f".exit.json.{writer}.0fe17585.tmp").touch()
    seen = job.seen()
    assert seen.live is False and seen.meta.error is not None
    assert seen.meta.error.code == "lost" and "n2 was last heard 121 s ago" in seen.meta.error.message
    assert json.loads(job.run.exit.path.read_bytes())["treeGone"] is True
    left = names(job.run.directory)
    assert "beat" not in left and [each for each in left if each.endswith(".tmp")] == [
        f".exit.json.n9.{os.getpid()}.0fe17585.tmp"
    ]


def test_the_doctor_does_not_judge_a_lock_that_another_host_holds(job: Job) -> None:
    """The shim records that the tree is gone, then lets go: it cannot be seen from here."""
    job.slurm_answers(NO_NODE)
    beat(job.run, 2 * LEASE + 1)
    lock = locks.take(job.run.live_lock)
    assert lock is not None
    found = [each.what for each in examine(job.store, [RUN_ID], {})]
    os.close(lock)
    assert not [each for each in found if "live.lock" in each], found


def test_a_result_of_a_silent_node_counts(job: Job) -> None:
    job.slurm_answers(NO_ANSWER)
    beat(job.run, 2 * LEASE + 1)
    done = RunResult(outcome=Status.COMPLETED, text="Done.", summary="Done.")
    job.run.result.path.write_bytes(done.to_json())
    assert job.seen().meta.status is Status.COMPLETED


def test_an_ended_tree_on_a_living_node_is_not_called_gone(job: Job) -> None:
    """The lock is free here, and no process of the run can be seen: both say nothing of n2."""
    job.slurm_answers(Sight("working"))
    job.run.exit.path.write_text(json.dumps({"workerStarted": True, "exitCode": 1}), encoding="utf-8")
    seen = job.seen()
    assert seen.meta.status is Status.FAILED and seen.live is True
    assert "treeGone" not in json.loads(job.run.exit.path.read_bytes())


def test_a_run_that_never_began_says_what_its_node_printed(job: Job) -> None:
    job.slurm_answers(ENDED)
    never_began(job.run, 0)
    job.run.worker_out.path.write_text("slurm_script: 6\nexec: /opt/python: not found\n", encoding="utf-8")
    error = job.seen().meta.error
    assert error is not None and error.code == "launch_failed"
    assert error.message.endswith("Slurm says FAILED. It printed: exec: /opt/python: not found")


def test_nothing_lives_of_a_run_that_ended_before_a_shim_claimed_it(job: Job) -> None:
    job.slurm_answers(WAITS)
    never_began(job.run, 0)
    assert job.seen().live is True
    job.store.update(RUN_ID, StopRequested(), T0)
    assert job.seen().live is False  # and the run that continues it need not wait
    assert json.loads(job.run.exit.path.read_bytes())["treeGone"] is True


def test_a_child_does_not_take_the_free_lock_of_a_parent_elsewhere_for_its_death(job: Job) -> None:
    child = "20261122-093015-418-k3f9qz"
    job.store.create(make_request(child, parent_run_id=RUN_ID, depth=1, root_run_id=RUN_ID))
    job.store.publish(make_meta(child, parent_run_id=RUN_ID, depth=1, root_run_id=RUN_ID))
    watch = ParentWatch(job.store, child)
    assert watch.is_dead  # has to be looked at, by every door that reads a run
    watch.reconcile()
    assert job.store.read(RUN_ID).status is Status.RUNNING
    assert not watch.is_dead


HOSTILE: list[Any] = [{"host": 7}, {"host": "\x1b[2Jn\n" * 999}, [], "n2", None]


@pytest.mark.parametrize("shim", HOSTILE, ids=range(len(HOSTILE)))
def test_the_name_of_a_node_is_data(job: Job, shim: Any) -> None:
    job.slurm_answers(NO_ANSWER)
    beat(job.run, 41)
    job.run.shim.path.write_text(json.dumps({"shim": shim}), encoding="utf-8")
    seen = job.seen()
    assert seen.live is None and seen.reason is not None and len(seen.reason) < 600
    assert "\x1b" not in seen.reason and "\n" not in seen.reason


def test_a_stopped_run_of_a_silent_node_stays_and_says_how_long(job: Job) -> None:
    job.slurm_answers(NO_NODE)
    beat(job.run, 41)
    job.store.update(RUN_ID, StopRequested(reason="enough"), T0)
    with pytest.raises(StillNeeded, match=r"last heard 41 s ago; Slurm says NODE_FAIL. Within 120 s") as kept:
        remove(job.store, RUN_ID)
    assert "--host-gone" not in kept.value.sentence, "which is refused: it has a heartbeat"


def test_a_look_wakes_nobody_who_waits_for_changes(job: Job) -> None:
    job.seen()
    mark = job.run.root.change_mark(RUN_ID)
    set_back(mark, 100)
    before = mark.stat().st_mtime
    assert job.seen().live is True and mark.stat().st_mtime == before


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_beat_that_is_no_file_is_no_beat(job: Job, kind: str) -> None:
    job.slurm_answers(NO_NODE)
    job.run.beat.unlink()
    made = {"fifo": os.mkfifo, "link": lambda path: path.symlink_to("/dev/zero"), "directory": os.mkdir}
    made[kind](job.run.beat.path)
    with pytest.raises(UnreadableMeta, match="beat"):
        job.seen()


def test_a_namesake_of_this_host_is_another_host(job: Job) -> None:
    job.slurm_answers(NO_NODE)
    shim = {"host": processes.host_name(), "pid": os.getpid(), "startTime": 1, "bootId": "another"}
    job.run.shim.path.write_text(json.dumps({"shim": shim}), encoding="utf-8")
    beat(job.run, 41)
    assert job.seen().live is None  # its lock is free here, and it is not called dead


def test_what_squeue_prints_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f"{RUN_ID}|PENDING|Resources",
        "../../etc|RUNNING|None",
        f"20261122-093015-420-k3f9qz|\x1b[2J{'x' * 999}|x",
        "x" * 100_000,
        "20261122-093015-418-k3f9qz|NODE_FAIL|\x1b[31mNone|x",
        "",
    ]
    monkeypatch.setattr(slurm, "_answer", lambda *_: "\n".join(lines))
    monkeypatch.setattr(slurm, "_asked", {"until": -1.0, "sights": None})
    assert slurm.sight(RUN_ID) == Sight("waiting", "waits in Slurm (Resources)")
    assert slurm.sight("20261122-093015-418-k3f9qz") == NO_NODE
    hostile = slurm.sight("20261122-093015-420-k3f9qz")
    assert hostile.state == "gone" and hostile.words.isprintable() and len(hostile.words) < 99
    assert slurm.sight("20261122-093015-419-k3f9qz") == NO_JOB
