"""Runs on a host of the user's own `ssh` configuration that shares the runs root: the same shim and verdicts.

`ssh HOST` starts the shim there in a session of its own, and leaves. What the run needs goes by standard
input, and nothing but the run's directory is in a command line. A run there is ended by its files: its worker
sees within 2 s that it was stopped.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from subagent_server.process import beat
from subagent_server.process.launcher import LaunchPackage, hold
from subagent_server.run.errors import LaunchFailed, visible
from subagent_server.run.host_programs import NoHostProgram, user_program
from subagent_server.run.paths import RunPaths
from subagent_server.run.stderr import failpoint

CONNECT_SECONDS = 15
START_SECONDS = 60.0
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK")
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"),
    *("-o", "ForwardAgent=no", "-o", "ClearAllForwardings=yes"),
)


@dataclass(frozen=True)
class SshLauncher:
    """Starts runs on `host`, a name of the user's `ssh` configuration, which was checked to be no option."""

    host: str
    environment: Mapping[str, str]
    kind = "ssh"

    @property
    def lease(self) -> float:
        """That of the variable `SUBAGENT_LEASE`, else 60 s."""
        return beat.lease_of(self.environment.get(beat.LEASE))

    def warm_up(self) -> None:
        """Do nothing: there is nothing to keep warm."""

    def reap(self) -> None:
        """Do nothing: `ssh` is waited for."""

    def starting(self) -> AbstractContextManager["SshLauncher"]:
        """Return itself: nothing can be prepared."""
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "SshReservation":
        """Hold the run until the host has taken it over. Raises StorageFailed."""
        return SshReservation(self, run, hold(run))


@dataclass(frozen=True)
class SshReservation:
    """A held `live.lock`: the shim waits for it on its host."""

    launcher: SshLauncher
    run: RunPaths
    lock: int

    def give_up(self) -> None:
        """Let go of the lock."""
        os.close(self.lock)

    def start(self, package: LaunchPackage) -> None:
        """Start the shim. Raises LaunchFailed: it could not be, or its beginning finds the run ended."""
        from subagent_server.process.slurm import START

        output = shlex.quote(str(self.run.worker_out.path))
        lease = f"{beat.LEASE}={self.launcher.lease:g}"
        start = shlex.join(["env", lease, sys.executable, *START, str(self.run.directory), "--detach"])
        try:
            failpoint("starter.published")
            ssh = user_program("ssh", os.environ.get("PATH"), [Path.cwd()])
            done = subprocess.run(
                [str(ssh), *_OPTIONS, "--", self.launcher.host, f"umask 077; exec {start} 2>>{output}"],
                input=json.dumps(package.to_json()).encode("utf-8", "surrogateescape"),
                capture_output=True,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                timeout=START_SECONDS,
                cwd="/",
            )
        except (OSError, NoHostProgram, subprocess.TimeoutExpired) as error:
            raise self._failed(str(error)) from error
        finally:
            self.give_up()
        if done.returncode:
            raise self._failed(done.stderr.decode("utf-8", "replace").strip() or "it shares no runs root")
        failpoint("starter.launched")

    def _failed(self, why: str) -> LaunchFailed:
        host = self.launcher.host
        return LaunchFailed(
            f"Run {self.run.run_id} could not be started on {host} ({visible(why)[:300]}): "
            f"`ssh {host} ls {self.run.directory.parent}` must show the runs."
        )
