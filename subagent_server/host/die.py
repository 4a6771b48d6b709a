"""Dying on purpose at named points, for tests: kills from outside rarely meet the windows that matter.

With `SUBAGENT_TEST_DIE_AT=shim.forked:0.1,store.written:0.02` in its environment, a process that comes to
such a point ends there with that probability, as by `kill -9`, after one line on stderr. Without the variable
nothing here does anything. `make soak` sets it; nothing else should. Standard library only: the shim imports
this module.
"""

import os
import signal

VARIABLE = "SUBAGENT_TEST_DIE_AT"
LAST_WORDS = "dies here on purpose:"


def may_die(point: str) -> None:
    """End this process as SIGKILL does, if the environment says so for `point` and the dice agree."""
    wanted = os.environ.get(VARIABLE)
    if wanted and int.from_bytes(os.urandom(4), "big") / 2**32 < _probability(wanted, point):
        os.write(2, f"{LAST_WORDS} {point}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def _probability(wanted: str, point: str) -> float:
    for entry in wanted.split(","):
        name, _, probability = entry.partition(":")
        if name.strip() == point:
            return float(probability or 1)
    return 0.0
