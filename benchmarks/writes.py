"""What a change of a run's state costs, compared with the least that a durable write can cost.

`python -m benchmarks.writes`
"""

import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.table import Line, table
from subagent_server.run import durable, transitions
from subagent_server.run.files import Entry
from subagent_server.run.processes import now
from subagent_server.run.records import RunMeta, RunRequest, WorkerIdentity
from subagent_server.run.store import RunStore

TITLE = "Writing"
BASELINE = "pwrite of 4 KiB and fdatasync"
TIMES = 200
RUN_ID = "20261122-093015-417-k3f9qz"


def measure(scale: Scale) -> list[Line]:
    """Return the lines; the writes of all kinds take turns, so that they meet the same disk."""
    update: list[float] = []
    replace: list[float] = []
    append: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        store = _store(Path(name))
        run = store.paths.run(RUN_ID)
        descriptor = os.open(run.directory / "floor", os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, bytes(4096), 0)
        os.fsync(descriptor)
        state = run.meta.path.read_bytes()
        for number in range(scale.times(TIMES)):
            step = transitions.ProgressReported(summary=f"step {number}")
            floor.append(_timed(lambda: _overwrite(descriptor)))
            append.append(
                _timed(lambda: durable.append_line(run.events, {"type": "text", "text": "x" * 300}))
            )
            replace.append(_timed(lambda: durable.write_durably(Entry.at(run.directory / "file"), state)))
            update.append(_timed(lambda event=step: store.update(RUN_ID, event, now())))
        os.close(descriptor)
    return [
        Line("a change of state: lock, read, apply, replace durably, wake", update, BASELINE, floor),
        Line("replacing a file durably", replace, BASELINE, floor),
        Line("a line of the journal", append, BASELINE, floor),
    ]


def _store(place: Path) -> RunStore:
    store = RunStore(place / "runs")
    moment = now() - timedelta(seconds=1)
    request = RunRequest(
        run_id=RUN_ID, agent={"name": "worker"}, prompt="Go.", cwd="/", root_run_id=RUN_ID, created_at=moment
    )
    store.create(request)
    store.publish(RunMeta(run_id=RUN_ID, agent_name="worker", root_run_id=RUN_ID, created_at=moment))
    worker = WorkerIdentity(host="here", pid=1, start_time=1, boot_id="boot")
    store.update(RUN_ID, transitions.WorkerStarted(worker=worker), moment)
    return store


def _overwrite(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(4096), 0)
    os.fdatasync(descriptor)


def _timed(call: object) -> float:
    assert callable(call)
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    print(table(measure(Scale())))
