"""A tree of 1 + n + n² runs at work, and what must be true after its first run was ended, in whatever way.

`make soak` has n = 5; the suite a smaller one.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run import locks, processes
from subagent_server.run.records import RunMeta, Usage
from subagent_server.run.states import Status
from subagent_server.verbs.reconcile import subtree
from tests.helpers.truth import processes_of
from tests.helpers.turns import call, calls, says, shell, use
from tests.helpers.wait import wait_for
from tests.helpers.world import World

GRACE_SECONDS = 10.0
"""Between TERM and KILL (SPEC section 4)."""
_GROWN_SECONDS = 300.0
_GONE_SECONDS = 120.0
_TURN = Usage(input_tokens=10, output_tokens=5, turns=1)

Deed = Callable[["Tree"], None]


@dataclass
class Tree:
    """A tree in its world."""

    world: World
    width: int
    root: str

    def metas(self) -> list[RunMeta]:
        """Return the states on disk, a parent before its children; nobody reconciles anything."""
        with suppress(FileNotFoundError):
            return list(subtree(self.world.store, self.world.meta(self.root)))
        return []

    @property
    def is_grown(self) -> bool:
        """Whether all are there, and those at the bottom work."""
        metas = self.metas()
        lowest = [meta.run_id for meta in metas if meta.depth == 2]
        return len(lowest) == self.width**2 and all(self.world.events(i, "tool_call") for i in lowest)


def stop(tree: Tree) -> None:
    """Stop the first run."""
    tree.world.stop(tree.root, "enough")


def kill_worker(tree: Tree) -> None:
    """Kill the worker of the first run."""
    processes.send_signal(tree.world.worker(tree.root), signal.SIGKILL)


def kill_both(tree: Tree) -> None:
    """Kill worker and shim of the first run. Nobody reads it afterwards but the runs below it."""
    worker, shim = tree.world.worker(tree.root), tree.world.shim(tree.root)
    processes.send_signal(shim, signal.SIGKILL)
    processes.send_signal(worker, signal.SIGKILL)


DEEDS: dict[str, Deed] = {"stop": stop, "kill the worker": kill_worker, "kill worker and shim": kill_both}


def plant(world: World, width: int) -> Tree:
    """Start a tree and return it when it is grown: each run waits for those below it, the lowest for none."""
    used = {"usage": {"input_tokens": _TURN.input_tokens, "output_tokens": _TURN.output_tokens}}
    world.agent("boss", agents=["lead"])
    world.agent("lead", agents=["hand"])
    world.agent("hand")
    waiting = call("wait_for_runs", waitFor="all", waitSeconds=3600)
    turns = {
        "Lead all.": [calls(*[use("run_lead", prompt="Lead some.")] * width), waiting],
        "Lead some.": [calls(*[use("run_hand", prompt="Work.")] * width), waiting],
        "Work.": [shell("sleep 3600 & exec sleep 3600")] * 40,  # each is ended by its own limit of time
    }
    world.play(
        says("Nobody says this."),
        conversations=[
            {"when": {"prompt": f"^{prompt}"}, "turns": [{**turn, **used} for turn in said]}
            for prompt, said in turns.items()
        ],
    )
    tree = Tree(world, width, world.start("Lead all.", agent="boss"))
    wait_for(lambda: tree.is_grown, _GROWN_SECONDS, "a tree that is grown")
    return tree


def judge(tree: Tree, deed: Deed, bound_seconds: float) -> Iterator[str]:
    """End the first run of a tree by `deed`, and yield what should not be.

    No process may be left after `bound_seconds`; nobody but the processes of the tree looks at it until then.
    """
    runs = [tree.world.paths(meta.run_id) for meta in tree.metas()]
    began = time.monotonic()
    deed(tree)
    wait_for(lambda: not any(map(processes_of, runs)), _GONE_SECONDS, "the end of all processes")
    seconds = time.monotonic() - began
    if seconds > bound_seconds:
        yield f"the last process was gone after {seconds:.1f} s"
    if deed is kill_both:
        tree.world.look(tree.root)  # what no shim of it has told is told by its first reader
    wait_for(lambda: not any(locks.is_held(run.live_lock) for run in runs), _GONE_SECONDS, "the locks")
    for meta in tree.metas():
        yield from _wrong_with(tree, meta)


def _wrong_with(tree: Tree, meta: RunMeta) -> Iterator[str]:
    spent = [each.usage for each in subtree(tree.world.store, meta)]
    turns, tokens = sum(u.turns or 0 for u in spent), sum(u.input_tokens or 0 for u in spent)
    least = {0: 2 + 2 * tree.width + tree.width**2, 1: 2 + tree.width, 2: 1}[meta.depth]
    if meta.with_descendants.turns != turns or turns < least or tokens != turns * (_TURN.input_tokens or 0):
        yield f"{meta.run_id} tells of {meta.with_descendants}, but it was {turns} turns, {tokens} tokens"
    if meta.with_descendants.input_tokens != tokens:
        yield f"{meta.run_id} tells of {meta.with_descendants.input_tokens} tokens, not of {tokens}"
    if meta.depth == 0:
        if not meta.status.is_terminal:
            yield f"{meta.run_id} is {meta.status}"
    elif meta.status is not Status.STOPPED or str(meta.parent_run_id) not in (meta.summary or ""):
        yield f"{meta.run_id} is {meta.status} because of {meta.summary!r}"


def grown_and_ended(home: Path, width: int, deed: Deed, bound_seconds: float) -> list[str]:
    """Plant a tree in a world of its own, end it, and return what should not be; the doctor looks too."""
    home.mkdir(parents=True)
    world = World(home)
    world.environment["SUBAGENT_MAX_RUNS"] = "64"
    try:
        return list(judge(plant(world, width), deed, bound_seconds))
    finally:
        world.close()
