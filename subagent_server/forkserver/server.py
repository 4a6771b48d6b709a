"""The zygote: listens in a private directory, and forks a child for each starter that connects.

It has one thread, no event loop, and no descriptor but its socket, its lock, its output and the lines to its
children. It reads no order, because the child does. Standard library only.
"""

import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from subagent_server.forkserver.child import Child, ForkedProgram
from subagent_server.forkserver.installation import installation_key
from subagent_server.forkserver.prefork import PreforkedChild, fork_child
from subagent_server.forkserver.proctitle import ProcessTitle
from subagent_server.host import failpoints, locks
from subagent_server.host.directory import Entry
from subagent_server.host.failpoints import failpoint
from subagent_server.host.peer import credentials
from subagent_server.host.private_directory import beneath, open_private, write_secret
from subagent_server.host.stderr import log

TICK_SECONDS = 2.0
"""How often it checks whether it is still wanted."""
STUCK_SECONDS = 60
"""A zygote that has not come round for so long is stuck, and the alarm ends it."""
SECRET_BYTES = 32
PREFORKED_COMMAND = ("subagent-spare",)
"""The command line of a child that has no starter yet."""
_KEPT_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", failpoints.VARIABLE)


class Zygote:
    """The fork server of one key: the process that holds the lock of this key in `directory`."""

    def __init__(self, directory: Path, key: str, idle_seconds: float) -> None:
        self._folder = open_private(str(directory), make=False)
        self._key = key
        self._idle = idle_seconds
        self._name = beneath(self._folder, f"{key}.sock")
        self._secret = os.urandom(SECRET_BYTES)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._inode = 0
        self._title = ProcessTitle()
        self._next: PreforkedChild | None = None
        """The child for the next starter."""
        self._starting: dict[int, PreforkedChild] = {}
        """Children whose programs have not begun, by descriptor."""
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._title.set_environment(kept)
        self._title.show_command(sys.orig_argv[:-1])

    # -- becoming the one

    def take_place(self) -> bool:
        """Become the zygote of this key. Returns False if there is one."""
        lock = locks.take(Entry.at(Path(beneath(self._folder, f"{self._key}.lock"))))
        if lock is None or not os.fstat(lock).st_nlink:  # held, or just removed as a dead one's
            return False
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._remove_leftovers()
        return True

    def _remove_leftovers(self) -> None:
        """Remove the files of dead zygotes: all those of other keys, and directories of this one."""
        folder = Path(beneath(self._folder, ""))
        for lock in folder.glob("*.lock"):
            is_own = lock.stem == self._key
            held = None if is_own else locks.take(Entry.at(lock))
            for path in folder.glob(f"{lock.stem}.*") if is_own or held is not None else ():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif not is_own:
                    path.unlink(missing_ok=True)
            if held is not None:
                os.close(held)

    def listen(self) -> None:
        """Write the secret, then open the socket."""
        with suppress(FileNotFoundError):
            os.unlink(self._name)  # noqa: PTH108 - the name of a descriptor, not of a path
        write_secret(self._folder, f"{self._key}.secret", self._secret)
        before = os.umask(0o177)
        self._listener.bind(self._name)
        os.umask(before)
        self._inode = os.stat(self._name).st_ino  # noqa: PTH116
        self._listener.listen(1024)
        self._listener.setblocking(False)

    # -- serving

    def serve(self, programs: Mapping[str, ForkedProgram]) -> None:
        """Serve starters, until none has come for long or this is no longer the installed version."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children
        last = time.monotonic()
        tick = min(TICK_SECONDS, self._idle / 2)
        can_fork = True
        while True:
            signal.alarm(STUCK_SECONDS)
            # The order of the cases: a waiting starter comes first. The next child is forked only while no
            # start is on its way: starter and child need the cores, and a machine may have two.
            wants_fork = self._next is None and not self._starting and can_fork
            comes = self._poll(0 if wants_fork else tick)
            if comes:
                last = time.monotonic()
                self._accept(programs)
                can_fork = True
            elif wants_fork:
                self._next = self._forked(programs)
                can_fork = self._next is not None  # if there is no room, try again after a tick
            elif comes is None:
                can_fork = True
                if time.monotonic() - last >= self._idle or not self._is_current():
                    return

    def leave(self) -> None:
        """Let no starter come any more."""
        with suppress(OSError):
            if os.stat(self._name).st_ino == self._inode:  # noqa: PTH116
                os.unlink(self._name)  # noqa: PTH108

    def _poll(self, seconds: float) -> bool | None:
        """Wait for an event; return whether a starter has come, and None if there was no event.

        A line that hangs up belongs to a child whose program has begun, or that has exited.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        for line in self._starting:
            poll.register(line, 0)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        for descriptor in ready:
            if (child := self._starting.pop(descriptor, None)) is not None:
                child.close()
        return self._listener.fileno() in ready if ready else None

    def _accept(self, programs: Mapping[str, ForkedProgram]) -> None:
        with suppress(OSError):  # the starter has not waited, or there is no descriptor left for now
            connection, _ = self._listener.accept()
            with connection:
                if credentials(connection)[1] == os.getuid():
                    self._hand_over(connection, programs)

    def _hand_over(self, connection: socket.socket, programs: Mapping[str, ForkedProgram]) -> None:
        """Hand a connection to the pre-forked child; if that is used up or was killed, to one forked now."""
        failpoint("zygote.asked")
        child, self._next = self._next, None
        if child is None or not child.serve(connection):
            child = self._forked(programs)
            if child is not None and not child.serve(connection):
                child = None
        if child is not None:
            self._starting[child.fileno()] = child
        failpoint("zygote.forked")

    def _forked(self, programs: Mapping[str, ForkedProgram]) -> PreforkedChild | None:
        if threading.active_count() != 1:
            log("The zygote exits: a thread has been started in it.")
            os._exit(1)

        def serve(connection: socket.socket, line: socket.socket) -> NoReturn:
            Child(connection, line, self._title, self._secret).live(programs)

        try:
            return fork_child(serve, self._title, PREFORKED_COMMAND)
        except OSError as error:  # no room for a process: the starter reads the end of its connection
            log(f"No process could be forked: {error}")
            return None

    def _is_current(self) -> bool:
        try:
            return os.stat(self._name).st_ino == self._inode and installation_key() == self._key  # noqa: PTH116
        except OSError:
            return False


def detach() -> None:
    """Detach this process from its starter, with the signals of a fresh program."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if os.fork():
        os._exit(0)
