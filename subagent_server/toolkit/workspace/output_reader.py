"""The output of a shell or a program, read by a thread as it comes, so that nobody waits for a reader."""

import fcntl
import os
import select
import struct
import termios
import threading
from collections.abc import Callable

from subagent_server.toolkit.workspace.output import OutputCapture

_CHUNK = 1 << 16


class OutputReader:
    """Reads a pipe into captures until its end, or until `close`. It owns the descriptor once it is made."""

    def __init__(self, descriptor: int, new_capture: Callable[[], OutputCapture]) -> None:
        """Raise OSError or RuntimeError: there is no room in the machine; then the descriptor stays open."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._new_capture = new_capture
        self._capture = new_capture()
        self._lock = threading.Lock()  # of the capture and of reading into it
        self._wake, self._wake_end = os.pipe()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._wake)
            os.close(self._wake_end)
            raise

    def take(self) -> OutputCapture:
        """Return all that was printed until now, since the last time."""
        with self._lock:
            self._absorb_pending()
            taken, self._capture = self._capture, self._new_capture()
        return taken

    def close(self) -> None:
        """Read what is in the pipe now, and nothing later. `take` works afterwards."""
        os.close(self._wake_end)
        self._thread.join()
        with self._lock:
            self._absorb_pending()
            os.close(self._wake)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        open_ended = True
        while open_ended:
            if self._wake in {descriptor for descriptor, _ in poller.poll()}:
                return
            with self._lock:
                open_ended = self._absorb(_CHUNK)

    def _absorb(self, limit: int) -> bool:
        try:
            chunk = os.read(self._descriptor, limit)
        except BlockingIOError:
            return True
        self._capture.write(chunk)
        return bool(chunk)

    def _absorb_pending(self) -> None:
        """Read the bytes in the pipe now, and no more: a background job may go on printing for ever."""
        if self._descriptor < 0:
            return
        (pending,) = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))
        until = self._capture.total + pending
        while self._capture.total < until and self._absorb(min(_CHUNK, until - self._capture.total)):
            pass
