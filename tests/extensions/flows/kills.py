"""Kills of a fan-out at random moments: `python -m tests.extensions.flows.kills --kills 200 --calls 100`.

After each kill the flow is continued. At the end every result is as without kills, and no call whose run had
completed was made again. Run it in a namespace of its own: `make soak-flows`.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from subagent_server.process import marks
from subagent_server.run.errors import SubagentError
from subagent_server.run.processes import Identity
from subagent_server.run.records import RunMeta
from subagent_server.run.states import Status
from subagent_server.verbs.access import USER
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from tests.extensions.flows.place import asked, flow
from tests.helpers.raw_server import HELLO, READY, tool_call
from tests.helpers.turns import says
from tests.helpers.world import World, kill


def campaign(world: World, kills: int, calls: int, dice: random.Random) -> Counter[str]:
    """Kill processes of a fan-out, and continue it until it completes; return what was counted.

    The fan-out is started by a server, which is killed too. It begins anew while kills are left.

    Raises:
        AssertionError: a call was repeated or lost, or a result differs.
    """
    flow(world)
    simulator = world.play(says("done ${n}", capture={"n": r"task (\w+)"}, latency=0.05))
    counted: Counter[str] = Counter()
    while counted["kills"] < kills:
        before = asked(simulator)
        with world.raw_server("--role", "parent") as server:
            server.say(HELLO)
            server.answer_to("hello")
            server.say(READY)
            call = tool_call(1, "run_fan", many=calls, limit=8)
            run_id = str(server.result_of(call)["structuredContent"]["runId"])
            time.sleep(dice.uniform(0.0, 1.0))  # noqa: TID251 - the moment of the kill is by chance
        counted["server"] += 1
        counted["kills"] += 1
        while (meta := _after_a_while(world, run_id, dice)).status is not Status.COMPLETED:
            if not meta.status.is_terminal:
                victim = _victim(world, run_id, dice) if counted["kills"] < kills else None
                if victim is not None:
                    counted[victim[0]] += 1
                    counted["kills"] += 1
                    kill(victim[1])
                if victim is None or victim[0].startswith("child"):
                    continue  # the flow ends by itself, with the error of that child, or has not noticed yet
            world.judged(run_id)  # whose shim may have died before its worker began: nobody else ends it
            run_id = continue_run(world.service, ContinueOrder(run_id), USER).run_id
            counted["continued"] += 1
        assert world.result(run_id).output == [f"done {number}" for number in range(calls)]
        counted["completed"] += 1
        tasks = asked(simulator) - before
        assert len(tasks) == calls, "a call was lost"
        counted["cut and asked again"] += tasks.total() - calls
    return counted


def _after_a_while(world: World, run_id: str, dice: random.Random) -> RunMeta:
    """Return how a run stands at a random moment, or at its end."""
    until = time.monotonic() + dice.uniform(0.2, 3.0)
    while True:
        meta = world.look(run_id).meta
        if meta.status.is_terminal or time.monotonic() > until:
            return meta
        time.sleep(0.05)  # noqa: TID251 - the moment of the kill is by chance


def _victim(world: World, run_id: str, dice: random.Random) -> tuple[str, Identity] | None:
    """Return a process to kill: of the flow, or of one of its children."""
    children = list(world.store.children_of(run_id))
    dice.shuffle(children)
    who = dice.choice(["flow's shim", "flow's worker", "child's shim", "child's worker"])
    for target in [run_id] if who.startswith("flow") else children:
        with suppress(SubagentError):
            if world.store.read(target).status.is_terminal:
                continue
            recorded = marks.recorded_worker if who.endswith("worker") else marks.recorded_shim
            if (found := recorded(world.paths(target))) is not None:
                return who, found
    return None


def repeated(world: World) -> int:
    """Return how many calls have more than one completed run below one chain of flows."""
    completed: Counter[tuple[str, str]] = Counter()
    for run_id in world.store.run_ids():
        with suppress(SubagentError):
            request = world.store.read_request(run_id)
            if request.call_id is None or world.store.read(run_id).status is not Status.COMPLETED:
                continue
            first = request.parent_run_id or ""
            while (before := world.store.read_request(first).continues_run_id) is not None:
                first = before
            completed[first, request.call_id] += 1
    return sum(count - 1 for count in completed.values())


def main() -> None:
    """Run the campaign and print what was counted. Its directory is kept where something was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    world = World(Path(tempfile.mkdtemp(prefix="flow-kills-")))
    try:
        counted = campaign(world, given.kills, given.calls, random.Random(given.seed))
        again = repeated(world)
        print(*(f"{name}: {count}" for name, count in counted.items()), f"repeated: {again}", sep="\n")
        assert again == 0
    finally:
        world.close()
    shutil.rmtree(world.home)


if __name__ == "__main__":
    main()
