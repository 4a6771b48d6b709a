"""Waiting on a condition, always with a bound."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.005, 0.05
_never = threading.Event()


def wait_for(condition: Callable[[], T], seconds: float, what: str) -> T:
    """Return the first value of `condition` that is true.

    Raises:
        AssertionError: it gave none within `seconds`; says what was waited for.
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST_POLL_SECONDS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"after {seconds:g} s still waiting for {what} (last: {value!r})")
        _never.wait(pause)
        pause = min(1.2 * pause, _LAST_POLL_SECONDS)
