"""Runs as detached processes of this machine: a shim each, in a session of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from subagent_server.domain.errors import LaunchFailed, StorageFailed
from subagent_server.host import die, locks
from subagent_server.host.processes import SHIM_MARK
from subagent_server.launch.asking import Wanted
from subagent_server.launch.launcher import LaunchPackage
from subagent_server.launch.warm import WarmStart
from subagent_server.store.paths import RunPaths

_SHIM = Path(__file__).with_name("shim.py")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "TZ", die.VARIABLE)
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

    def reserve(self, run: RunPaths) -> "LocalReservation":
        """Take the run's `live.lock`.

        Raises:
            StorageFailed: the lock file cannot be made, or somebody holds it.
        """
        try:
            descriptor = locks.take(run.live_lock)
        except OSError as error:
            raise StorageFailed(run.live_lock, error.strerror or str(error)) from error
        if descriptor is None:
            raise StorageFailed(run.live_lock, "another process holds it")
        die.may_die("starter.reserved")
        return LocalReservation(self, run, descriptor)

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


@dataclass(frozen=True)
class LocalReservation:
    """A held `live.lock`. Handing it over closes this copy and never unlocks: the shim has the same lock."""

    launcher: LocalLauncher
    run: RunPaths
    lock: int

    def start(self, package: LaunchPackage) -> None:
        """Start the shim with the lock and a sealed memory file.

        Raises:
            LaunchFailed: the lock is free again.
        """
        memory: int | None = None
        try:
            memory = _memory_file(package)
            die.may_die("starter.published")
            with self.run.worker_out.open("ab") as output:
                if not self._forked(memory, output):
                    self.launcher.adopt(self._spawned(memory, output))
                    self.launcher.warm_up()
        except OSError as error:
            raise LaunchFailed(
                f"The process of run {self.run.run_id} could not be started ({error.strerror or error}): "
                "free memory or processes, then start it again."
            ) from error
        finally:
            os.close(self.lock)
            if memory is not None:
                os.close(memory)
        die.may_die("starter.launched")

    def _forked(self, memory: int, output: IO[bytes]) -> bool:
        """Have the warm process fork the shim; False where it does not."""
        if self.launcher.warm is None:
            return False
        command = _command(self.run, _WARM_LOCK, _WARM_MEMORY)
        with Path(os.devnull).open("rb") as nothing:
            number = output.fileno()
            given = {0: nothing.fileno(), 1: number, 2: number, _WARM_LOCK: self.lock, _WARM_MEMORY: memory}
            environment = _shim_environment(self.run.run_id)
            return self.launcher.warm.start(Wanted("shim", command, command[3:], environment), given)

    def _spawned(self, memory: int, output: IO[bytes]) -> "subprocess.Popen[bytes]":
        """The plain start: a fresh interpreter."""
        return subprocess.Popen(
            _command(self.run, self.lock, memory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_shim_environment(self.run.run_id),
            cwd="/",
            pass_fds=(self.lock, memory),
            start_new_session=True,
        )

    def give_up(self) -> None:
        """Let go of the lock."""
        os.close(self.lock)


def _command(run: RunPaths, lock: int, memory: int) -> list[str]:
    return [sys.executable, "-I", "-S", str(_SHIM), str(run.directory), str(lock), str(memory)]


def _memory_file(package: LaunchPackage) -> int:
    """Return a memory file that holds the package. It is filled first: a pipe would block the starter."""
    descriptor = os.memfd_create("subagent-launch", os.MFD_CLOEXEC)
    rest = json.dumps(package.to_json()).encode("utf-8", "surrogateescape")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return descriptor


def _shim_environment(run_id: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**kept, SHIM_MARK: run_id}
