"""Runs that meet a busy API pause together: a small file of the runs root says when calls may go on.

Waits are measured on the clock of this boot, so that no jump of the wall clock makes a short silence long. A
file of another boot or host, a torn file, and a figure out of bounds count as a missing file.
"""

import hashlib
import json
import math
import random
import time
from dataclasses import dataclass
from typing import Any

from subagent_server.domain.errors import StorageFailed
from subagent_server.host.atomic import remove_leftovers, write_durably
from subagent_server.host.directory import Directory
from subagent_server.host.processes import boot_id
from subagent_server.host.stderr import log

LONGEST_SECONDS = 600.0
"""No hold is longer, whatever the API asks for or a file says."""
LONGEST_GROWN_SECONDS = 30.0
"""The longest wait that grows by itself, when the API named none."""
LEAST_SPREAD_SECONDS = 0.25
_LONGEST_HOLD = 4_096


@dataclass(frozen=True)
class _Hold:
    """No run calls before `until`, in seconds of this boot; the hold was made for so many `seconds`."""

    until: float
    seconds: float


class SharedPace:
    """Implements `toolkit.pace.Pace` for all runs whose file is the same."""

    def __init__(self, directory: Directory, base_url: str, key_name: str) -> None:
        """`key_name` is the name of the variable with the key. The key itself is never used here."""
        name = hashlib.sha256(f"{base_url}\n{key_name}".encode()).hexdigest()[:16]
        self.file = directory.entry(f"{name}.json")

    def hold(self) -> float:
        """Return the seconds to wait, longer by chance, so that waiting runs do not come all at once."""
        moment = time.monotonic()
        hold = self._read(moment)
        if hold is None or hold.until <= moment:
            return 0.0
        return hold.until - moment + _spread(hold.seconds)

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Hold all runs back. If the API is busy again right after a hold, the next hold is longer."""
        moment = time.monotonic()
        seconds = min(seconds, LONGEST_SECONDS)
        before = self._read(moment)
        if before is not None and before.until <= moment < before.until + 2 * before.seconds and not asked:
            seconds = max(seconds, min(LONGEST_GROWN_SECONDS, 2 * before.seconds))
        until = moment + seconds
        if before is None or before.until < until:
            self._write(_Hold(until, seconds))
        else:
            until = before.until
        return until - moment + _spread(seconds)

    def _read(self, moment: float) -> _Hold | None:
        try:
            data = json.loads(self.file.read(_LONGEST_HOLD))
        except (OSError, ValueError):
            return None
        if not isinstance(data, dict) or data.get("bootId") != boot_id():
            return None
        until, seconds = _number(data.get("until")), _number(data.get("seconds"))
        if not 0 < seconds <= LONGEST_SECONDS or not until - moment <= seconds:
            return None
        return _Hold(until, seconds)

    def _write(self, hold: _Hold) -> None:
        data = {"bootId": boot_id(), "until": hold.until, "seconds": hold.seconds}
        try:
            self.file.directory.make()
            remove_leftovers(self.file.directory)
            write_durably(self.file, json.dumps(data).encode())
        except (OSError, StorageFailed) as error:
            log(f"The busy API could not be recorded for other runs ({error}); this run goes on.")


def _number(value: Any) -> float:
    """Return a finite number; any other value becomes infinity, which is out of every bound."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else math.inf


def _spread(seconds: float) -> float:
    return random.uniform(0, max(LEAST_SPREAD_SECONDS, seconds / 2))
