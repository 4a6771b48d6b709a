"""The output of a program, read by a thread as it comes, so that no program waits for a reader."""

import fcntl
import os
import select
import struct
import termios
import threading

from subagent_server.toolkit.workspace.output import OutputCapture

_CHUNK = 1 << 16


class OutputReader:
    """Reads a pipe into a capture until its end, or until `finish`."""

    def __init__(self, descriptor: int, capture: OutputCapture) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._capture = capture
        self._wake, self._wake_end = os.pipe()
        self._thread = threading.Thread(target=self._read, name="program-output", daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Return the text for the model. What is in the pipe now belongs to it, and nothing later."""
        os.close(self._wake_end)
        self._thread.join()
        (pending,) = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))
        until = self._capture.total + pending
        while self._capture.total < until and self._absorb(min(_CHUNK, until - self._capture.total)):
            pass
        os.close(self._wake)
        os.close(self._descriptor)
        return self._capture.finish()

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            if self._wake in {descriptor for descriptor, _ in poller.poll()}:
                return
            if not self._absorb(_CHUNK):
                return

    def _absorb(self, limit: int) -> bool:
        try:
            chunk = os.read(self._descriptor, limit)
        except BlockingIOError:
            return True
        self._capture.write(chunk)
        return bool(chunk)
