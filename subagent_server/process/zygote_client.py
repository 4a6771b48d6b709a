"""Start programs by the zygote, and have the zygote started; without one, the caller starts plainly.

Whatever is wrong with the zygote (it is missing, dead, hung, of another version, of another user), nothing is
started, within a bound. Standard library only: a shim imports this module.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from subagent_server.process import zygote_protocol
from subagent_server.process.peer import can_answer, credentials, is_user_outside_boxes
from subagent_server.process.zygote_protocol import (
    Order,
    OrderRefused,
    default_directory,
    interpreter_variables,
    zygote_name,
)
from subagent_server.run import locks, processes, stderr
from subagent_server.run.files import PrivateDirectory

ANSWER_SECONDS = 5.0
"""How long a starter waits for an answer. After that a plain shim starts, and waits instead of it."""
PATIENT_SECONDS = 300.0
"""How long that shim waits for a zygote that lives: two cores fork a thousand runs in that time."""
SILENT_SECONDS = 2.0
"""After this long without an answer the zygote has to be neither stopped nor dead."""
PAUSE_SECONDS = 30.0
"""How long this process does without a zygote that has not answered."""
MOST_ZYGOTES = 3
"""For each user and installation; one takes some 60 MiB."""
FAILURES = (OSError, ValueError, OrderRefused)
"""The exceptions of a zygote that cannot start a program. The plain start follows."""
ZYGOTE_MODULE = "subagent_server.worker.zygote_main"
_LONGEST_SECRET, _LONGEST_PID = 64, 20
"""In bytes."""
_NOT_YET = "the next start is plain, and starts the zygote"
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", stderr.VARIABLE)
# A fork shows its own command line and environment in the memory of the zygote's: these make room for them.
_COMMAND_ROOM = "-" * (8 << 10)
_ENVIRONMENT_ROOM = {"SUBAGENT_FILLER": "-" * (32 << 10)}


class ForkConnection:
    """The owner of a connection to a child that has nothing to do yet.

    Making one connects and sends the secret that lies next to the socket: a confined program can reach a
    socket although it may not read files. Until `go` nothing begins, and `close` ends the child. A method
    that raises one of `FAILURES` leaves a connection that can only be closed. One that `is_patient` also
    connects to a zygote that has not loaded everything yet, and waits longer: among hundreds of other starts
    an answer takes long.

    Raises:
        OSError, ValueError: there is no zygote, or its directory is not to be trusted.
    """

    def __init__(self, directory: Path, name: str, *, is_patient: bool = False) -> None:
        self.name = name
        self._patience = PATIENT_SECONDS if is_patient else ANSWER_SECONDS
        self._may_hold = False
        """Whether the child may have descriptors of an order, and has not begun."""
        self._socket = zygote_protocol.new_socket()
        try:
            folder = PrivateDirectory(directory)
            secret = folder.entry(f"{name}.secret").read(_LONGEST_SECRET)
            self._socket.settimeout(SILENT_SECONDS)
            try:
                self._socket.connect(folder.address(f"{name}.{'loading' if is_patient else 'sock'}"))
            except FileNotFoundError:
                if not is_patient:
                    raise
                self._socket.connect(folder.address(f"{name}.sock"))  # it has loaded
            # an order comes with the root directory of this process, from which a box must be kept
            if not is_user_outside_boxes(self._socket):
                raise PermissionError(errno.EPERM, "a program in a box listens instead of the zygote")
            self._socket.send(secret)
        except BaseException:
            self._socket.close()
            raise

    def order(
        self,
        program: str,
        command: list[str],
        arguments: list[str],
        environment: Mapping[str, str],
        descriptors: Mapping[int, int],
    ) -> None:
        """Order a program in `/` with `descriptors` (theirs to ours) and nothing else."""
        order: Order = {
            "program": program,
            "command": command,
            "arguments": arguments,
            "environment": dict(environment),
            "umask": zygote_protocol.umask(),
            "targets": list(descriptors),
        }
        self.wait_until_here()
        self._may_hold = True
        zygote_protocol.send_order(self._socket, order, list(descriptors.values()))

    def wait_until_here(self) -> None:
        """Wait until a child has looked at this process and takes its order."""
        self._expect(zygote_protocol.HERE)

    def go(self) -> None:
        """Wait until the child is ready, and let the program begin."""
        self._expect(zygote_protocol.READY)
        self._socket.send(zygote_protocol.GO)
        self._may_hold = False

    def close(self) -> None:
        """Close the connection, once nothing of the order is held by a child that has not begun."""
        if self._may_hold:
            self._may_hold = False
            try:
                self._socket.shutdown(socket.SHUT_WR)
                while self._socket.recv(4096):
                    pass
            except OSError:
                pass  # the child is gone, or stopped
        self._socket.close()

    def _expect(self, word: bytes) -> None:
        """Wait for a word. Raises TimeoutError: the zygote is stopped or dead, or the answer is overdue."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return zygote_protocol.expect(self._socket, word)
            except TimeoutError:
                if time.monotonic() >= deadline or not can_answer(credentials(self._socket)[0]):
                    raise


