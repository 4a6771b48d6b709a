"""`kill -9`, at random moments, of random processes of a soak: a line in the audit before each."""

import random
import signal
import threading
import time
from collections import Counter

from subagent_server.run import processes
from tests.soak.field import Field, Found

WEIGHTS = {
    "server": 3,
    "starter": 2,
    "shim": 3,
    "worker": 3,
    "grandchild": 6,
    "HTTP server": 2,
    "box": 3,
    "git": 2,
    "zygote": 2,
    "spare": 2,
    "reconcile": 3,
}
_HUNT_SECONDS = 3.0
"""How long a kind that is not there now is waited for, before another kind is chosen."""
_LOOK_SECONDS = 0.02


class Killer:
    """Kills `rounds` processes, `pause` seconds apart on average, unless the time is over before."""

    def __init__(self, field: Field, seed: str, rounds: int, pause: float) -> None:
        self.killed: Counter[str] = Counter()
        self._field = field
        self._chance = random.Random(f"{seed}/killer")
        self._rounds = rounds
        self._pause = pause
        self._never = threading.Event()

    def work(self, seconds: float) -> None:
        """Kill until all rounds are done or `seconds` are over."""
        deadline = time.monotonic() + seconds
        while self.killed.total() < self._rounds and time.monotonic() < deadline:
            self._never.wait(self._chance.uniform(0, 2 * self._pause))
            (kind,) = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            victim = self._hunted(kind)
            if victim is not None:
                self._kill(victim)

    def _hunted(self, kind: str) -> Found | None:
        deadline = time.monotonic() + _HUNT_SECONDS
        while True:
            found = [each for each in self._field.members() if each.kind == kind]
            if found:
                return self._chance.choice(found)
            if time.monotonic() >= deadline:
                return None
            self._never.wait(_LOOK_SECONDS)

    def _kill(self, victim: Found) -> None:
        pid = victim.identity.pid
        self._field.audit.write("kill", kind=victim.kind, pid=pid, run=victim.run_id)
        if processes.send_signal(victim.identity, signal.SIGKILL):
            self.killed[victim.kind] += 1
