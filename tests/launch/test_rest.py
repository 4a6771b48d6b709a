"""A run that waits for long takes less memory than one that works, and nobody can tell otherwise."""

from pathlib import Path

from subagent_server.domain.states import Status
from subagent_server.host import processes
from tests.helpers.turns import asks, says, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.launch.warm_place import WarmPlace, only_root


def own_kib(identity: processes.Identity) -> int:
    """Return how much memory a process has that is no file's, shared or not."""
    text = Path(f"/proc/{identity.pid}/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))


@only_root
def test_a_run_that_waits_for_long_gives_memory_back_and_goes_on_as_if_it_had_not(
    world: World, place: WarmPlace
) -> None:
    world.agent()
    simulator = world.play(asks("One?"), asks("Two?"), says("Done."))
    place.start()
    run_id, was_forked = place.started()
    assert was_forked
    both = [world.keeper(run_id), world.worker(run_id)]
    before = sum(map(own_kib, both))
    wait_for(lambda: sum(map(own_kib, both)) < 0.7 * before, BOUND, "memory given back")
    world.reply(run_id, "first")
    simulator.wait_for_requests(2, BOUND)
    world.asking(run_id)
    world.reply(run_id, "second")
    meta = world.ended(run_id)
    assert meta.status is Status.COMPLETED
    answers = [tool_results(request.body)[0] for request in simulator.requests[1:]]
    assert answers == ["first", "second"]