class WarmStart:
    """The way to the zygote whose forks are like children of this process.

    `directory` is its private directory, by default that of this user; `idle_seconds` is how long a zygote
    that is started from here stays without work. Every connection has one owner, the `ForkConnection` that
    `connect` returns, and one end, its `close`.
    """

    def __init__(self, directory: Path | None, idle_seconds: float, *, may_spawn: bool = True) -> None:
        self.directory = directory or default_directory()
        self._idle = idle_seconds
        self._may_spawn = may_spawn
        self._silent_until = 0.0
        self._name: str | None = None
        """The name that was right the last time."""
        self._has_spawned = False

    def connect(self) -> ForkConnection | None:
        """Connect to the zygote, whose child then looks at this process; None if there is no zygote.

        It connects by the name that was right the last time: `go` checks whether it still is.
        """
        if time.monotonic() < self._silent_until:
            return None
        try:
            self._name = self._name or zygote_name()
            return ForkConnection(self.directory, self._name)
        except TimeoutError:
            self._is_silent()
        except (OSError, ValueError):
            self._name = None
        return None

    def tried(self, connection: ForkConnection, step: Callable[[], None]) -> bool:
        """Do a step of a start; False, and the connection closed, if the zygote cannot do it."""
        try:
            step()
            return True
        except TimeoutError:
            self._is_silent()
        except FAILURES:
            pass  # the plain start follows, and reports why if it fails too
        connection.close()
        return False

    def go(self, connection: ForkConnection) -> bool:
        """Let the ordered program begin, and close the connection. Returns False if nothing has begun.

        Nothing begins if the files of this installation are not those any more that the zygote has loaded.
        """

        def checked() -> None:
            self._name = zygote_name()  # while the other side gets ready
            if self._name != connection.name:
                raise OrderRefused("a zygote of other files")
            connection.go()

        begun = self.tried(connection, checked)
        connection.close()
        return begun

    def _is_silent(self) -> None:
        """Do without the zygote for a while, and kill it if it is stopped."""
        self._silent_until = time.monotonic() + PAUSE_SECONDS
        zygote = self.zygote()
        if zygote is not None and processes.is_stopped(zygote):  # it would block others for ever
            processes.send_signal(zygote, signal.SIGKILL)

    # -- having the zygote started

    def spawn(self) -> "subprocess.Popen[bytes] | None":
        """Start the zygote in the background, unless there is one; None if there is no process to collect.

        The zygote inherits from this process what its forks have to share with it. The returned process only
        starts the zygote, and exits at once.
        """
        if not self._may_spawn:
            return None
        try:
            name = zygote_name()
            folder = PrivateDirectory(self.directory)
            locked = (each for each in folder.names() if each.endswith(".lock"))
            held = [each.removesuffix(".lock") for each in locked if locks.is_held(folder.entry(each))]
            of_this_installation = [each for each in held if each.split("-")[0] == name.split("-")[0]]
            if name in held or len(of_this_installation) >= MOST_ZYGOTES:
                return None
            arguments = [str(self.directory.absolute()), name, str(self._idle), _COMMAND_ROOM]
            passed_on = {each: os.environ[each] for each in _PASSED_ON if each in os.environ}
            with folder.entry(f"{name}.log").appender() as output:
                process = subprocess.Popen(
                    [sys.executable, "-E", "-P", "-m", ZYGOTE_MODULE, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**passed_on, **interpreter_variables(os.environ), **_ENVIRONMENT_ROOM},
                    cwd="/",
                    start_new_session=True,
                )
            self._has_spawned = True
            return process
        except (OSError, ValueError):
            return None

    def address(self) -> list[str]:
        """Return directory and name of a zygote that was begun, for a plain shim that waits for it.

        The shim of the very start that has the zygote begun gets none: by itself it is ready sooner.
        """
        if not (self._has_spawned or self.zygote()):
            return []
        try:
            return [str(self.directory.absolute()), zygote_name()]
        except OSError:
            return []

    def outlook(self) -> str:
        """Return how the next start will be, and why if it is plain."""
        try:
            PrivateDirectory(self.directory, make=False).names()
        except FileNotFoundError:
            return _NOT_YET
        except OSError as error:
            why = error.strerror or str(error)
            return f"starts are plain: {why}; fix it, or name another directory in SUBAGENT_RUNTIME_DIR"
        zygote = self.zygote()
        if zygote is None:
            return _NOT_YET
        try:
            with closing(ForkConnection(self.directory, zygote_name())) as connection:
                connection.wait_until_here()
        except FileNotFoundError:  # the name of its socket comes last, once it has loaded
            return f"starts are plain until the zygote (pid {zygote.pid}) listens"
        except FAILURES as error:
            why = str(error).removeprefix("OrderRefused: ")
            return f"starts are plain: the zygote (pid {zygote.pid}) refuses this process: {why}"
        return f"starts are warm, from process {zygote.pid}"

    def zygote(self) -> processes.Identity | None:
        """Return the zygote for this process, or None."""
        try:
            lock = PrivateDirectory(self.directory).entry(f"{zygote_name()}.lock")
            pid = int(lock.read(_LONGEST_PID) or b"0") if locks.is_held(lock) else 0
        except (OSError, ValueError):
            return None
        return processes.identify(pid) if pid else None
