"""Working time, which `timeoutSeconds` bounds. Waiting for a parent or for a busy API does not count."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class WorkClock:
    """Runs while at least one stretch of work is open. Stretches overlap; a wait suspends its stretch."""

    def __init__(
        self,
        on_idle: Callable[[], None],
        on_work: Callable[[], None],
        on_pause: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_idle = on_idle
        self._on_work = on_work
        self._on_pause = on_pause
        self._clock = clock
        self._waits: list[float] = []
        self._open = 0
        self._elapsed = 0.0
        self._since = 0.0

    @property
    def elapsed(self) -> float:
        """Working time so far, in seconds."""
        return self._elapsed + (self._clock() - self._since if self._open else 0.0)

    @property
    def running(self) -> bool:
        """Whether working time passes now."""
        return self._open > 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a stretch as work."""
        self._change(+1)
        try:
            yield
        finally:
            self._change(-1)

    @property
    def waits_until(self) -> float | None:
        """When the last of the waits that are open is over, on the clock; None if there is none."""
        return max(self._waits, default=None)

    def waiting(self, until: float = math.inf) -> AbstractContextManager[None]:
        """Suspend the stretch that this is inside; `on_idle` is called if no other stretch is open."""
        return self._suspended(until, self._on_idle)

    def pausing(self, until: float) -> AbstractContextManager[None]:
        """Do as `waiting`, with `on_pause` in the place of `on_idle`: the work goes on by itself soon."""
        return self._suspended(until, self._on_pause)

    @contextmanager
    def _suspended(self, until: float, on_suspended: Callable[[], None]) -> Iterator[None]:
        self._waits.append(until)
        self._change(-1)
        if not self._open:
            on_suspended()
        try:
            yield
        finally:
            self._waits.remove(until)
            self._change(+1)

    def _change(self, by: int) -> None:
        was_open, self._open = self._open, self._open + by
        if not was_open and self._open:
            self._since = self._clock()
            self._on_work()
        elif was_open and not self._open:
            self._elapsed += self._clock() - self._since
