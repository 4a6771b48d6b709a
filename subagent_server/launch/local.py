"""Runs as detached processes of this machine: a shim each, in a session of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import LaunchFailed, StorageFailed
from subagent_server.host import die, locks
from subagent_server.host.processes import SHIM_MARK
from subagent_server.launch.launcher import LaunchPackage
from subagent_server.store.paths import RunPaths

_SHIM = Path(__file__).with_name("shim.py")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "TZ", die.VARIABLE)


class LocalLauncher:
    """Starts shims and collects them when they end, so that a long-lived server keeps no zombies."""

    kind = "local"

    def __init__(self) -> None:
        self._shims: list[subprocess.Popen[bytes]] = []

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

    def adopt(self, shim: "subprocess.Popen[bytes]") -> None:
        """Keep a shim to collect later."""
        self.reap()
        self._shims.append(shim)

    def reap(self) -> None:
        """Collect the shims that have ended."""
        self._shims = [shim for shim in self._shims if shim.poll() is None]


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
                shim = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        str(_SHIM),
                        str(self.run.directory),
                        str(self.lock),
                        str(memory),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_shim_environment(self.run.run_id),
                    cwd="/",
                    pass_fds=(self.lock, memory),
                    start_new_session=True,
                )
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
        self.launcher.adopt(shim)

    def give_up(self) -> None:
        """Let go of the lock."""
        os.close(self.lock)


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
