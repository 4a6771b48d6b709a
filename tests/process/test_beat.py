"""The heartbeat of a run on a node, and its fence: whoever cannot be heard does not work."""

import os
import signal
import time
from pathlib import Path

import pytest

from subagent_server.process.beat import Heart
from subagent_server.run import processes
from subagent_server.run.paths import run_at
from subagent_server.run.records import LaunchInfo
from subagent_server.run.states import make_run_id
from subagent_server.run.store import RunStore
from tests.helpers.processes import Child
from tests.helpers.runs import make_meta, make_request
from tests.helpers.wait import wait_for

LEASE = 2.0
BOUND = 120.0
SHIM = """
    import os, subprocess, sys
    os.environ["SUBAGENT_NODE"] = "n1"  # not of the test's process, which keeps the name of its host for ever
    from pathlib import Path
    from subagent_server.process.beat import Heart
    from subagent_server.run import processes
    from subagent_server.run.paths import run_at

    processes.adopt_orphans()
    heart = Heart(run_at(Path(sys.argv[1])))
    mark = {**os.environ, "SUBAGENT_RUN_ID": Path(sys.argv[1]).name}
    worker = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], env=mark, start_new_session=True)
    print(heart.watcher, worker.pid, flush=True)
    worker.wait()
    print("fenced" if heart.has_stopped else "not fenced", flush=True)
    print(subprocess.call(["sleep", "0.3"]), flush=True)
"""


def below(pid: int) -> list[int]:
    return [each.pid for each in processes.descendants([pid])]


def beating(child: Child, directory: Path) -> tuple[int, int, int]:
    """Return watcher, writer and worker of a shim that beats."""
    watcher, worker = map(int, child.hear().split())
    wait_for(lambda: below(watcher), BOUND, "the writer")
    run = run_at(directory)
    first = run.beat.read(99)  # that of the shim; a writer that was just forked is not set up yet
    wait_for(lambda: run.beat.read(99) != first, BOUND, "a beat of the writer")
    return watcher, below(watcher)[0], worker


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = RunStore(tmp_path / "runs")
    run_id = make_run_id(processes.now(), os.urandom(6))  # tests beside this one end what has the usual id
    store.create(make_request(run_id))
    store.publish(make_meta(run_id, launch=LaunchInfo(kind="slurm", host="slurm", boot_id="-", lease=LEASE)))
    return store.paths.run(run_id).directory


def test_without_a_state_that_can_be_read_there_is_no_heartbeat(directory: Path) -> None:
    run = run_at(directory)
    Path(run.meta.path).write_text('{"launch": {"kind"', encoding="utf-8")
    with pytest.raises(OSError, match="it names no lease"):
        Heart(run)
    run.meta.unlink()
    with pytest.raises(OSError, match=r"run\.meta\.json"):
        Heart(run)


def suspend_too_long(watcher: int, writer: int, directory: Path) -> None:
    """Stop both for more than a lease; the writer is the first that continues."""
    for pid in (watcher, writer):
        os.kill(pid, signal.SIGSTOP)
    beat, over = run_at(directory).beat, time.monotonic() + 1.5 * LEASE
    wait_for(lambda: time.monotonic() > over, BOUND, "more than a lease")
    last = beat.read(99)
    os.kill(writer, signal.SIGCONT)
    wait_for(lambda: beat.read(99) != last, BOUND, "the next beat")
    os.kill(watcher, signal.SIGCONT)


FAULTS = ["the writer hangs", "the writer dies", "the watcher dies", "both are suspended"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_heard_for_a_lease_is_ended(directory: Path, fault: str) -> None:
    with Child(SHIM, directory) as shim:
        watcher, writer, worker = beating(shim, directory)
        assert processes.identify(worker) is not None
        if fault == "the writer hangs":  # as on a file server that is away
            os.kill(writer, signal.SIGSTOP)
        elif fault == "both are suspended":
            suspend_too_long(watcher, writer, directory)
        else:
            os.kill(writer if fault == "the writer dies" else watcher, signal.SIGKILL)
        if fault == "the watcher dies":  # the shim ends its worker itself then
            wait_for(lambda: watcher not in below(shim.pid), BOUND, "its death")
            for pid in (worker, *wait_for(lambda: below(worker), BOUND, "its program")):
                os.kill(pid, signal.SIGKILL)
        assert (shim.hear(), shim.hear()) == ("fenced", "0")


def test_a_worker_does_not_outlive_its_killed_shim(directory: Path) -> None:
    with Child(SHIM, directory) as shim:
        watcher, writer, worker = beating(shim, directory)
        left = [processes.identify(pid) for pid in (watcher, writer, worker, *below(worker))]
        shim.kill()
        wait_for(lambda: not any(each and processes.is_alive(each) for each in left), BOUND, "their end")
