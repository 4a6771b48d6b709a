"""Start programs by the zygote of this installation, and have the zygote started. Standard library only."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from subagent_server.forkserver.client import (
    FAILURES,
    ForkConnection,
    default_directory,
)
from subagent_server.forkserver.installation import ZYGOTE_MODULE, installation_key
from subagent_server.forkserver.protocol import OrderRefused
from subagent_server.host import failpoints, locks, processes
from subagent_server.host.directory import Entry
from subagent_server.host.private_directory import beneath, open_private

if TYPE_CHECKING:
    from subagent_server.forkserver.protocol import Order

PAUSE_SECONDS = 30.0
"""How long this process does without a zygote that has not answered."""
_NOT_YET = "the next start is plain; it has the zygote started"
_ENVIRONMENT_ROOM = 32 << 10
_COMMAND_ROOM = 8 << 10
_FILLER = "SUBAGENT_FILLER"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


class WarmStart:
    """The way to the zygote of this installation.

    `directory` is its private directory, by default that of this user; `idle_seconds` is how long a zygote
    that is started from here stays without work. Every connection has one owner, the `ForkConnection` that
    `connect` returns, and one end, its `close`.
    """

    def __init__(self, directory: Path | None, idle_seconds: float, *, may_spawn: bool = True) -> None:
        self.directory = directory or Path(default_directory())
        self._idle = idle_seconds
        self._may_spawn = may_spawn
        self._silent_until = 0.0
        self._key: str | None = None
        """The key that was right the last time."""

    def connect(self) -> ForkConnection | None:
        """Connect to the zygote, whose child then looks at this process; None if there is no zygote.

        It connects by the key that was right the last time: `go` checks whether it still is.
        """
        if time.monotonic() < self._silent_until or sys.platform != "linux":
            return None
        try:
            self._key = self._key or installation_key()
            return ForkConnection(str(self.directory), self._key)
        except TimeoutError:
            self._is_silent()
        except (OSError, ValueError):
            self._key = None
        return None

    def order(self, connection: ForkConnection, order: "Order", descriptors: Mapping[int, int]) -> bool:
        """Order a program in `/`, with `descriptors` (theirs to ours); False, and closed, if that fails."""
        return self._tried(connection, lambda: connection.order(order, descriptors, cwd="/"))

    def go(self, connection: ForkConnection) -> bool:
        """Let the ordered program begin, and close the connection. Returns False if nothing has begun.

        Nothing begins if the files of this installation are not those any more that the zygote has loaded.
        """
        begun = self._tried(connection, lambda: self._go(connection))
        connection.close()
        return begun

    def _go(self, connection: ForkConnection) -> None:
        self._key = installation_key()  # while the other side gets ready
        if self._key != connection.key:
            raise OrderRefused("a zygote of other files")
        os.close(connection.go())

    def _tried(self, connection: ForkConnection, step: Callable[[], None]) -> bool:
        try:
            step()
            return True
        except TimeoutError:
            self._is_silent()
        except FAILURES:
            pass  # the plain start follows, and says why if it fails too
        connection.close()
        return False

    def _is_silent(self) -> None:
        """Do without the zygote for a while, and kill it if it is stopped."""
        self._silent_until = time.monotonic() + PAUSE_SECONDS
        zygote = self.zygote()
        if zygote is not None and processes.is_stopped(zygote):  # it would be in the way for ever
            processes.send_signal(zygote, signal.SIGKILL)

    # -- having the zygote started

    def spawn(self) -> "subprocess.Popen[bytes] | None":
        """Start the zygote in the background, unless there is one; None if there is no process to collect.

        The returned process only starts the zygote, and exits at once.
        """
        if sys.platform != "linux" or not self._may_spawn:
            return None
        try:
            key = installation_key()
            with _opened(self.directory) as folder:
                if locks.is_held(Entry.at(folder / f"{key}.lock")):
                    return None
                with (folder / f"{key}.log").open("ab") as output:
                    return self._spawned(key, output.fileno())
        except (OSError, ValueError):
            return None

    def _spawned(self, key: str, output: int) -> "subprocess.Popen[bytes]":
        names = (*_PASSED_ON, failpoints.VARIABLE)
        return subprocess.Popen(
            [
                *(sys.executable, "-E", "-P", "-m", ZYGOTE_MODULE),
                *(str(self.directory.absolute()), key, str(self._idle), "-" * _COMMAND_ROOM),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={
                **{name: os.environ[name] for name in names if name in os.environ},
                _FILLER: "-" * _ENVIRONMENT_ROOM,
            },
            cwd="/",
            start_new_session=True,
        )

    def outlook(self) -> str:
        """Say how the next start will be, and why if it is plain."""
        if sys.platform != "linux":
            return "starts are plain: warm ones are for Linux"
        try:
            os.close(open_private(str(self.directory), make=False))
        except FileNotFoundError:
            return _NOT_YET
        except OSError as error:
            why = error.strerror or str(error)
            return f"starts are plain: {why}; mend it, or name another directory in SUBAGENT_RUNTIME_DIR"
        zygote = self.zygote()
        if zygote is None:
            return _NOT_YET
        try:
            with closing(ForkConnection(str(self.directory), installation_key())) as connection:
                connection.wait_until_here()
        except FAILURES as error:
            why = str(error).removeprefix("OrderRefused: ")
            return f"starts are plain: the zygote (pid {zygote.pid}) refuses this process: {why}"
        return f"starts are warm, from process {zygote.pid}"

    def zygote(self) -> processes.Identity | None:
        """Return the zygote of this installation, or None."""
        try:
            with _opened(self.directory) as folder:
                lock = folder / f"{installation_key()}.lock"
                pid = int(lock.read_text(encoding="ascii") or "0") if locks.is_held(Entry.at(lock)) else 0
        except (OSError, ValueError):
            return None
        return processes.identify(pid) if pid else None


@contextmanager
def _opened(directory: Path) -> Iterator[Path]:
    """Open the private directory, and give a path to it that no other directory can take."""
    descriptor = open_private(str(directory))
    try:
        yield Path(beneath(descriptor, ""))
    finally:
        os.close(descriptor)
