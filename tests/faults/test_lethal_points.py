"""Every point at which the program may die: the run comes to one end, and its files are in order."""

import os

import pytest

from subagent_server.run import locks, stderr
from subagent_server.run.states import Event, Status
from subagent_server.verbs.reconcile import tree_is_gone
from tests.helpers.scale import sampled
from tests.helpers.turns import call, says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.soak.field import lethal_points

NEVER_A_RUN = ["store.made", "starter.reserved"]
BEFORE_THE_WORKER = {
    "starter.published": "launch_failed",
    "shim.claimed": "launch_failed",
    "shim.recorded": "launch_failed",
    "shim.has_slots": "launch_failed",
    "shim.forked": "launch_failed",
    "shim.worker_recorded": "lost",
    "worker.started": "crashed",
    "worker.recorded": "crashed",
    "worker.remembered": "crashed",
    "worker.started,reconcile.judged": "crashed",
    "store.written": "crashed",
}
"""What a run fails with that is cut off there. After `store.written` it has begun, and that is all."""
AFTER_THE_WORK = [
    "starter.launched",
    "store.result_named",
    "worker.ended",
    "worker.leaving",
    "shim.reaped",
    "shim.exit_written",
    "shim.reconciled",
    "shim.swept",
    "shim.tree_gone",
]
"""Where a run that is cut off has completed."""
ELSEWHERE = [
    *("shim.waiting", "shim.waiting_for_run", "reconcile.swept", "zygote.asked", "zygote.forked"),
    *("worktree.added", "worktree.made", "worktree.committed", "worktree.moved"),
    *("worktree.removing", "worktree.dropped"),
    "export.written",
]
"""Points that one run alone does not come to: a queue, a run to continue, a reader, the zygote; the soaks do.
Those of worktrees: `tests/worktrees/`; that of an export: `tests/cli/test_export.py`."""


PLAIN = "shim.recorded"
"""Only a shim that has no worker yet records itself alone."""


def test_every_point_is_tried() -> None:
    alone = {point for points in BEFORE_THE_WORKER for point in points.split(",")}
    assert sorted({*NEVER_A_RUN, *alone, *AFTER_THE_WORK, *ELSEWHERE}) == lethal_points()


def started(world: World, points: str) -> list[str]:
    """Start a run of which somebody dies at `points`, and return the ids of the runs that there are then."""
    world.agent_saying(says("Done."))
    environment = {stderr.VARIABLE: points} | ({"SUBAGENT_WARM": "0"} if points == PLAIN else {})
    if points.startswith(("shim.", "worker.")):  # this process lives on
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(stderr.VARIABLE, points)
            patch.setattr(world, "environment", {**world.environment, **environment})
            world.start()
    else:
        world.cli("run", "worker", "Do it.", "--detach", env=environment)
    found = [run_id for run_id in world.store.run_ids() if world.paths(run_id).meta.exists()]
    for run_id in found:
        world.gone(run_id)
    return found


@pytest.mark.parametrize("point", NEVER_A_RUN)
def test_a_starter_that_dies_early_leaves_nothing_that_anybody_takes_for_a_run(
    world: World, point: str
) -> None:
    assert started(world, point) == []
    assert world.cli("ls", "-q").stdout == ""
    assert world.cli("doctor", "--runs").returncode == 0


@pytest.mark.parametrize("reader", [["ls"], ["prune"]], ids=lambda words: words[0])
def test_a_reader_removes_the_mark_of_a_start_that_was_killed_before_its_state(
    world: World, reader: list[str]
) -> None:
    assert started(world, "starter.reserved") == []
    (run_id,) = world.store.run_ids()
    mark = world.store.paths.change_mark(run_id)
    mark.touch()  # as a starter that was killed a moment later
    lock = locks.take(world.paths(run_id).live_lock)
    assert lock is not None
    world.cli(*reader)
    assert mark.exists(), "a start under way holds its lock"
    os.close(lock)
    world.cli(*reader)
    assert not mark.exists()


@pytest.mark.parametrize("warm", sampled(["1", "0"], 1))
def test_a_nested_run_whose_starter_dies_before_its_shim_ends_whole_without_a_reader(
    world: World, warm: str
) -> None:
    world.agent("boss", agents=["worker"])
    world.agent_saying(call("run_worker", prompt="Do it."))
    world.environment |= {stderr.VARIABLE: "starter.published", "SUBAGENT_WARM": warm}
    boss = world.start(agent="boss")
    wait_for(lambda: tree_is_gone(world.paths(boss)), BOUND, "the end of the first run")
    (child,) = world.store.children_of(boss)
    assert world.meta(child).status is Status.STOPPED
    assert tree_is_gone(world.paths(child)) and world.paths(child).journal_has_ended()
    assert child not in world.store.live_ids()


@pytest.mark.parametrize(("points", "code"), BEFORE_THE_WORKER.items())
def test_a_run_that_is_cut_off_before_its_work_fails_and_says_why(
    world: World, points: str, code: str
) -> None:
    (run_id,) = started(world, points)
    observed = world.look(run_id)
    assert observed.meta.error is not None
    assert (observed.meta.error.code, observed.live) == (code, False)
    starts = [step for step in observed.meta.transitions if step.event is Event.WORKER_STARTED]
    assert len(starts) == (1 if code == "crashed" else 0)


@pytest.mark.parametrize("point", AFTER_THE_WORK)
def test_a_run_whose_work_is_done_has_completed_whichever_process_dies_then(world: World, point: str) -> None:
    (run_id,) = started(world, point)
    observed = world.look(run_id)
    assert (observed.meta.status, observed.live) == ("completed", False)
    assert world.result(run_id).text == "Done."
