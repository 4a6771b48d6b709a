"""Another version of the program, installed at random moments of a soak, and what that excuses."""

import random
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.soak.audit import Audit
from tests.soak.field import Field

ROUNDS_AN_UPGRADE = 15
"""One upgrade for so many kills, and one at least."""
_HALFWAY_SECONDS = 0.7
"""How long an upgrade stays half done at most: pip needs so long for a few packages."""
_LATEST_PART = 0.7
"""In which part of its share of the kills an upgrade comes: life has to go on after the last."""
_LOOK_SECONDS = 0.05
_IMPORT_FAULT = re.compile(r"(ImportError|ModuleNotFoundError|FileNotFoundError): .*\bsubagent_server\b")


class Upgrader(threading.Thread):
    """Upgrades the installation of a soak; `killed` says how far the soak has come."""

    def __init__(self, field: Field, seed: str, rounds: int, killed: Callable[[], int]) -> None:
        super().__init__(name="upgrader")
        self.done = 0
        self.planned = max(1, rounds // ROUNDS_AN_UPGRADE)
        self.over = threading.Event()
        self._field = field
        self._chance = random.Random(f"{seed}/upgrader")
        self._share = rounds / self.planned
        self._killed = killed

    def run(self) -> None:
        """Upgrade once in each share of the kills, until all is over."""
        for number in range(self.planned):
            due = (number + self._chance.uniform(0, _LATEST_PART)) * self._share
            while self._killed() < due:
                if self.over.wait(_LOOK_SECONDS):
                    return
            self.over.wait(self._chance.uniform(0, 1))
            self._upgrade()

    def _upgrade(self) -> None:
        installation, began = self._field.installation, time.time()
        self._field.audit.write("upgrade", old=installation.version)
        seconds = self._chance.uniform(0, _HALFWAY_SECONDS)
        installation.upgrade(lambda: self.over.wait(seconds), self._chance.random())
        self._field.audit.write("upgraded", new=installation.version, began=began, ended=time.time())
        self.done += 1


class Upgrades:
    """When the installation was half of one version and half of another: who is started then may fail."""

    def __init__(self, audit: Audit) -> None:
        lines = list(audit.lines("upgraded"))
        self._spans = [tuple(map(datetime.fromtimestamp, (line["began"], line["ended"]))) for line in lines]

    def met(self, first: datetime, last: datetime) -> bool:
        """Whether one fell between two moments."""
        first, last = first.astimezone().replace(tzinfo=None), last.astimezone().replace(tzinfo=None)
        return any(began <= last and first <= ended for began, ended in self._spans)

    def excuse(self, output: Path) -> bool:
        """Whether all that a program complains of is files of ours that were missing, or of another version.

        They are all there when a soak is over, so only an upgrade can have taken them away meanwhile.
        """
        words = output.read_text(encoding="utf-8", errors="replace").splitlines()
        faults = [line for line in words if _IMPORT_FAULT.match(line)]
        is_cut = words[-1].startswith(" ")  # killed amid its last complaint, before it came to the reason
        told = words.count("Traceback (most recent call last):") - is_cut
        return bool(self._spans) and len(faults) >= told
