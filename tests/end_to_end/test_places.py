"""Where the runs of a tree work and what their editors write, as their models see it (SPEC section 13)."""

import json

from tests.end_to_end.test_child_programs import CLIENT, client
from tests.end_to_end.test_nesting import requests_of
from tests.helpers.forked import PROGRAM
from tests.helpers.turns import call, calls, says, shell, tool_results, use
from tests.helpers.world import World

EDITOR = "str_replace_based_edit_tool"


def test_by_every_door_a_tree_of_runs_stays_where_its_root_was_put(world: World) -> None:
    world.agent("boss", agents=["ed"])
    world.agent("ed", tools="Read, Write")
    (world.work / "client.py").write_text(CLIENT, encoding="utf-8")
    (world.work / "sub").mkdir()
    (world.home / "secret.txt").write_text("SECRET", encoding="utf-8")
    secret, run = str(world.home / "secret.txt"), f"{' '.join(PROGRAM)} run ed Go"
    boss = [
        calls(
            use("run_ed", prompt="Go.", cwd="/etc"),
            use("run_ed", prompt="Go.", cwd="~"),
            use("run_ed", prompt="Go.", inputs=[secret]),
        ),
        shell(f"{run} --input {secret}; (cd / && {run})"),
        shell(
            client(
                ("run_ed", {"prompt": "Go.", "cwd": ".."}),
                ("run_ed", {"prompt": "Go.", "inputs": [secret]}),
            )
        ),
        call("run_ed", prompt="Go.", cwd="sub", waitSeconds=60),
        says("Done."),
    ]
    writes = call(EDITOR, command="create", path="made.txt", file_text="made")
    simulator = world.play(writes, says("Made."), conversations=[{"when": {"prompt": "Lead"}, "turns": boss}])
    run_id = world.start("Lead.", agent="boss")
    assert world.completed(run_id) == "Done."
    loop, command, served = (tool_results(body) for body in requests_of(simulator, "Lead.")[1:4])
    assert len(loop) == 3 and all("leads outside" in sentence for sentence in loop)
    assert command[0].count("leads outside") == 2
    refusals = [json.loads(line)["refused"] for line in served[0].splitlines()[1:]]
    assert len(refusals) == 2 and all("leads outside" in sentence for sentence in refusals)
    (child,) = world.store.children_of(run_id)
    assert world.completed(child) == "Made." and (world.work / "sub/made.txt").exists()
    assert "SECRET" not in json.dumps([request.body for request in simulator.requests])
