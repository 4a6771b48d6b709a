"""The way to the warm process, for those who start runs: ask it for a fork, or have it started.

Standard library only.
"""

import os
import signal
import subprocess
import sys
import time
from _socket import SHUT_WR
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from subagent_server.host import failpoints, locks, processes
from subagent_server.host.directory import Entry
from subagent_server.host.private_directory import beneath, open_private
from subagent_server.launch import handover
from subagent_server.launch.asking import (
    FAILURES,
    Wanted,
    connected,
    default_directory,
    give_order,
    tell_to_go,
)
from subagent_server.launch.image_key import Installation, image_key

if TYPE_CHECKING:
    from _socket import socket as Socket

PAUSE_SECONDS = 30.0
"""How long this process does without a zygote that has not answered."""
_NOT_YET = "the next start is plain; it has the warm process started"
_ENVIRONMENT_ROOM = 32 << 10
_COMMAND_ROOM = 8 << 10
_FILLER = "SUBAGENT_FILLER"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


class WarmStart:
    """Asks the zygote of this installation.

    `directory` is where it is, by default the one of this user; `idle_seconds` is how long it stays.
    """

    def __init__(self, directory: Path | None, idle_seconds: float, *, may_spawn: bool = True) -> None:
        self.directory = directory or Path(default_directory())
        self._idle = idle_seconds
        self._may_spawn = may_spawn
        self._silent_until = 0.0
        self._installation: Installation | None = None

    def connect(self) -> "WarmConnection | None":
        """Call the warm process, which makes a fork of it look at this one; None where there is none.

        It is called by the key that was right the last time: `go` looks whether it still is.
        """
        if time.monotonic() < self._silent_until or sys.platform != "linux":
            return None
        try:
            found = self._installation = self._installation or Installation()
            return WarmConnection(self, found.key, connected(str(self.directory), found.key))
        except TimeoutError:
            self.does_not_answer()
        except (OSError, ValueError):
            self._installation = None
        return None

    def is_right(self, key: str) -> bool:
        """Whether it is the key of the files as they are now. Raises OSError."""
        found = self._installation
        if found is None or not found.is_as_it_was():
            found = self._installation = Installation()
        return found.key == key

    def does_not_answer(self) -> None:
        """Do without the warm process for a while, and end it if it is stopped."""
        self._silent_until = time.monotonic() + PAUSE_SECONDS
        self._end_if_stopped()

    # -- having it started

    def spawn(self) -> "subprocess.Popen[bytes] | None":
        """Start the zygote in the background, unless there is one; None where there is nothing to collect.

        What is returned only starts it and ends at once.
        """
        if sys.platform != "linux" or not self._may_spawn:
            return None
        try:
            key = image_key()
            with closing(_Folder(self.directory)) as folder:
                if locks.is_held(Entry.at(folder.path(f"{key}.lock"))):
                    return None
                with folder.path(f"{key}.log").open("ab") as output:
                    return self._spawned(key, output.fileno())
        except (OSError, ValueError):
            return None

    def _spawned(self, key: str, output: int) -> "subprocess.Popen[bytes]":
        names = (*_PASSED_ON, failpoints.VARIABLE)
        return subprocess.Popen(
            [
                *(sys.executable, "-E", "-P", "-m", "subagent_server.launch.zygote"),
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
            with closing(connected(str(self.directory), image_key())) as connection:
                handover.expect(connection, handover.HERE)
        except FAILURES as error:
            why = str(error).removeprefix("Refused: ")
            return f"starts are plain: the warm process (pid {zygote.pid}) refuses this one: {why}"
        return f"starts are warm, from process {zygote.pid}"

    def zygote(self) -> processes.Identity | None:
        """Return the zygote of this installation, or None where there is none."""
        try:
            with closing(_Folder(self.directory)) as folder:
                lock = folder.path(f"{image_key()}.lock")
                pid = int(lock.read_text(encoding="ascii") or "0") if locks.is_held(Entry.at(lock)) else 0
        except (OSError, ValueError):
            return None
        return processes.identify(pid) if pid else None

    def _end_if_stopped(self) -> None:
        """One that is stopped (SIGSTOP) would be in the way for ever: it is ended, which harms no run."""
        zygote = self.zygote()
        if zygote is not None and processes.is_stopped(zygote):
            processes.send_signal(zygote, signal.SIGKILL)


class WarmConnection:
    """A way to a fork of the warm process that has nothing to do yet; `key` is what it was called by.

    Whatever goes wrong, it is closed then: the fork leaves, and nothing that came with the order is held.
    """

    def __init__(self, warm: WarmStart, key: str, connection: "Socket") -> None:
        self._warm = warm
        self._key = key
        self._connection = connection
        self._has_order = False

    def order(self, wanted: Wanted, descriptors: Mapping[int, int]) -> bool:
        """Order a program in `/`, with `descriptors` (theirs to ours) and nothing else; False if it fails."""
        self._has_order = self._tried(lambda: self._order(wanted, descriptors))
        return self._has_order

    def _order(self, wanted: Wanted, descriptors: Mapping[int, int]) -> None:
        order = wanted.order(list(descriptors), leashed=False)
        give_order(self._connection, order, list(descriptors.values()), cwd="/")

    def go(self) -> bool:
        """Let it begin that was ordered, and leave it alone; False where nothing has begun.

        Nothing begins where the files of this installation are not those any more that it has loaded.
        """
        begun = self._tried(self._go)
        if begun:
            self._has_order = False
            self.close()
        return begun

    def _go(self) -> None:
        if not self._warm.is_right(self._key):  # looked at while the other side gets ready
            raise handover.Refused("an image of other files")
        os.close(tell_to_go(self._connection))

    def close(self) -> None:
        """Let go of it. What has not begun by now never will, and holds no more what came with its order."""
        if self._has_order:
            self._has_order = False
            with suppress(OSError):
                self._connection.shutdown(SHUT_WR)
                while self._connection.recv(4096):
                    pass
        self._connection.close()

    def _tried(self, step: Callable[[], None]) -> bool:
        try:
            step()
            return True
        except TimeoutError:
            self._warm.does_not_answer()
        except FAILURES:
            pass
        self.close()
        return False


class _Folder:
    """The private directory, for as long as it is needed."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = open_private(str(directory))

    def path(self, name: str) -> Path:
        return Path(beneath(self._descriptor, name))

    def close(self) -> None:
        os.close(self._descriptor)
