"""The way to the warm process, for those who start runs: ask it for a fork, or have it started.

Standard library only.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from subagent_server.host import die, locks, processes
from subagent_server.host.private_directory import beneath, open_private
from subagent_server.launch.asking import Wanted, ask, default_directory
from subagent_server.launch.image_key import image_key

PAUSE_SECONDS = 30.0
"""How long this process does without a zygote that has not answered."""
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

    def start(self, wanted: Wanted, descriptors: Mapping[int, int]) -> bool:
        """Have a program started by a fork, in `/`, with `descriptors` (theirs to ours) and nothing else.

        Returns whether it was started; if not, nothing of it is left.
        """
        if time.monotonic() < self._silent_until:
            return False
        try:
            started = ask(str(self.directory), wanted, descriptors, cwd="/")
        except TimeoutError:
            self._silent_until = time.monotonic() + PAUSE_SECONDS
            self._end_if_stopped()
            return False
        if started is None:
            return False
        connection, process = started
        connection.close()
        os.close(process)
        return True

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
                if locks.is_held(folder.path(f"{key}.lock")):
                    return None
                with folder.path(f"{key}.log").open("ab") as output:
                    return self._spawned(key, output.fileno())
        except (OSError, ValueError):
            return None

    def _spawned(self, key: str, output: int) -> "subprocess.Popen[bytes]":
        names = (*_PASSED_ON, die.VARIABLE)
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

    def zygote(self) -> processes.Identity | None:
        """Return the zygote of this installation, or None where there is none."""
        try:
            with closing(_Folder(self.directory)) as folder:
                lock = folder.path(f"{image_key()}.lock")
                pid = int(lock.read_text(encoding="ascii") or "0") if locks.is_held(lock) else 0
        except (OSError, ValueError):
            return None
        return processes.identify(pid) if pid else None

    def _end_if_stopped(self) -> None:
        """One that is stopped (SIGSTOP) would be in the way for ever: it is ended, which harms no run."""
        zygote = self.zygote()
        if zygote is not None and processes.is_stopped(zygote):
            processes.send_signal(zygote, signal.SIGKILL)


class _Folder:
    """The private directory, for as long as it is needed."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = open_private(str(directory))

    def path(self, name: str) -> Path:
        return Path(beneath(self._descriptor, name))

    def close(self) -> None:
        os.close(self._descriptor)
