"""A child that is forked before a starter asks for it, so that no starter waits for the fork.

It waits at its end of a line to the zygote, gets the connection of a starter by it, and exits if the zygote
is gone. Once it serves a starter, its end of the line stays open until the program has begun or the child
has exited: so the zygote learns, without a clock, when to fork the next one. Standard library only.
"""

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from subagent_server.forkserver import protocol
from subagent_server.forkserver.interpreter import close_all_but
from subagent_server.forkserver.proctitle import ProcessTitle

_YOURS = b"yours"
_STREAMS = (0, 1, 2)

Serve = Callable[[socket.socket, socket.socket], NoReturn]
"""The work of a child: it gets the connection of a starter, and its end of the line to the zygote."""


class PreforkedChild:
    """A child that serves the next starter: the zygote's end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def fileno(self) -> int:
        """Return the descriptor of the line: it hangs up when the child needs the cores no more."""
        return self._line.fileno()

    def serve(self, connection: socket.socket) -> bool:
        """Hand the connection of a starter to this child, which is then used up; False if it had died."""
        try:
            protocol.send(self._line, _YOURS, [connection.fileno()])
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the line: a child without a connection exits."""
        self._line.close()


def fork_child(serve: Serve, title: ProcessTitle, command: Sequence[str]) -> PreforkedChild:
    """Fork a child that shows `command` until it has something to `serve`.

    Raises:
        OSError: there is no room for a process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if os.fork():
            return PreforkedChild(ours)
    except OSError:
        ours.close()
        raise
    else:
        try:
            # 1. Have nothing of the zygote: its lock and its socket would outlive it here.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            close_all_but({*_STREAMS, theirs.fileno()})
            ours.detach()
            title.show_command(command)
            # 2. Wait for a connection.
            with suppress(OSError, protocol.OrderRefused):  # the zygote is gone
                (descriptor,) = protocol.expect(theirs, _YOURS)
                # 3. Serve its starter; the line stays open meanwhile.
                serve(socket.socket(fileno=descriptor), theirs)
        finally:
            os._exit(protocol.EXIT_NEVER_BEGUN)
    finally:
        theirs.close()
