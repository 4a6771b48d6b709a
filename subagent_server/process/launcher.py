"""The seam between the decision to start a run and the machine that starts its processes."""

import fcntl
import json
import os
import subprocess
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

from subagent_server.process.shim import order_fork, shim_command
from subagent_server.process.worker_process import WORKER
from subagent_server.process.zygote_client import ForkConnection, WarmStart
from subagent_server.process.zygote_protocol import interpreter_variables
from subagent_server.run import locks, processes, stderr
from subagent_server.run.errors import LaunchFailed, StorageFailed, storing
from subagent_server.run.files import write_all
from subagent_server.run.paths import RunPaths
from subagent_server.run.stderr import failpoint, lack_of_room


@dataclass(frozen=True)
class LaunchPackage:
    """The part of a run that reaches the worker through memory and never through the disk.

    `definition` is the agent with its secrets; `environment` is the whole environment of the worker; `prompt`
    is as the starter wrote it, and `secrets` are the values that are masked on disk.
    """

    definition: dict[str, Any]
    environment: dict[str, str]
    cwd: str
    prompt: str
    secrets: list[str] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    """Slot name to the number of runs that may hold it at once, in the order in which they are taken."""
    after: str | None = None
    """A run whose last process must be gone before the worker begins."""
    script: dict[str, str] | None = None
    """The `name` and `text` of the script that plays the model, if one does."""

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that the shim and the worker read."""
        return dict(vars(self))


class Reservation(Protocol):
    """A held `live.lock`, for a process that does not exist yet."""

    def start(self, package: LaunchPackage) -> None:
        """Start the run's process and hand the run over to it.

        Raises:
            LaunchFailed: no process was started; the lock is released.
        """

    def give_up(self) -> None:
        """Let go of the run without starting it."""


class Start(Protocol):
    """A run that is about to be made."""

    def reserve(self, run: RunPaths) -> Reservation:
        """Hold the run's `live.lock`: from now on a run that is `ready` and unlocked is provably dead.

        Raises:
            StorageFailed: the lock cannot be held.
        """


class Launcher(Protocol):
    """A way of starting the processes of runs. All of them start the same shim."""

    @property
    def kind(self) -> str:
        """The name that the run's meta file records."""

    @property
    def host(self) -> str:
        """The host or the engine that gets its runs."""

    def warm_up(self) -> None:
        """Prepare for later starts in the background, if this launcher can."""

    def reap(self) -> None:
        """Collect the processes that were started here and have ended."""

    def starting(self) -> AbstractContextManager[Start]:
        """Let the machine prepare a process while a run is made; without a reservation it is let go."""


@dataclass(frozen=True)
class Sight:
    """What an engine reports of a run, as advice: one that lost a node knows nothing of what runs there."""

    state: Literal["waiting", "working", "ended", "gone", "silent"]
    """`ended` is a script that ended on a living node; `gone` is on no node that the engine reaches, which
    proves nothing; `silent` is an engine that does not answer."""
    words: str = ""
    """For people: `waits in Slurm (Priority)`, or `Slurm says NODE_FAIL`."""


# -- Start runs as detached processes of this machine: a shim each, in a session of its own.


_PACKAGES = Path(__file__).resolve().parents[2]
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "TZ", stderr.VARIABLE, processes.NODE)


class LocalLauncher:
    """Starts shims and collects them when they end, so a long-lived server has no zombies.

    With `warm`, a shim is a fork of the zygote if there is a zygote. Else the shim is a fresh interpreter,
    and the zygote is started in the background for later runs.
    """

    kind = "local"

    @property
    def host(self) -> str:
        """This host."""
        return processes.host_name()

    def __init__(self, warm: WarmStart | None = None) -> None:
        self.warm = warm
        self._started: list[subprocess.Popen[bytes]] = []

    def starting(self) -> AbstractContextManager[Start]:
        """Connect to the zygote: its child gets ready while the run is made. Raises LaunchFailed."""
        if not Path(__file__).exists():
            raise LaunchFailed(
                "No run can be started, because the files of this program are gone, as amid an upgrade, or "
                "after one to another Python: try again, and if that does not help, start the server anew."
            )
        if not _is_found_by_workers():
            raise LaunchFailed(
                "No run can be started, because PYTHONPATH alone leads to this program, and workers do "
                "without it: install it into an environment, by `uv tool`, `pipx` or `pip` in a venv."
            )
        return closing(LocalStart(self))

    def warm_up(self) -> None:
        """Start the zygote in the background, if it is wanted and missing."""
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
        # 1. Connect before the run is made: meanwhile the child looks at this process.
        self._connection = None if launcher.warm is None else launcher.warm.connect()

    def reserve(self, run: RunPaths) -> "LocalReservation":
        """Take the run's `live.lock`.

        Raises:
            StorageFailed: the lock file cannot be made, or another process holds it.
        """
        # 2. Take the lock before the state is written: a `ready` run whose lock is free is provably dead.
        descriptor = hold(run)
        connection, self._connection = self._connection, None
        return LocalReservation(self._launcher, run, descriptor, connection)

    def close(self) -> None:
        """Close the connection, if nothing was reserved."""
        if self._connection is not None:
            self._connection.close()


