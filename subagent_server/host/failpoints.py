"""Failpoints: named places in the code at which a test ends the process, as `kill -9` would.

Kills from outside rarely meet the windows that matter. With
`SUBAGENT_TEST_DIE_AT=shim.forked:0.1,store.written:0.02` in its environment, a process ends at each named
point with the given probability, after a line on stderr. Without the variable nothing here does anything.
`make soak` sets it; nothing else should. Standard library only: the shim imports this module.
"""

import os
import signal

VARIABLE = "SUBAGENT_TEST_DIE_AT"
LAST_WORDS = "dies here on purpose:"


def failpoint(name: str) -> None:
    """End this process as SIGKILL does, if the environment lists `name` and the dice agree."""
    listed = os.environ.get(VARIABLE)
    if listed and int.from_bytes(os.urandom(4), "big") / 2**32 < _probability(listed, name):
        os.write(2, f"{LAST_WORDS} {name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def _probability(listed: str, name: str) -> float:
    for entry in listed.split(","):
        point, _, probability = entry.partition(":")
        if point.strip() == name:
            return float(probability or 1)
    return 0.0
