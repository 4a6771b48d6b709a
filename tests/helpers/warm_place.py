"""A zygote for some tests alone, and how to find its forks."""

import os
from pathlib import Path

import pytest

from subagent_server.run import processes
from tests.helpers import warm
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may look into the processes of a run")
_FORKED_ROOM = 8_000
"""`/proc` shows this much command line of a fork at least, most of it empty; of nothing else in a test."""


class WarmPlace:
    """The private directory of a world, and a zygote in it, which is not started yet."""

    def __init__(self, world: World, directory: Path | None = None) -> None:
        self.world = world
        self.directory = directory or world.home / "warm"
        world.environment[warm.PLACE] = str(self.directory)

    def start(self) -> processes.Identity:
        """Have the zygote started, and return it when it listens."""
        warm.spawn(self.directory)
        return self.zygote()

    def zygote(self) -> processes.Identity:
        """Return the zygote as soon as it listens."""
        wait_for(lambda: list(self.directory.glob("*.sock")), BOUND, "the zygote")
        (identity,) = warm.zygotes(self.directory)
        return identity

    def started(self, prompt: str = "Do it.", agent: str = "worker") -> tuple[str, bool]:
        """Start a run that asks; return its id, once it asks, and whether its worker is a fork."""
        run_id = self.world.start(prompt, agent)
        self.world.asking(run_id)
        return run_id, is_fork(self.world.worker(run_id))


def forks_of(zygote: processes.Identity) -> list[processes.Identity]:
    """Return the children of a zygote, those included that have ended and are not collected."""
    pids = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text(encoding="ascii").split()
    return [child for child in (processes.identify(int(pid)) for pid in pids) if child is not None]


def is_fork(identity: processes.Identity) -> bool:
    """Whether a process is a fork of a zygote."""
    return len(Path(f"/proc/{identity.pid}/cmdline").read_bytes()) > _FORKED_ROOM
