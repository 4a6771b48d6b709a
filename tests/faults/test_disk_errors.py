"""EIO, ENOSPC and short writes at every single write of a run's end: the old state or the new one, whole."""

import json
import re
from pathlib import Path

import pytest

from subagent_server.domain.records import RunMeta, RunResult
from subagent_server.domain.states import Status
from subagent_server.store.paths import RunPaths
from subagent_server.store.runs import RunStore
from tests.faults.system_calls import STRACE, Call, Fault, Program
from tests.helpers.files import names
from tests.helpers.runs import ASKED, LATER, RUN_ID, STARTED, start_run

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed: it is what spoils the calls")

END = Program("""
    import sys
    from pathlib import Path
    from subagent_server.domain import events
    from subagent_server.domain.errors import StorageFailed
    from subagent_server.domain.records import RunResult
    from subagent_server.domain.states import Status
    from subagent_server.store.runs import RunStore
    from tests.helpers.runs import LATER
    result = RunResult(outcome=Status.COMPLETED, text="All done.")
    try:
        RunStore(Path(sys.argv[1])).update(sys.argv[2], events.Finished(), LATER, result=result)
    except StorageFailed as error:
        print(error.sentence)
""")
KNOWN = {"request.json", "run.meta.json", "run.meta.lock", "result.json"}
ERRORS = ("error=EIO", "error=ENOSPC")
_FILE = re.compile(r"/\.?((?:run\.meta|result)\.(?:json|lock))|(run-[a-z]+)>\)?$")


def new_run(store: RunStore, run_id: str) -> RunPaths:
    """Make a run that asks."""
    start_run(store, run_id, STARTED, ASKED)
    return store.paths.run(run_id)


def faults_of(calls: list[Call]) -> list[Fault]:
    """Return every fault that there is for these calls."""
    short = [Fault("retval=7", call) for call in calls if call.name == "write"]
    return [*(Fault(error, call) for call in calls for error in ERRORS), *short]


def check_whole(run: RunPaths, fault: Fault, said: str) -> RunMeta:
    """Check that a fault has left one state or the other, whole, and one sentence where it was told at all."""
    meta = RunMeta.model_validate_json(run.meta.read_bytes())
    assert meta.status in (Status.WAITING, Status.COMPLETED), fault
    assert meta.revision == len(meta.transitions) == (2 if meta.status is Status.WAITING else 3)
    if run.result.exists():
        assert RunResult.model_validate_json(run.result.read_bytes()).text == "All done."
    assert set(names(run.directory)) <= KNOWN, fault
    assert said.count("\n") <= 1 and "Traceback" not in said
    if meta.status is Status.WAITING:
        assert "could not be written" in said and said.endswith("try again.\n"), (fault, said)
    elif said:
        assert "does not confirm that it will last" in said, (fault, said)
    return meta


def test_at_every_write_of_a_runs_end_the_state_is_the_old_or_the_new_one_and_a_reader_goes_on(
    store: RunStore,
) -> None:
    first = new_run(store, "run-first")
    faults = faults_of(list(END.calls(first.directory, store.paths.root, "run-first")))
    assert {fault.call.name for fault in faults} == {"openat", "write", "fsync", "rename"}
    assert len(faults) >= 2 * 10 + 2
    outcomes = set()
    for number, fault in enumerate(faults):
        run = new_run(store, f"run-{number:02d}")
        done = END.run_with(fault, store.paths.root, run.run_id)
        assert done.returncode == 0, (fault, done.stderr)
        meta = check_whole(run, fault, done.stdout)
        outcomes.add((meta.status, bool(done.stdout), run.result.exists()))
        again = store.roll_forward(run.run_id, LATER)
        assert again.status is (Status.COMPLETED if run.result.exists() else Status.WAITING)
    assert outcomes == {
        (Status.WAITING, True, False),  # nothing of the end is there
        (Status.WAITING, True, True),  # the result is; whoever looks next applies it
        (Status.COMPLETED, True, True),  # the disk did not say that it will last
        (Status.COMPLETED, False, True),  # a short write is gone on with
    }
