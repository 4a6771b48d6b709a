"""Whatever of a run in a box is killed, and whenever: no process and no placeholder of it is left."""

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.states import Status
from subagent_server.sandbox.box import Rules, build_box
from subagent_server.sandbox.standstill import standing_still
from subagent_server.sandbox.verify import discard, start_gated
from tests.helpers.bubblewrap import settings
from tests.helpers.repositories import make_repository
from tests.helpers.turns import calls, says, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill

BUSY = calls(use("bash", command="setsid sleep 3600 & (nohup sleep 3600 &); sleep 3600"))
KINDS = ("box", "inside", "worker", "shim", "worker and shim")
TRUE_REASONS = ("crashed", "lost", "launch_failed", "storage")
"""`launch_failed` before there was a worker, `storage` if two boxes were killed while they were looked at."""
BATCH = 10


@dataclass(frozen=True)
class Victim:
    """A run in a box, in a repository of its own; `before` are the names in it."""

    run_id: str
    directory: Path
    before: frozenset[str]
    kind: str

    def until_busy(self, world: World) -> None:
        """Return when the programs of the model run in the box."""

        def commands() -> list[processes.Command]:
            below = processes.descendants([world.worker(self.run_id).pid])
            return [processes.command_of(identity.pid) for identity in below]

        wait_for(lambda: sum(b"3600" in command for command in commands()) >= 3, BOUND, "busy programs")

    def strike(self, world: World) -> None:
        """Kill what is to be killed, if it is there at this moment; a box that is not, is its worker."""
        worker = world.worker(self.run_id)
        box = processes.descendants([worker.pid])
        for name in self.kind.split(" and "):
            match name:
                case "box" | "inside" if box:
                    kill(box[0] if name == "box" else box[-1])
                case "shim":
                    kill(world.shim(self.run_id))
                case _:
                    kill(worker)

    def check(self, world: World) -> None:
        """Wait for the end of the run, and look at what is left."""
        wait_for(
            lambda: world.look(self.run_id).live is False, BOUND, f"the end of a run, {self.kind} killed"
        )
        meta = world.meta(self.run_id)
        assert meta.error is None or meta.error.code in TRUE_REASONS, meta.error
        assert meta.error or meta.status in (Status.COMPLETED, Status.STOPPED)
        assert names(self.directory) == self.before, self.kind


def names(directory: Path) -> frozenset[str]:
    """Return the names in a repository and in its git directory."""
    places = (directory, directory / ".git")
    return frozenset(str(path) for place in places for path in place.iterdir())


def start_victim(world: World, kind: str, number: int) -> Victim:
    """Start a run that works in a box for an hour, then ends."""
    directory, link = world.work / f"project{number}", world.work / f"link{number}"
    make_repository(directory)
    link.symlink_to(directory)
    before = names(directory)
    return Victim(world.start(cwd=str(link)), directory, before, kind)


def prepare(world: World) -> None:
    """Write the agent, and let the model be busy in its shell, then done."""
    world.agent_saying(BUSY, says("Done."), sandbox="bwrap")


def test_a_run_in_a_box_leaves_nothing_whatever_is_killed_of_it(world: World) -> None:
    prepare(world)
    victims = [start_victim(world, kind, number) for number, kind in enumerate(KINDS)]
    for victim in victims:
        victim.until_busy(world)
        victim.strike(world)
    for victim in victims:
        victim.check(world)
    assert world.completed(victims[0].run_id) == "Done.", "a killed box is a result that the model reads"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_kills_at_random_moments_leave_nothing(world: World) -> None:
    dice = random.Random(16)
    prepare(world)
    for batch in range(300 // BATCH):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        victims = [start_victim(world, dice.choice(KINDS), number) for number in numbers]
        for victim in victims:
            threading.Event().wait(dice.uniform(0.0, 0.4))
            victim.strike(world)
        for victim in victims:
            if victim.kind in ("box", "inside"):
                world.stop(victim.run_id)
        for victim in victims:
            victim.check(world)


KILLED_AMID = """
import os, sys
from subagent_server.sandbox.standstill import standing_still
with standing_still([int(sys.argv[1])]):
    os.kill(os.getpid(), 9)
"""


def test_programs_of_a_box_stand_still_for_a_moment_whatever_they_do(tmp_path: Path) -> None:
    written = tmp_path / "written"
    program = f"""
import ctypes, os, threading
def write():
    while True:
        with open({str(written)!r}, "a") as file:
            file.write(".")
def fork():
    while True:
        if os.fork():
            os._exit(0)
        with open({str(written)!r}, "a") as file:
            file.write(".")
for work in (write, fork):
    if not os.fork():
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
        threading.Thread(target=work).start()
        ctypes.CDLL(None).pthread_exit(None) if work is write else None
os.wait()
os.wait()  # the one that forks has ended, the one that writes does not
"""
    box = build_box(Rules(cwd=tmp_path, environment={"PATH": os.environ["PATH"], **settings()}))
    started = start_gated(box, ["python3", "-c", program])
    try:
        sizes = [0]
        for _ in range(3):
            wait_for(lambda: written.exists() and written.stat().st_size > sizes[-1], BOUND, "writing")
            with standing_still([os.getpid()]):
                sizes.append(written.stat().st_size)
                threading.Event().wait(0.2)
                assert written.stat().st_size == sizes[-1]
        killed = subprocess.run([sys.executable, "-c", KILLED_AMID, str(os.getpid())])
        assert killed.returncode == -signal.SIGKILL
        sizes.append(written.stat().st_size)
        wait_for(lambda: written.stat().st_size > sizes[-1], BOUND, "writing after all")
    finally:
        discard(started)
