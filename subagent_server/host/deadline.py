"""The deadline of a process, as reported to its supervisor: a pipe of moments.

A process ends by its own limits. An unresponsive process (a blocked event loop, a stopped process) cannot, so
its supervisor has to know the deadline. Standard library only: the shim imports this module.
"""

import fcntl
import math
import os
import signal
import struct
import time
from contextlib import suppress

LATE_SECONDS = 15.0
"""How long after its deadline a process is asked to end."""
_MOMENT = struct.Struct("=d")
_READ_BYTES = 64 << 10
_DRIFT_SECONDS = 1.0


class DeadlineWriter:
    """The end of the process. `descriptor` is None if its supervisor does not listen."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._written: float | None = None
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # else its children could move the limit
            os.set_blocking(descriptor, False)

    def write(self, moment: float) -> None:
        """Report a moment of the monotonic clock; infinity: none. Changes below a second are left out."""
        if self._descriptor is None or moment == self._written:
            return
        if self._written is not None and abs(moment - self._written) < _DRIFT_SECONDS:
            return
        with suppress(OSError):  # the supervisor is gone, or has not read for long
            os.write(self._descriptor, _MOMENT.pack(moment))
            self._written = moment


class DeadlineReader:
    """The end of the supervisor: `writer` is the descriptor that the process gets."""

    def __init__(self) -> None:
        self._descriptor, self.writer = os.pipe()
        self._moment = math.inf
        os.set_blocking(self._descriptor, False)

    @property
    def descriptor(self) -> int:
        """The end that only the supervisor has."""
        return self._descriptor

    def begin(self, number: signal.Signals) -> None:
        """Close the other end, and get signal `number` at each new deadline (fcntl(2), F_SETSIG)."""
        os.close(self.writer)
        fcntl.fcntl(self._descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._descriptor, fcntl.F_SETSIG, number)
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)

    def seconds_left(self) -> float:
        """Return the seconds until the process has to be ended: 0 or less if that is overdue."""
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ_BYTES)
        whole = len(data) - len(data) % _MOMENT.size
        if whole:
            (self._moment,) = _MOMENT.unpack_from(data, whole - _MOMENT.size)
        return self._moment + LATE_SECONDS - time.monotonic()
