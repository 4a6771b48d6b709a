"""Stopping a run that is just ending: one end, and a result that was there is kept."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.verbs.examine import examine
from tests.helpers.processes import Child
from tests.helpers.runs import ASKED, STARTED, start_run
from tests.helpers.scale import times
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

pytestmark = pytest.mark.race

RACES = times(60, 200)
PRELUDE = """
    import sys
    from pathlib import Path
    from subagent_server.run import transitions
    from subagent_server.run.records import RunResult
    from subagent_server.run.states import Status
    from subagent_server.run.processes import now
    from subagent_server.run.store import RunStore
    store = RunStore(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
"""
FINISHER = (
    PRELUDE
    + """
        result = RunResult(outcome=Status.COMPLETED, text="Done.")
        print(store.update(line.strip(), transitions.Finished(), now(), result=result).status, flush=True)
"""
)
STOPPER = (
    PRELUDE
    + """
        ended = store.update(line.strip(), transitions.StopRequested(reason="enough"), now())
        print(ended.status, flush=True)
"""
)


def result_files(store: RunStore, run_id: str) -> Iterator[Path]:
    """Yield the files of a result, finished or not."""
    return store.paths.run(run_id).directory.glob("*result.json*")


def test_of_a_stop_that_races_with_the_end_of_a_run_both_sides_read_the_same_one_end(store: RunStore) -> None:
    ends: Counter[Status] = Counter()
    with Child(FINISHER, store.paths.root) as finisher, Child(STOPPER, store.paths.root) as stopper:
        assert [finisher.hear(), stopper.hear()] == ["ready", "ready"]
        for number in range(RACES):
            run_id = f"run-{number:03d}"
            start_run(store, run_id, STARTED, ASKED)
            first, second = (finisher, stopper) if number % 2 else (stopper, finisher)
            first.tell(run_id)
            if number % 4 == 1:  # it makes the result durable before it asks for the lock: a head start
                wait_for(lambda: list(result_files(store, run_id)), BOUND, "a result")  # noqa: B023
            second.tell(run_id)
            told = {finisher.hear(), stopper.hear()}
            meta, result = store.read(run_id), store.read_result(run_id)
            assert told == {meta.status.value}
            assert sum(step.to_status.is_terminal for step in meta.transitions) == 1
            assert (result is not None) == (meta.status is Status.COMPLETED)
            ends[meta.status] += 1
    assert set(ends) == {Status.COMPLETED, Status.STOPPED}, "both have won now and then"


def test_whole_runs_that_are_stopped_while_they_end_have_one_end_and_nothing_is_left(world: World) -> None:
    world.agent()
    simulator = world.play(says("Done.", latency=0.05))
    run_ids = [world.start() for _ in range(4)]
    with ExitStack() as stack:
        racers = [stack.enter_context(Child(STOPPER, world.runs)) for _ in run_ids]
        for racer in racers:
            assert racer.hear() == "ready"
        simulator.wait_for_requests(1, 60)
        for run_id, racer in zip(run_ids, racers, strict=True):
            racer.tell(run_id)
        told = [racer.hear() for racer in racers]
    wait_for(lambda: all(world.look(r).live is False for r in run_ids), 60, "the end of all")
    assert [world.meta(run_id).status.value for run_id in run_ids] == told
    for run_id in run_ids:
        assert not list(examine(world.store, run_id, {}))