class LocalReservation:
    """A held `live.lock`. Closing this copy never unlocks the file: the shim has the same lock.

    A forkable shim has its copy already, and begins at `start`.
    """

    def __init__(
        self, launcher: LocalLauncher, run: RunPaths, lock: int, connection: ForkConnection | None
    ) -> None:
        self.launcher = launcher
        self.run = run
        self.lock = lock
        self._memory: int | None = None
        # 3. Order the shim while the state is written: it gets ready, and waits.
        self._connection = self._ordered(connection)

    def start(self, package: LaunchPackage) -> None:
        """Start the shim with the lock and a memory file that holds the package.

        Raises:
            LaunchFailed: the lock is free again.
        """
        try:
            failpoint("starter.published")
            # 4. Write the package, then let the shim begin: it reads the whole package or has not begun.
            fill(self._memory_file(), package.to_json())
            if not self._goes():
                # 5. Else the plain start. At most one shim begins: the fork has exited, or never will begin.
                self.launcher.adopt(self._spawned())
                self.launcher.warm_up()
        except OSError as error:
            why = lack_of_room(error) or f"{error.strerror or error}: put that right, then start it again."
            raise LaunchFailed(f"The process of run {self.run.run_id} could not be started. {why}") from error
        finally:
            self.give_up()
        failpoint("starter.launched")

    def give_up(self) -> None:
        """Let go of the lock, here and in a shim that has not begun."""
        if self._connection is not None:
            self._connection.close()
        if self._memory is not None:
            os.close(self._memory)
        os.close(self.lock)

    def _memory_file(self) -> int:
        """Return the memory file of the package; the first call makes it. Raises OSError."""
        if self._memory is None:
            self._memory = _above_streams(os.memfd_create("subagent-launch", os.MFD_CLOEXEC))
        return self._memory

    def _ordered(self, connection: ForkConnection | None) -> ForkConnection | None:
        """Order the shim with everything but the package; None, with the connection closed, if that fails."""
        warm = self.launcher.warm
        if warm is None or connection is None:
            return None

        def order() -> None:
            with Path(os.devnull).open("rb") as nothing, self.run.worker_out.appender() as output:
                streams = (nothing.fileno(), output.fileno(), output.fileno())
                directory, environment = str(self.run.directory), _shim_environment()
                order_fork(connection, directory, self.lock, self._memory_file(), streams, environment)

        return connection if warm.tried(connection, order) else None

    def _goes(self) -> bool:
        """Let the ordered shim begin; False if there is none, or it is gone."""
        warm, connection = self.launcher.warm, self._connection
        if warm is None or connection is None:
            return False
        self._connection = None
        return warm.go(connection)

    def _spawned(self) -> "subprocess.Popen[bytes]":
        """The plain start: a fresh interpreter."""
        memory, warm = self._memory_file(), self.launcher.warm
        with self.run.worker_out.appender() as output:
            return subprocess.Popen(
                [
                    *shim_command(str(self.run.directory), self.lock, memory),
                    *([] if warm is None else warm.address()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_shim_environment(),
                cwd="/",
                pass_fds=(self.lock, memory),
                start_new_session=True,
            )


@cache
def _is_found_by_workers() -> bool:
    """Whether a worker will find this package. Its interpreter is asked if PYTHONPATH may lead to it."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if not any(each and Path(each).resolve() == _PACKAGES for each in named):
        return True
    try:
        return not subprocess.call([*WORKER[:3], "-c", f"import {__package__}"], stderr=subprocess.DEVNULL)
    except OSError:  # no room: the start itself reports it
        return True


def hold(run: RunPaths) -> int:
    """Return a descriptor that holds the `live.lock` of a run for the process that will be its shim.

    Raises:
        StorageFailed: the lock file cannot be made, or another process holds it.
    """
    with storing(run.live_lock.path):
        descriptor = locks.take(run.live_lock)
    if descriptor is None:
        raise StorageFailed(run.live_lock.path, "another process holds it")
    descriptor = _above_streams(descriptor)
    failpoint("starter.reserved")
    return descriptor


def _above_streams(descriptor: int) -> int:
    """Return a copy above 2 instead of a descriptor that has the number of a closed stream."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def fill(memory: int, package: dict[str, Any]) -> None:
    """Write the package into a memory file: a pipe would block the starter at a long one."""
    write_all(memory, json.dumps(package).encode("utf-8", "surrogateescape"))


def _shim_environment() -> dict[str, str]:
    named = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**named, **interpreter_variables(os.environ)}
