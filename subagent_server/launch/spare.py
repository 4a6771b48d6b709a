"""A fork of the zygote that is made before anybody asks for one, so that nobody waits for the fork.

It knows nothing but the way to the zygote, by which it gets the connection of whoever asks, and it leaves
when the zygote is gone. Standard library only.
"""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from subagent_server.host.shown import Shown
from subagent_server.launch import handover, image

_YOURS = b"yours"
_COMMAND = ("subagent-spare",)


class Spare:
    """The zygote's end of it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def take(self, connection: socket.socket) -> bool:
        """Let it serve a connection; False where it is gone. Afterwards it is a spare one no more."""
        with self._channel:
            try:
                handover.send(self._channel, _YOURS, [connection.fileno()])
            except OSError:
                return False
        return True


def fork_spare(shown: Shown, live: Callable[[socket.socket], NoReturn]) -> Spare:
    """Fork a process that will `live` on the connection that it is given.

    Raises:
        OSError: there is no room for a process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if os.fork():
            return Spare(ours)
        try:
            live(_wait(shown, theirs))
        finally:
            os._exit(1)
    finally:
        theirs.close()


def _wait(shown: Shown, channel: socket.socket) -> socket.socket:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    image.close_all_but({0, 1, 2, channel.fileno()})  # the lock among them: it is the zygote's alone
    shown.command(_COMMAND)
    with suppress(OSError, handover.Refused), channel:
        (descriptor,) = handover.expect(channel, _YOURS)
        return socket.socket(fileno=descriptor)
    os._exit(0)  # the zygote is gone
