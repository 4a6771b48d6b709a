"""Runs as jobs of Slurm, by its command line: `sbatch` starts, `squeue` is asked, `scancel` ends.

The name of a job is the id of its run, so no id of a job is stored, and a starter that is killed between
`sbatch` and its reply loses nothing. What a run needs reaches its node sealed in the run's directory; the key
alone travels in the job's environment, and opens nothing without the file, which the job removes at once.
Options go by standard input, the environment by a memory file: nothing but its descriptor is in `argv`.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subagent_server.process import beat
from subagent_server.process.launcher import LaunchPackage, Sight, hold
from subagent_server.run.bounded_command import start
from subagent_server.run.errors import LaunchFailed, StorageFailed, visible
from subagent_server.run.host_programs import NoHostProgram, user_program
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import is_run_id
from subagent_server.run.stderr import failpoint

NAME = "Slurm"
SUBMIT_SECONDS = 60.0
ASK_SECONDS = 2.5
"""With slurmctld dead every client blocks for 9 to 10 s; people wait for `ls`, `show` and `stop`."""
KEPT_SECONDS = 2.0
"""A process asks at most so often; after no answer, five times less often."""
_MOST_BYTES = 4 << 20
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF")
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_WORKING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING"})
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED"})
"""States of a script that ended on a living node. NODE_FAIL only says that a node is out of reach."""
_LINE = re.compile(r"([A-Z_]{1,32})\|([^|\n]{0,200})\|([^\n]{0,400})")


@dataclass(frozen=True)
class SlurmLauncher:
    """Submits a job for each run, with checked `options` of sbatch, started by the `python` of the nodes."""

    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    kind = "slurm"
    host = "slurm"

    @property
    def lease(self) -> float:
        """That of the variable `SUBAGENT_LEASE`, else 60 s."""
        return beat.lease_of(self.environment.get(beat.LEASE))

    def warm_up(self) -> None:
        """Do nothing: a fork of a zygote would not be in the job."""

    def reap(self) -> None:
        """Do nothing: no process is started here."""

    def starting(self) -> AbstractContextManager["SlurmLauncher"]:
        """Return itself: nothing can be prepared."""
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "SlurmReservation":
        """Hold the run until Slurm has its job. Raises StorageFailed."""
        return SlurmReservation(self, run, hold(run))


@dataclass(frozen=True)
class SlurmReservation:
    """A held `live.lock`; the job waits for it, then takes it on its node."""

    launcher: SlurmLauncher
    run: RunPaths
    lock: int

    def give_up(self) -> None:
        """Let go of the lock."""
        os.close(self.lock)

    def start(self, package: LaunchPackage) -> None:
        """Submit the job. Raises LaunchFailed: there is none, or its beginning finds the run ended."""
        from subagent_server.process.sealed_package import seal

        try:
            failpoint("starter.published")
            key = seal(self.run, package)
            self._submit(key)
        except (OSError, StorageFailed, NoHostProgram, subprocess.TimeoutExpired, LaunchFailed) as error:
            self.run.sealed.unlink()
            if isinstance(error, LaunchFailed):
                raise
            why = f"it did not answer in {SUBMIT_SECONDS:g} s" if _is_late(error) else str(error)
            raise LaunchFailed(
                f"Slurm did not take run {self.run.run_id} ({why}): `sinfo` says more."
            ) from error
        finally:
            self.give_up()
        failpoint("starter.launched")

    def _submit(self, key: str) -> None:
        given = {name: self.launcher.environment.get(name) for name in ("PATH", "HOME", "LANG", "SLURM_CONF")}
        given |= {"SUBAGENT_PACKAGE_KEY": key, beat.LEASE: f"{self.launcher.lease:g}"}
        memory = os.memfd_create("environment", 0)
        try:
            for name, value in given.items():
                if value:
                    os.write(memory, f"{name}={value}".encode("utf-8", "surrogateescape") + b"\0")
            os.lseek(memory, 0, os.SEEK_SET)
            done = subprocess.run(
                [_program("sbatch"), "--parsable", f"--export-file={memory}"],
                input=self._script().encode("utf-8", "surrogateescape"),
                capture_output=True,
                pass_fds=(memory,),
                env=_environment(),
                timeout=SUBMIT_SECONDS,
                cwd="/",
            )
        finally:
            os.close(memory)
        if done.returncode:
            said = visible(done.stderr.decode("utf-8", "replace").strip())[:300]
            raise LaunchFailed(f"Slurm refused run {self.run.run_id}: {said}")

    def _script(self) -> str:
        options = [f"--job-name={self.run.run_id}", "--no-requeue", "--output=/dev/null", "--chdir=/"]
        output = shlex.quote(str(self.run.worker_out.path))
        command = [self.launcher.python, *START, str(self.run.directory)]
        lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in (*options, *self.launcher.options))]
        return "\n".join([*lines, f"umask 077; exec >>{output} 2>&1", f"exec {shlex.join(command)}", ""])


START = ("-E", "-P", "-m", "subagent_server.process.node_start")
"""Of the interpreter on a node: no variable and no file of a working directory changes its imports."""


# -- What Slurm says. One question for all runs of this user: others may name their jobs as they like.


_asked: dict[str, Any] = {"until": -1.0, "sights": None}


def sight(run_id: str) -> Sight | None:
    """Return what Slurm says of a run; None if Slurm does not answer."""
    if time.monotonic() >= _asked["until"]:
        sights = _sights()
        kept = KEPT_SECONDS if sights is not None else 5 * KEPT_SECONDS
        _asked.update(sights=sights, until=time.monotonic() + kept)
    known: dict[str, Sight] | None = _asked["sights"]
    return None if known is None else known.get(run_id, Sight("absent"))


def _sights() -> dict[str, Sight] | None:
    said = _answer("squeue", "--noheader", "--me", "--states=all", "--format=%j|%T|%N|%r")
    if said is None:
        return None
    found: dict[str, Sight] = {}
    for line in said.splitlines():
        run_id, _, rest = line.partition("|")
        if is_run_id(run_id) and (words := _LINE.fullmatch(rest)) is not None:
            sight = _read(*words.groups())
            if run_id not in found or found[run_id].state in ("ended", "silent"):
                found[run_id] = sight
    return found


def _read(state: str, node: str, reason: str) -> Sight:
    if state in _WAITING:
        return Sight("waiting", visible(reason)[:60])
    kind = "working" if state in _WORKING else "ended" if state in _ENDED else "silent"
    return Sight(kind, state, visible(node))  # type: ignore[arg-type]


def cancel(run_id: str) -> None:
    """Take a job out of the queue, or send TERM to its shim. Not waited for: Slurm may be dead."""
    words = ["scancel", "--quiet", "--me", "--name", run_id]
    both = (*words, "--state=PENDING"), (*words, "--signal=TERM", "--batch")
    try:
        words[0] = _program("scancel")
        script = "; ".join(shlex.join([words[0], *each[1:]]) for each in both)
        _ending[:] = [each for each in _ending if each.poll() is None]  # a server would keep zombies
        _ending.append(
            start(["/bin/sh", "-c", script], 30.0, _environment(), b"", with_starter=False, **_SILENT)
        )
    except (OSError, NoHostProgram):
        return  # its worker reads the end of the run by itself


_ending: "list[subprocess.Popen[bytes]]" = []
_SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def why_ended() -> tuple[str, str] | None:
    """Return why Slurm ends this job, as the code of a failure and a sentence; None if unknown."""
    job = os.environ.get("SLURM_JOB_ID", "")
    said = _answer("squeue", "--noheader", f"--jobs={job}", "--format=%T %r") if job.isdecimal() else None
    if said is None:
        return None
    if "TimeLimit" in said or "TIMEOUT" in said:
        return "timeout", "Slurm's time limit ended the run: raise `time` in `placement`, then continue it."
    if "preempt" in said.lower():
        return "crashed", "Slurm preempted the run for another job: continue it."
    return "crashed", "Its job was cancelled in Slurm: continue it, or start it again."


def _answer(program: str, *words: str) -> str | None:
    """Return what a command of Slurm says, bounded; None if it fails or is late."""
    try:
        done = subprocess.run(
            [_program(program), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_SECONDS,
            env=_environment(),
            cwd="/",
        )
    except (OSError, NoHostProgram, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout[:_MOST_BYTES].decode("utf-8", "replace")


def _program(name: str) -> str:
    return str(user_program(name, os.environ.get("PATH"), [Path.cwd()]))


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def _is_late(error: Exception) -> bool:
    return isinstance(error, subprocess.TimeoutExpired)
