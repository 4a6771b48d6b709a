"""Runs whose programs work in a box."""

from typing import Any

from tests.helpers.turns import Turn, says, shell, tool_results
from tests.helpers.world import World


def boxed(world: World, *steps: str | Turn, **keys: Any) -> list[str]:
    """Let a run in a box do these commands, each in a call of its own; return their results."""
    world.agent(**{"sandbox": "bwrap", "tools": "Bash", **keys})
    turns = [shell(step) if isinstance(step, str) else step for step in steps]
    simulator = world.play(*turns, says("Done."))
    run_id = world.start()
    assert world.completed_and_gone(run_id) == "Done."
    (started,) = world.events(run_id, "run_started")
    assert started["sandbox"].startswith("bwrap (")
    return [tool_results(request.body)[0] for request in simulator.requests[1:]]
