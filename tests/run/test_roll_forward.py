"""A result that the state lacks, as a crash between the two leaves it, comes before any event."""

import gzip
import os
import select
from typing import Any

import pytest

from subagent_server.run import transitions, wake
from subagent_server.run.errors import IllegalTransition
from subagent_server.run.records import Failure, RunMeta, RunResult, Usage
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import RunEvent
from tests.helpers.runs import ASKED, LATER, RUN_ID, STARTED, start_run

FAILURE = Failure(code="max_turns", message="It ran out of turns.", hint="Raise maxTurns.")
RESULTS = {
    "completed": RunResult(outcome=Status.COMPLETED, text="All done.", summary="done"),
    "failed": RunResult(outcome=Status.FAILED, text="half", error=FAILURE),
    "stopped": RunResult(outcome=Status.STOPPED, text="half"),
}
ENDS: list[RunEvent] = [
    transitions.Finished(summary="other"),
    transitions.RunFailed(failure=Failure(code="crashed", message="The worker was killed.")),
    transitions.StopRequested(reason="enough"),
]


def interrupted(store: RunStore, outcome: str, *happened: RunEvent, payload: bytes | None = None) -> None:
    """Leave a run as a worker does that is killed between its result and its state."""
    start_run(store, RUN_ID, *(happened or (STARTED, ASKED)))
    run = store.paths.run(RUN_ID)
    if payload is not None:
        run.payload.path.write_bytes(gzip.compress(payload))
    run.result.path.write_bytes(RESULTS[outcome].to_json())


def check_ended_as(meta: RunMeta, outcome: str) -> None:
    """Assert that the run has ended as its result says, by one step, with nothing left open."""
    assert meta.status == outcome
    assert meta.error == (FAILURE if outcome == "failed" else None)
    assert [step.to_status.is_terminal for step in meta.transitions].count(True) == 1
    assert meta.pending_questions == 0
    assert {m.message_status.value for m in meta.messages} == {"cancelled"}
    assert meta.revision == len(meta.transitions)


@pytest.mark.parametrize("outcome", RESULTS)
def test_a_result_that_the_state_lacks_is_applied_by_its_finder(store: RunStore, outcome: str) -> None:
    interrupted(store, outcome)
    check_ended_as(store.roll_forward(RUN_ID, LATER), outcome)
    check_ended_as(store.read(RUN_ID), outcome)
    assert store.read_result(RUN_ID) == RESULTS[outcome]


@pytest.mark.parametrize("end", ENDS, ids=lambda event: event.event.value)
@pytest.mark.parametrize("outcome", RESULTS)
def test_a_paid_result_goes_before_any_other_end(store: RunStore, outcome: str, end: RunEvent) -> None:
    interrupted(store, outcome)
    late = RunResult(outcome=Status.FAILED, text="another", error=FAILURE)
    check_ended_as(store.update(RUN_ID, end, LATER, result=late), outcome)
    assert store.read_result(RUN_ID) == RESULTS[outcome]
    assert store.read(RUN_ID).summary == RESULTS[outcome].summary


@pytest.mark.parametrize(
    ("facts", "summary"),
    [
        ({"text": "All done.\r\nIn detail."}, "All done."),
        ({"output": {"summary": "Two."}}, "Two."),
        ({"output": [1]}, "[1]"),
        ({}, "half way"),
    ],
)
def test_a_result_that_is_applied_late_gives_the_summary_that_its_worker_would(
    store: RunStore, facts: dict[str, Any], summary: str
) -> None:
    interrupted(store, "completed", STARTED, transitions.ProgressReported(summary="half way"))
    result = RunResult(outcome=Status.COMPLETED, **facts)
    store.paths.run(RUN_ID).result.path.write_bytes(result.to_json())
    assert store.roll_forward(RUN_ID, LATER).summary == summary


def test_a_payload_beside_the_result_is_named_too(store: RunStore) -> None:
    interrupted(store, "completed", STARTED, ASKED, payload=b"x" * 300)
    meta = store.roll_forward(RUN_ID, LATER)
    assert meta.payload is not None
    assert meta.payload.size == 300


def test_a_change_touches_the_mark_that_watchers_look_at(store: RunStore) -> None:
    start_run(store)
    mark = store.paths.change_mark(RUN_ID)
    os.utime(mark.path, (0, 0))  # the clock of files goes in steps
    store.update(RUN_ID, STARTED, LATER)
    changed = mark.stat().st_mtime_ns
    assert changed
    with pytest.raises(IllegalTransition):
        store.update(RUN_ID, STARTED, LATER)
    assert mark.stat().st_mtime_ns == changed


def test_a_run_off_the_list_of_the_live_is_changed_without_coming_back_to_it(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    wake.retire(store.paths.run(RUN_ID))
    store.update(RUN_ID, transitions.StopRequested(), LATER)
    assert store.live_ids() == []


def is_woken(descriptor: int) -> bool:
    """Whether a sleeper is woken now; it sleeps again afterwards."""
    woken = bool(select.select([descriptor], [], [], 0)[0])
    wake.drain(descriptor)
    return woken


def test_each_change_wakes_every_sleeper_and_clears_those_that_are_gone_away(store: RunStore) -> None:
    interrupted(store, "completed", STARTED)
    run = store.paths.run(RUN_ID)
    os.close(wake.open_fifo(run.wake(2)))  # of a killed one
    sleeper = wake.open_fifo(run.wake(1))
    for change in (
        lambda: store.update(RUN_ID, transitions.StopRequested(), LATER),  # brings the result
        lambda: store.update(RUN_ID, transitions.UsageSettled(usage=Usage(turns=3)), LATER),
        lambda: wake.retire(run),
    ):
        assert not is_woken(sleeper)
        change()
        assert is_woken(sleeper)
        assert run.sleepers() == [run.wake(1)]
    os.close(sleeper)
