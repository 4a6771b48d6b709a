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
from subagent_server.toolkit.pace import LONGEST_WAIT_SECONDS

LONGEST_SECONDS = 0.9 * LONGEST_WAIT_SECONDS
"""No hold is longer, whatever the API asks for or a file says: the rest of that wait is for the spread."""
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
    """Implements `toolkit.pace.Pace` for all runs of a root that call one API with one key.

    The file of a hold is named by a digest of root, address and key: runs with other keys are other accounts,
    and no file tells which key it is about.
    """

    def __init__(self, directory: Directory, base_url: str, key: str) -> None:
        """`key` is the key itself, which is never written."""
        self._directory = directory
        account = f"{directory.path}\n{base_url}\n{key}".encode("utf-8", "surrogateescape")
        self._file = directory.entry(f"{hashlib.sha256(account).hexdigest()[:16]}.json")

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
            data = json.loads(self._file.read(_LONGEST_HOLD))
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
            self._directory.make()
            remove_leftovers(self._directory)
            write_durably(self._file, json.dumps(data).encode())
        except (OSError, StorageFailed) as error:
            log(f"The busy API could not be recorded for other runs ({error}); this run goes on.")


def _number(value: Any) -> float:
    """Return a finite number; any other value becomes infinity, which is out of every bound."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else math.inf


def _spread(seconds: float) -> float:
    """Return what is added to a wait by chance: never so much that it is longer than the longest."""
    most = min(seconds / 2, LONGEST_WAIT_SECONDS - seconds)
    return random.uniform(0, max(LEAST_SPREAD_SECONDS, most))
