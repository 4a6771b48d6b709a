"""Pids come again, machines are restarted, and runs live elsewhere: nobody is taken for somebody else."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from subagent_server.process.worker_process import WORKER
from subagent_server.run import locks, processes, transitions
from subagent_server.run.paths import RunPaths
from subagent_server.run.processes import Identity, now
from subagent_server.run.records import LaunchInfo, WorkerIdentity
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.verbs.examine import examine
from subagent_server.verbs.reconcile import observe, stop_run
from subagent_server.verbs.views import AS_TOOLS, run_view
from tests.helpers.processes import Child
from tests.helpers.runs import RUN_ID, STARTED, T0, make_meta, make_request
from tests.helpers.wait import wait_for

ASLEEP = """
    import sys
    print("asleep", flush=True)
    sys.stdin.readline()
"""


SHOWN_AS = """
    import json, sys
    from subagent_server.process.zygote_server import Title
    Title().show(json.loads(sys.argv[1]))
    print("asleep", flush=True)
    sys.stdin.readline()
"""
"""A process that shows another command line than its own, for which it has room in its last argument."""
ROOM = "-" * 4000


def shown_as_worker(directory: Path) -> Child:
    """Start a process that carries the mark of the worker of a run."""
    return Child(SHOWN_AS, json.dumps([*WORKER, str(directory), "3,4"]), ROOM)


@pytest.fixture
def bystander() -> Iterator[Child]:
    """A process that has nothing to do with any run."""
    with Child(ASLEEP) as child:
        assert child.hear() == "asleep"
        yield child


def begun(store: RunStore, recorded: Identity, host: str | None = None, **record: Any) -> RunPaths:
    """Make a run that works as far as its files tell, kept by `recorded`, whose lock nobody holds.

    `record` is what else `shim.json` says.
    """
    launch = LaunchInfo(host=host or processes.host_name(), boot_id=recorded.boot_id)
    store.create(make_request())
    store.publish(make_meta(launch=launch))
    worker = WorkerIdentity.model_validate(recorded.to_json())
    store.update(RUN_ID, replace(STARTED, worker=worker), now())
    run = store.paths.run(RUN_ID)
    named = {"shim": recorded.to_json(), "worker": recorded.to_json()}
    record = {"directory": run.directory.stat().st_ino, **named, **record}
    run.shim.path.write_text(json.dumps(record), encoding="utf-8")
    run.live_lock.touch()
    return run


@pytest.mark.parametrize(
    "wrong", [{"start_time": 1}, {"boot_id": "another-boot"}], ids=["pid-came-again", "machine-was-restarted"]
)
def test_a_process_with_the_pid_of_a_dead_worker_is_left_alone_and_the_run_is_lost(
    store: RunStore, bystander: Child, wrong: dict[str, object]
) -> None:
    begun(store, replace(bystander.identity, **wrong))  # type: ignore[arg-type]
    observed = observe(store, RUN_ID)
    assert (observed.meta.status, observed.live) == (Status.FAILED, False)
    assert observed.meta.error is not None and observed.meta.error.code == "lost"
    assert processes.is_alive(bystander.identity)
    assert not list(examine(store, [RUN_ID], {}))


def test_a_process_with_the_pid_of_a_dead_shim_gets_no_signal(store: RunStore, bystander: Child) -> None:
    run = begun(store, replace(bystander.identity, start_time=1))
    held = locks.take(run.live_lock)
    assert held is not None
    stop_run(store, RUN_ID, "enough")
    assert observe(store, RUN_ID).live is True
    os.close(held)
    assert processes.is_alive(bystander.identity)


def test_a_worker_whose_shim_is_dead_is_ended_by_the_next_reader(store: RunStore) -> None:
    with shown_as_worker(store.paths.run(RUN_ID).directory) as worker:
        assert worker.hear() == "asleep"
        begun(store, worker.identity)
        observed = observe(store, RUN_ID)
        assert (observed.meta.status, observed.live) == (Status.FAILED, False)
        assert worker.wait() == -9


@pytest.mark.parametrize("record", [{}, {"directory": None}, {"worker": None}], ids=str)
def test_a_process_without_the_mark_of_the_run_is_not_ended_whatever_the_record_says(
    store: RunStore, bystander: Child, record: dict[str, Any]
) -> None:
    run = begun(store, bystander.identity, **record)
    assert observe(store, RUN_ID).meta.status is Status.FAILED
    held = locks.take(run.live_lock)
    assert held is not None
    run.exit.unlink()  # as if its shim were still there
    stop_run(store, RUN_ID, "enough")
    assert observe(store, RUN_ID).live is True
    os.close(held)
    bystander.tell()
    assert bystander.wait() == 0, "no signal has reached it"


@pytest.mark.parametrize(
    ("of", "record"),
    [("another-run", {}), (RUN_ID, {"directory": 1}), (RUN_ID, {"device": 1})],
    ids=["of-another-run", "of-a-copy", "of-a-snapshot"],
)
def test_a_process_with_the_mark_of_a_run_is_not_ended_for_another_directory(
    store: RunStore, of: str, record: dict[str, Any]
) -> None:
    with shown_as_worker(store.paths.run(of).directory) as worker:
        assert worker.hear() == "asleep"
        begun(store, worker.identity, **record)
        assert observe(store, RUN_ID).meta.status is Status.FAILED
        worker.tell()
        assert worker.wait() == 0, "no signal has reached it"


@pytest.mark.parametrize(
    "record",
    [b"[", b"[]", b'{"shim": 1, "worker": {"pid": 1e999}}', b"[" * 100_000, b"{}" + b" " * (1 << 20)],
    ids=["torn", "list", "endless-pid", "deep", "long"],
)
def test_a_record_that_no_shim_has_written_names_nobody(store: RunStore, record: bytes) -> None:
    run = begun(store, processes.this_process())
    run.shim.path.write_bytes(record)
    assert observe(store, RUN_ID).meta.status is Status.FAILED


def test_a_run_of_another_host_is_unknown_and_never_declared_dead(store: RunStore, bystander: Child) -> None:
    elsewhere = replace(bystander.identity, host="elsewhere")
    run = begun(store, elsewhere, host="elsewhere")
    before = run.meta.path.read_bytes()
    for _ in range(3):
        observed = observe(store, RUN_ID)
        assert (observed.meta.status, observed.live) == (Status.RUNNING, None)
    assert run.meta.path.read_bytes() == before
    assert not run.exit.exists()
    assert not list(examine(store, [RUN_ID], {}))
    stop_run(store, RUN_ID, "enough")
    assert store.read(RUN_ID).status is Status.STOPPED
    assert observe(store, RUN_ID).live is None
    assert processes.is_alive(bystander.identity)


# -- clocks that jump

SHIM = """
    import fcntl, signal, sys
    from subagent_server.process.zygote_server import Title
    lock = open(sys.argv[1], "r+b")
    Title().show(["python", "-I", "-S", "process/shim.py", sys.argv[2], "3", "4"])
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("keeps", flush=True)
    signal.sigwait({signal.SIGTERM})
    print("told to end", flush=True)
