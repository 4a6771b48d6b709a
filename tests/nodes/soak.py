"""Faults of whole nodes among runs: `python -m tests.nodes.soak --rounds 3 --runs 6 [--seed N]`, as root.

In each round runs are started, and one thing fails: a node, the controller, the way between them, or the file
server of a node, for a moment or for good. No run may be done twice, none may stay without an end, none may
be lost that another node or a living node has, and what is lost must have stopped before a reader says so. At
the end the doctor looks at every run.
"""

import argparse
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

from subagent_server.run.states import Status
from tests.helpers.truth import examine_all
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import World
from tests.nodes.cluster import NODES, Cluster

LEASE = 6.0
BOUND = 240.0
VERDICT_SECONDS = 2 * LEASE + 10
ANSWER_SECONDS = 4.0
_WORK = """\
echo $SUBAGENT_RUN_ID >> {home}/begun
for i in $(seq {ticks}); do echo >> {home}/ticks/$SUBAGENT_RUN_ID; sleep 0.2; done"""
"""Acts whose traces lie beside the shared directory, so that a file server that is away hides none."""
_never = threading.Event()


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
        """Cut the power of a node: its runs are lost in time, and the others end well."""
        runs = self.begun(ticks=150)
        node = self.dice.choice(NODES)
        self.cluster.node_kill(node)
        begun, gone = time.monotonic(), self.of(runs, node)
        for run_id in gone:
            self.end(run_id, {"lost"})
            self.took("lost after its node was killed", time.monotonic() - begun, VERDICT_SECONDS)
        for run_id in set(runs) - set(gone):
            self.end(run_id, set())
        self.cluster.node_up(node)

    def file_server_slow(self) -> None:
        """Stop the file server of a node for less than a lease: nothing is lost."""
        runs = self.begun()
        node = self.dice.choice(NODES)
        self.cluster.send(node, "bindfs", signal.SIGSTOP)
        _never.wait(LEASE / 2)
        self.cluster.send(node, "bindfs", signal.SIGCONT)
        for run_id in runs:
            self.end(run_id, set())

    def file_server_gone(self) -> None:
        """Stop it until a reader says `lost`: the work on the node has stopped before, and stays so."""
        runs = self.begun(ticks=1000)
        node = self.dice.choice(NODES)
        self.cluster.send(node, "bindfs", signal.SIGSTOP)
        lost = self.of(runs, node)
        for run_id in set(runs) - set(lost):
            self.world.stop(run_id)
        for run_id in lost:
            self.end(run_id, {"lost"})
            last = (self.home / "ticks" / run_id).stat().st_mtime
            self.took("its last act before a reader said lost", last - time.time(), 0)
        _never.wait(1.0)
        self.cluster.send(node, "bindfs", signal.SIGCONT)
        moment = time.time()
        _never.wait(2.0)
        late = [each for each in lost if (self.home / "ticks" / each).stat().st_mtime > moment]
        self.wrong += [f"{run_id} worked on after it was lost" for run_id in late]

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
        for run_id in runs:
            self.end(run_id, set())

    def node_cut_off(self) -> None:
        """Hang slurmd until Slurm says that its node is down: its runs work on, and none is lost."""
        runs = self.begun(ticks=200)
        node = self.dice.choice(NODES)
        self.cluster.send(node, "slurmd", signal.SIGSTOP)
        wait_for(lambda: any("down" in each for each in self.cluster.states()), BOUND, "the word of Slurm")
        for run_id in runs:
            if self.world.look(run_id).live is False and not self.ended_well(run_id):
                self.wrong.append(f"{run_id} is not believed to live, because Slurm cannot reach its node")
        for run_id in runs:
            self.end(run_id, set())
        self.cluster.send(node, "slurmd", signal.SIGCONT)

    # -- runs

    def begun(self, ticks: int = 40) -> list[str]:
        """Return new runs, all at work."""
        self.world.play(shell(_WORK.format(home=self.home, ticks=ticks)), says("Done."))
        runs = [self.world.start() for _ in range(self.number)]
        for run_id in runs:
            wait_for((self.home / "ticks" / run_id).exists, BOUND, f"the work of {run_id}")
        return runs

    def of(self, runs: Sequence[str], node: str) -> list[str]:
        """Return those that were put on a node."""
        return [run_id for run_id in runs if self.world.look(run_id).node == node]

    def ended_well(self, run_id: str) -> bool:
        """Whether a run has completed."""
        return self.world.look(run_id).meta.status is Status.COMPLETED

    def end(self, run_id: str, codes: set[str]) -> None:
        """Wait for the end of a run as a reader sees it: completed, or failed with one of `codes`."""
        try:
            wait_for(lambda: self.world.look(run_id).meta.status.is_terminal, BOUND, f"the end of {run_id}")
        except AssertionError as error:
            self.wrong.append(str(error))
            return
        meta = self.world.look(run_id).meta
        self.counted[meta.error.code if meta.error else meta.status.value] += 1
        if meta.status is not Status.COMPLETED and not (meta.error and meta.error.code in codes):
            self.wrong.append(f"{run_id} ended as {meta.status}: {meta.error}")

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


FAULTS: tuple[Callable[[Soak], None], ...] = (
    *(Soak.node_killed, Soak.file_server_gone, Soak.controller_killed),
    *(Soak.file_server_slow, Soak.node_cut_off),
)


def main() -> int:
    """Return 1 if anything was wrong, with a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(FAULTS))
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    if os.getuid() != 0:
        sys.exit("The nodes of this campaign have mounts of their own: root runs it, such as in a container.")
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
                fault = FAULTS[number % len(FAULTS)]
                wait_for(lambda: cluster.states().count("idle") == len(NODES), BOUND, "the nodes")
                begun, before = time.monotonic(), len(soak.wrong)
                fault(soak)
                found = len(soak.wrong) - before
                print(f"{fault.__name__}: {time.monotonic() - begun:.0f} s, {found} wrong", flush=True)
            soak.judge()
            world.close()
    print(f"{given.rounds} rounds of {given.runs} runs, seed {given.seed}: {dict(soak.counted)}")
    for what, seconds in soak.slowest.items():
        print(f"  {what}: {seconds:.1f} s at most")
    for each in soak.wrong:
        print(each)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
