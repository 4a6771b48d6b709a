"""Runs as detached processes of this machine: a shim each, in a session of its own."""

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager, closing
from pathlib import Path

from subagent_server.domain.errors import LaunchFailed, StorageFailed
from subagent_server.host import failpoints, locks
from subagent_server.host.failpoints import failpoint
from subagent_server.launch.asking import Wanted
from subagent_server.launch.launcher import LaunchPackage, Start
from subagent_server.launch.marks import SHIM_FLAGS
from subagent_server.launch.warm import WarmConnection, WarmStart
from subagent_server.store.paths import RunPaths

_SHIM = Path(__file__).with_name("shim.py")
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "TZ",
    failpoints.VARIABLE,
)
_WARM_LOCK, _WARM_MEMORY = 3, 4


class LocalLauncher:
    """Starts shims and collects them when they end, so that a long-lived server keeps no zombies.

    With `warm`, a shim is a fork of the warm process where there is one; else it is a fresh interpreter, and
    the warm process is started in the background for those that come later.
    """

    kind = "local"

    def __init__(self, warm: WarmStart | None = None) -> None:
        self.warm = warm
        self._started: list[subprocess.Popen[bytes]] = []

    def starting(self) -> AbstractContextManager[Start]:
        """Call the warm process: its fork gets ready while the run is made."""
        return closing(LocalStart(self))

    def warm_up(self) -> None:
        """Start the warm process in the background, if it is wanted and not there."""
        starting = None if self.warm is None else self.warm.spawn()
        if starting is not None:
            self.adopt(starting)

    def adopt(self, process: "subprocess.Popen[bytes]") -> None:
        """Keep a process to collect later."""
        self.reap()
        self._started.append(process)

    def reap(self) -> None:
        """Collect the processes that have ended."""
        self._started = [process for process in self._started if process.poll() is None]


class LocalStart:
    """A start that has no run yet."""

    def __init__(self, launcher: LocalLauncher) -> None:
        self._launcher = launcher
        self._connection = None if launcher.warm is None else launcher.warm.connect()

    def reserve(self, run: RunPaths) -> "LocalReservation":
        """Take the run's `live.lock`.

        Raises:
            StorageFailed: the lock file cannot be made, or somebody holds it.
        """
        try:
            descriptor = locks.take(run.live_lock)
        except OSError as error:
            raise StorageFailed(run.live_lock.path, error.strerror or str(error)) from error
        if descriptor is None:
            raise StorageFailed(run.live_lock.path, "another process holds it")
        failpoint("starter.reserved")
        connection, self._connection = self._connection, None
        return LocalReservation(self._launcher, run, descriptor, connection)

    def close(self) -> None:
        """Let the process go that was called, where nothing was reserved for it."""
        if self._connection is not None:
            self._connection.close()


class LocalReservation:
    """A held `live.lock`. Handing it over closes this copy and never unlocks: the shim has the same lock.

    A shim that can be forked has its copy already. It begins when it is told to go.
    """

    def __init__(
        self, launcher: LocalLauncher, run: RunPaths, lock: int, connection: WarmConnection | None
    ) -> None:
        self.launcher = launcher
        self.run = run
        self.lock = lock
        self._ahead = self._ordered(connection)

    def start(self, package: LaunchPackage) -> None:
        """Start the shim with the lock and a memory file that holds the package.

        Raises:
            LaunchFailed: the lock is free again.
        """
        try:
            failpoint("starter.published")
            if not self._is_forked(package):
                self.launcher.adopt(self._spawned(package))
                self.launcher.warm_up()
        except OSError as error:
            raise LaunchFailed(
                f"The process of run {self.run.run_id} could not be started ({error.strerror or error}): "
                "free memory or processes, then start it again."
            ) from error
        finally:
            self.give_up()
        failpoint("starter.launched")

    def _ordered(self, connection: WarmConnection | None) -> "_Fork | None":
        """Give a fork everything but the package; None where there is none."""
        if connection is None:
            return None
        try:
            fork = _Fork(connection)
        except OSError:
            connection.close()
            return None
        command = _command(self.run, _WARM_LOCK, _WARM_MEMORY)
        try:
            with Path(os.devnull).open("rb") as nothing, self.run.worker_out.appender() as output:
                out = output.fileno()
                given = {
                    0: nothing.fileno(),
                    1: out,
                    2: out,
                    _WARM_LOCK: self.lock,
                    _WARM_MEMORY: fork.memory,
                }
                wanted = Wanted("shim", command, command[3:], _shim_environment())
                if connection.order(wanted, given):
                    return fork
        except OSError:  # the plain start meets it too, and says so
            pass
        fork.close()
        return None

    def _is_forked(self, package: LaunchPackage) -> bool:
        """Let the shim begin that is ready; where that cannot, another one, and False where none can."""
        if self._ahead is not None and self._ahead.begin(package):
            return True
        warm = self.launcher.warm
        again = None if warm is None else self._ordered(warm.connect())
        if again is None:
            return False
        try:
            return again.begin(package)
        finally:
            again.close()

    def _spawned(self, package: LaunchPackage) -> "subprocess.Popen[bytes]":
        """The plain start: a fresh interpreter."""
        memory = _memory_file()
        try:
            _fill(memory, package)
            with self.run.worker_out.appender() as output:
                return subprocess.Popen(
                    _command(self.run, self.lock, memory),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_shim_environment(),
                    cwd="/",
                    pass_fds=(self.lock, memory),
                    start_new_session=True,
                )
        finally:
            os.close(memory)

    def give_up(self) -> None:
        """Let go of the lock, here and in the shim that was not told to go."""
        os.close(self.lock)
        if self._ahead is not None:
            self._ahead.close()


class _Fork:
    """A shim that is forked and waits for its package, in a memory file, and for the word to go."""

    def __init__(self, connection: WarmConnection) -> None:
        self.memory = _memory_file()
        self._connection = connection

    def begin(self, package: LaunchPackage) -> bool:
        """Let it begin; False where it is gone. Raises OSError: there is no memory."""
        _fill(self.memory, package)
        return self._connection.go()

    def close(self) -> None:
        """Let go of it; what has begun goes on."""
        self._connection.close()
        os.close(self.memory)


def _command(run: RunPaths, lock: int, memory: int) -> list[str]:
    return [sys.executable, *SHIM_FLAGS, str(_SHIM), str(run.directory), str(lock), str(memory)]


def _memory_file() -> int:
    return os.memfd_create("subagent-launch", os.MFD_CLOEXEC)


def _fill(memory: int, package: LaunchPackage) -> None:
    """Write the package into a memory file, before anybody reads it: a pipe would block the starter."""
    rest = json.dumps(package.to_json()).encode("utf-8", "surrogateescape")
    while rest:
        rest = rest[os.write(memory, rest) :]


def _shim_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