"""


@pytest.mark.parametrize("jump", [timedelta(days=1), timedelta(minutes=-1)], ids=["back", "on"])
def test_a_process_that_outlives_its_run_is_signalled_again_whichever_way_the_clock_has_jumped(
    store: RunStore, jump: timedelta
) -> None:
    lock = store.paths.root / RUN_ID / "live.lock"
    store.create(make_request())
    lock.touch()
    directory = store.paths.run(RUN_ID).directory
    with Child(SHIM, lock, directory) as shim:
        assert shim.hear() == "keeps"
        store.publish(make_meta(launch=LaunchInfo(host=processes.host_name(), boot_id=processes.boot_id())))
        facts = {"shim": shim.identity.to_json(), "directory": directory.stat().st_ino}
        store.paths.run(RUN_ID).shim.path.write_text(json.dumps(facts), encoding="utf-8")
        store.update(RUN_ID, STARTED, now())
        stopped_at = now() + jump  # whoever stopped it died before it told the shim; then the clock jumped
        store.update(RUN_ID, transitions.StopRequested(), stopped_at)
        assert observe(store, RUN_ID).live is True
        assert shim.hear() == "told to end"
        assert shim.wait() == 0
    wait_for(lambda: observe(store, RUN_ID).live is False, 60, "the end of the run")


def test_steps_whose_times_run_backwards_are_nothing_wrong(store: RunStore) -> None:
    store.create(make_request())
    store.publish(make_meta())
    store.update(RUN_ID, STARTED, now())
    store.update(RUN_ID, transitions.ProgressReported(summary="half"), now() - timedelta(days=400))
    store.update(RUN_ID, transitions.StopRequested(), now() + timedelta(days=400))
    assert observe(store, RUN_ID).live is False
    assert not list(examine(store, [RUN_ID], {}))


def test_a_run_that_ended_before_it_began_took_no_time(store: RunStore) -> None:
    store.create(make_request())
    store.publish(make_meta())
    store.update(RUN_ID, transitions.StopRequested(), T0 - timedelta(days=400))
    assert run_view(store, observe(store, RUN_ID), AS_TOOLS).elapsed_seconds == 0
