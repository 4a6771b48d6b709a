"""Waiting on a condition, always with a bound."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.01
_never = threading.Event()


def wait_for(condition: Callable[[], T], seconds: float, what: str) -> T:
    """Return the first value of `condition` that is true.

    Raises:
        AssertionError: it gave none within `seconds`; says what was waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"after {seconds:g} s still waiting for {what} (last: {value!r})")
        _never.wait(_POLL_SECONDS)
