"""Faults of whole nodes among runs, as root: `python -m tests.nodes.soak --fault node_killed --runs 60`.

In each round runs are at work at once, and one thing fails: a node, the controller, the way between them, or
the file servers, for a moment or for good. No run may be done twice, none may stay without an end, none that
lives may be lost, and what is lost has left the process table of its node before a reader says so. What is
lost is continued. At the end the doctor looks at every run.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.run.records import RunMeta
from subagent_server.run.states import Status
from subagent_server.settings import DEFAULT_LEASE_SECONDS
from tests.helpers.truth import examine_all
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import World
from tests.nodes.cluster import NODES, Cluster

LEASE = 6.0
BOUND = 600.0
VERDICT_SECONDS = 2 * LEASE + 10
ANSWER_SECONDS = 4.0
AWAY_SECONDS = 20.0
_WORK = """\
for i in $(seq 100); do [ -e {home}/over ] && exit; echo >> {home}/ticks/$SUBAGENT_RUN_ID; sleep 1; done"""
"""Acts whose traces lie beside the shared directory, so that a file server that is away hides none."""
_TURNS = 10
"""Of work: a command of a run has two minutes, and many runs need more until all of them are at work."""
_never = threading.Event()


@dataclass(frozen=True)
class Tree:
    """The processes of a run at work, by their numbers on its node."""

    node: str
    shim: int
    heart: frozenset[int]

    def left(self, actors: dict[int, int]) -> set[int]:
        """Return those that can still act; the shim and its heart do nothing for the run."""
        found, more = set[int](), {self.shim}
        while more:
            more = {pid for pid, parent in actors.items() if parent in more and pid not in self.heart}
            found |= more
        return found


@dataclass
class Soak:
    """A cluster, a world whose runs go there, and what was found."""

    home: Path
    world: World
    cluster: Cluster
    dice: random.Random
    number: int
    wrong: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)

    # -- the faults

    def node_killed(self) -> None:
        """Cut the power of a node: its runs are lost in time, the others end well, all are continued."""
        runs = self.begun()
        node = self.dice.choice(NODES)
        gone = [run_id for run_id in runs if self.world.look(run_id).node == node]
        self.cluster.node_kill(node)
        begun = time.monotonic()
        for run_id in gone:
            self.lost(run_id)
            self.took("from the power cut to `lost`", time.monotonic() - begun, VERDICT_SECONDS)
        for run_id in set(runs) - set(gone):
            if not self.world.look(run_id).live:
                self.wrong.append(f"{run_id} is not believed to live, because another node died")
        self.work_is_over()
        for run_id in set(runs) - set(gone):
            self.completed(run_id)
        wait_for(lambda: any("down" in each for each in self.cluster.states()), BOUND, "the word of Slurm")
        for again in self.continued(gone):
            if self.world.look(again).node == node:
                self.wrong.append(f"{again} was done on the dead node")
        self.cluster.node_up(node)

    def file_servers_gone(self) -> None:
        """Stop them for three leases: each tree has left its node before a reader says that it is lost."""
        runs = self.begun()
        trees = {run_id: self.tree(run_id) for run_id in runs}
        for run_id, tree in trees.items():
            if not tree.left(self.cluster.actors(tree.node)):
                self.wrong.append(f"the process table of {tree.node} does not show the work of {run_id}")
        self.servers(signal.SIGSTOP)
        begun = time.monotonic()
        self.fenced(trees)
        _never.wait(max(0.0, begun + 3 * LEASE - time.monotonic()))
        acts = {run_id: self.last_act(run_id) for run_id in runs}
        self.servers(signal.SIGCONT)
        _never.wait(2.0)
        self.wrong += [
            f"{run_id} worked on after it was lost"
            for run_id in runs
            if self.last_act(run_id) != acts[run_id]
        ]
        self.work_is_over()
        self.continued(runs)

    def node_given_up(self) -> None:
        """Cut a node off, cancel its jobs and give it up: Slurm calls them ended before the fence falls."""
        runs = self.begun()
        node = self.dice.choice(NODES)
        trees = {run_id: self.tree(run_id) for run_id in runs if self.world.look(run_id).node == node}
        for program in ("slurmd", "bindfs"):
            self.cluster.send(node, program, signal.SIGSTOP)
        for run_id in trees:
            self.cluster.command("scancel", "--name", run_id)
        self.cluster.command("scontrol", "update", f"nodename={node}", "state=down", "reason=cut")
        self.fenced(trees)
        for program in ("bindfs", "slurmd"):
            self.cluster.send(node, program, signal.SIGCONT)
        self.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
        self.work_is_over()
        for run_id in set(runs) - set(trees):
            self.completed(run_id)
        self.continued(list(trees))

    def fenced(self, trees: dict[str, Tree]) -> None:
        """Wait until all these runs are lost: each tree has to have left its node before a reader says so."""
        begun, waiting = time.monotonic(), set(trees)
        while waiting and time.monotonic() - begun < BOUND:
            actors = {node: self.cluster.actors(node) for node in NODES}
            seconds = time.monotonic() - begun
            for run_id in sorted(waiting):
                left = trees[run_id].left(actors[trees[run_id].node])
                if left:
                    self.took("from the cut to the last process on its node", seconds, 2 * LEASE)
                if self.world.look(run_id).meta.status.is_terminal:
                    waiting.discard(run_id)
                    self.lost(run_id)
                    self.took("from the cut to `lost`", seconds, VERDICT_SECONDS)
                    self.counted["work left when a reader said lost" if left else "fenced before"] += 1
                    self.wrong += [f"{run_id} has processes {left} and is called lost"] if left else []

    def file_servers_slow(self) -> None:
        """Stop them for 20 s, with the lease that users have: nothing is lost."""
        self.world.environment["SUBAGENT_LEASE"] = str(DEFAULT_LEASE_SECONDS)
        runs = self.begun()
        self.world.environment["SUBAGENT_LEASE"] = f"{LEASE:g}"
        self.servers(signal.SIGSTOP)
        ends = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < ends:
            self.wrong += [
                f"{run_id} is called dead" for run_id in runs if self.world.look(run_id).live is False
            ]
        self.servers(signal.SIGCONT)
        self.work_is_over()
        for run_id in runs:
            self.completed(run_id)

    def controller_killed(self) -> None:
        """Kill slurmctld: people see, answer and stop runs as ever, only slower."""
        runs = self.begun()
        self.world.play(asks("Which colour?"), says("Done."))
        asking = self.world.start()
        self.world.asking(asking)
        self.cluster.controller_kill()
        for words in (["ls"], ["show", asking], ["reply", asking, "blue"], ["stop", asking]):
            begun = time.monotonic()
            done = self.world.cli(*words)
            self.took(f"{words[0]} without slurmctld", time.monotonic() - begun, ANSWER_SECONDS)
            if done.returncode:
                self.wrong.append(f"{words[0]} without slurmctld: {done.stderr}")
        self.cluster.controller_up()
        self.work_is_over()
        for run_id in runs:
            self.completed(run_id)

    def node_cut_off(self) -> None:
        """Hang slurmd until Slurm gives its node up: its runs work on, and end well."""
        runs, node = self.cut_off()
        self.work_is_over()
        for run_id in runs:
            self.completed(run_id)
        self.cluster.send(node, "slurmd", signal.SIGCONT)

    def node_comes_back(self) -> None:
        """Let slurmd go on before its runs have ended: it ends them, and they say why."""
        runs, node = self.cut_off()
        cut = [run_id for run_id in runs if self.world.look(run_id).node == node]
        self.cluster.send(node, "slurmd", signal.SIGCONT)
        for run_id in cut:
            meta = self.ended(run_id)
            if meta is not None and (meta.error is None or "NODE_FAIL" not in meta.error.message):
                self.wrong.append(f"{run_id} ended as {meta.status}: {meta.error}")
        self.work_is_over()
        for run_id in set(runs) - set(cut):
            self.completed(run_id)

    def cut_off(self) -> tuple[list[str], str]:
        """Return runs at work, and the node whose slurmd hangs so long that Slurm says that it is down."""
        runs = self.begun()
        node = self.dice.choice(NODES)
        self.cluster.send(node, "slurmd", signal.SIGSTOP)
        wait_for(lambda: any("down" in each for each in self.cluster.states()), BOUND, "the word of Slurm")
        for run_id in runs:
            if self.world.look(run_id).live is not True:
                self.wrong.append(f"{run_id} is not believed to live, because Slurm cannot reach its node")
        return runs, node

    def servers(self, number: signal.Signals) -> None:
        """Send the file server of each node a signal."""
        for node in NODES:
            self.cluster.send(node, "bindfs", number)

    # -- runs

    def begun(self) -> list[str]:
        """Return new runs, all at work until `work_is_over`."""
        (self.home / "over").unlink(missing_ok=True)
        work = _WORK.format(home=self.home)
        first = f"echo $SUBAGENT_RUN_ID >> {self.home}/begun; {work}"
        self.world.play(shell(first), *[shell(work)] * (_TURNS - 1), says("Done."))
        runs = [self.world.start() for _ in range(self.number)]
        for run_id in runs:
            wait_for((self.home / "ticks" / run_id).exists, BOUND, f"the work of {run_id}")
        looks = [self.world.look(run_id) for run_id in runs]
        working = sum(each.live is True for each in looks)
        print(f"  {working} of {self.number} at work: {Counter(each.node for each in looks)}", flush=True)
        return runs

    def work_is_over(self) -> None:
        """Let the work of all runs come to its end."""
        (self.home / "over").touch()

    def tree(self, run_id: str) -> Tree:
        """Return what a run at work is on its node."""
        shim, worker = self.world.shim(run_id), self.world.worker(run_id)
        parents = self.cluster.actors(shim.host)
        children = {pid for pid, parent in parents.items() if parent == shim.pid}
        return Tree(shim.host, shim.pid, frozenset(children - {worker.pid}))

    def last_act(self, run_id: str) -> float:
        """Return when a run did something for the last time."""
        return (self.home / "ticks" / run_id).stat().st_mtime

    def continued(self, runs: Sequence[str]) -> list[str]:
        """Return the runs that take up lost ones, once they have completed."""
        found = []
        for run_id in runs:
            done = self.world.cli("continue", run_id, "--detach", "--json")
            if done.returncode:
                self.wrong.append(f"{run_id} cannot be continued: {done.stderr}")
            else:
                found.append(json.loads(done.stdout)["runId"])
        for again in found:
            self.completed(again)
        return found

    def completed(self, run_id: str) -> None:
        """Wait for the end of a run, which has to be good."""
        meta = self.ended(run_id)
        if meta is not None and meta.status is not Status.COMPLETED:
            self.wrong.append(f"{run_id} ended as {meta.status}: {meta.error}")

    def lost(self, run_id: str) -> None:
        """Wait for the end of a run, which has to be `lost`."""
        meta = self.ended(run_id)
        if meta is not None and (meta.error is None or meta.error.code != "lost"):
            self.wrong.append(f"{run_id} ended as {meta.status}: {meta.error}")

    def ended(self, run_id: str) -> RunMeta | None:
        """Return the state of a run at its end, as a reader sees it; None if it comes to none."""
        try:
            wait_for(lambda: self.world.look(run_id).meta.status.is_terminal, BOUND, f"the end of {run_id}")
        except AssertionError as error:
            self.wrong.append(str(error))
            return None
        meta = self.world.look(run_id).meta
        self.counted[meta.error.code if meta.error else meta.status.value] += 1
        return meta

    def took(self, what: str, seconds: float, most: float) -> None:
        """Keep the longest time of its kind, and whether it was too long."""
        self.slowest[what] = max(seconds, self.slowest.get(what, seconds))
        if seconds > most:
            self.wrong.append(f"{what}: {seconds:.1f} s, more than {most:g} s")

    def judge(self) -> None:
        """Look at every run when all is over."""
        for run_id in self.world.store.run_ids():
            wait_for(lambda each=run_id: self.world.look(each).live is False, BOUND, f"all of {run_id}")  # type: ignore[misc]
        doubled = Counter((self.home / "begun").read_text(encoding="utf-8").split())
        self.wrong += [f"{run_id} was begun {times} times" for run_id, times in doubled.items() if times > 1]
        found = examine_all(self.world.store, self.world.environment)
        self.wrong += [f"the doctor: {each.run_id}: {each.what}" for each in found]


FAULTS: dict[str, Callable[[Soak], None]] = {
    each.__name__: each
    for each in (
        *(Soak.node_killed, Soak.file_servers_gone, Soak.controller_killed),
        *(Soak.file_servers_slow, Soak.node_cut_off, Soak.node_comes_back, Soak.node_given_up),
    )
}


def main() -> int:
    """Return 1 if anything was wrong, with a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=len(FAULTS))
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    if os.getuid() != 0:
        sys.exit("The nodes of this campaign have mounts of their own: root runs it, such as in a container.")
    faults = given.fault or list(FAULTS)
    with tempfile.TemporaryDirectory(prefix="nodes", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        for name in ("slurm", "world", "ticks"):
            (home / name).mkdir()
        with Cluster(home / "slurm", home / "world") as cluster:
            os.environ.update(cluster.environment)
            world = World(home / "world")
            world.environment |= {"SUBAGENT_LAUNCHER": "slurm", "SUBAGENT_LEASE": f"{LEASE:g}"}
            world.environment |= cluster.environment
            world.agent()
            soak = Soak(home, world, cluster, random.Random(given.seed), given.runs)
            for number in range(given.rounds):
                fault = faults[number % len(faults)]
                wait_for(lambda: cluster.states().count("idle") == len(NODES), BOUND, "the nodes")
                begun, before = time.monotonic(), len(soak.wrong)
                FAULTS[fault](soak)
                found = len(soak.wrong) - before
                print(f"{fault}: {time.monotonic() - begun:.0f} s, {found} wrong", flush=True)
            soak.judge()
            print(f"{given.rounds} rounds of {given.runs} runs, seed {given.seed}: {dict(soak.counted)}")
            for what, seconds in soak.slowest.items():
                print(f"  {what}: {seconds:.1f} s at most")
            for each in soak.wrong:
                print(each, flush=True)
            world.close()  # it judges, too, and says nothing of the figures
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
