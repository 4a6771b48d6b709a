"""Runs as jobs of Slurm, by its command line: `sbatch` starts, `squeue` is asked, `scancel` ends.

The name of a job is the id of its run, so no id of a job is stored, and a starter that is killed between
`sbatch` and its reply loses nothing. Options go by standard input, the environment by a memory file: nothing
but its descriptor is in `argv`. Slurm keeps the environment of a job: of a run, only the key is in it.
"""

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import DEVNULL, Popen
from typing import Any

from subagent_server.process.launcher import Sight
from subagent_server.process.remote import KEY, NoAnswer, RemoteLauncher, call, passed_on, path_of
from subagent_server.run.bounded_command import start
from subagent_server.run.errors import visible
from subagent_server.run.files import held_open, in_memory
from subagent_server.run.host_programs import NoHostProgram
from subagent_server.run.paths import RunPaths
from subagent_server.run.states import is_run_id

ASK_SECONDS = 2.5
"""With slurmctld dead every client blocks for 9 to 10 s; people wait for `ls`, `show` and `stop`."""
KEPT_SECONDS = 2.0
"""A process asks at most so often; after no answer, five times less often."""
_WAITING = frozenset(
    {
        *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
        *("SUSPENDED", "STOPPED"),  # without a heartbeat or a fence, and it will act again
    }
)
_WORKING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})
_ENDED = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
"""What a node reports of a script that ended there. All other ends are Slurm's own report: `CANCELLED` came
of a job on a node that it gave up, where the run still acted, 26 s after the cut and with a lease of 60 s."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_CHECK = "subagent-check"


@dataclass(frozen=True)
class SlurmLauncher(RemoteLauncher):
    """Submits a job for each run, with checked `options` of sbatch."""

    options: Sequence[str] = ()
    kind = "slurm"
    refusal = "Slurm did not take it ({why}): `sinfo` says more."

    def submit(self, run: RunPaths, key: str) -> None:
        """Submit the job. Raises NoAnswer."""
        words = self.module("process.node_start", str(run.directory))
        command = f"exec {shlex.join(words)} >>{shlex.quote(str(run.worker_out.path))} 2>&1"
        try:
            self._sbatch([f"--job-name={run.run_id}"], command, {KEY: key})
        except NoAnswer:
            cancel(run.run_id)  # a controller that answers too late has taken the job all the same
            raise

    def nodes(self) -> list[str]:
        """Return the names of its nodes. Raises NoAnswer."""
        found = call("sinfo", "--noheader", "--Node", "--format=%N", seconds=4 * ASK_SECONDS)
        return sorted(set(filter(_NODE.fullmatch, found.split())))

    def execute(self, node: str, words: Sequence[str]) -> None:
        """Submit a job that executes a command on a node. Raises NoAnswer."""
        self._sbatch([f"--job-name={_CHECK}", f"--nodelist={node}"], f"exec {shlex.join(words)}", {})

    def withdraw(self) -> None:
        """Cancel the jobs of `execute` that have not begun."""
        cancel(_CHECK)

    def _sbatch(self, more: Sequence[str], command: str, variables: Mapping[str, str]) -> None:
        options = ["--no-requeue", "--output=/dev/null", "--chdir=/", *more, *self.options]
        script = "\n".join(["#!/bin/sh", *(f"#SBATCH {option}" for option in options), command, ""])
        pairs = "".join(f"{name}={value}\0" for name, value in {**passed_on(), **variables}.items())
        with held_open(in_memory(pairs.encode("utf-8", "surrogateescape"))) as memory:
            content = script.encode("utf-8", "surrogateescape")
            call("sbatch", "--parsable", f"--export-file={memory}", stdin=content, passes=(memory,))


# -- What Slurm reports. One question for all runs of this user: others may name their jobs as they like.


_asked: dict[str, Any] = {"until": -1.0, "sights": None}


def sight(run_id: str) -> Sight:
    """Return what Slurm reports of a run."""
    if time.monotonic() >= _asked["until"]:
        sights = _sights()
        kept = KEPT_SECONDS if sights is not None else 5 * KEPT_SECONDS
        _asked.update(sights=sights, until=time.monotonic() + kept)
    known: dict[str, Sight] | None = _asked["sights"]
    if known is None:
        return Sight("silent", "Slurm does not answer")
    return known.get(run_id, Sight("gone", "Slurm says nothing of it"))


def _sights() -> dict[str, Sight] | None:
    # without --all it omits jobs in a hidden partition, which would count as lost
    output = _answer("--all", "--me", "--states=all", "--format=%j|%T|%r")
    if output is None:
        return None
    found: dict[str, Sight] = {}
    for line in output.splitlines():
        name, *words = line.split("|", 2)
        if is_run_id(name) and len(words) == 2:
            found[name] = _read(*(visible(each)[:60] for each in words))
    return found


def _read(state: str, reason: str) -> Sight:
    if state in _WAITING:
        return Sight("waiting", f"waits in Slurm ({state if reason == 'None' else reason})")
    kind = "working" if state in _WORKING else "ended" if state in _ENDED else "gone"
    return Sight(kind, f"Slurm says {state}")  # type: ignore[arg-type]


def cancel(run_id: str) -> None:
    """Take a job out of the queue, or send TERM to its shim. Not waited for: Slurm may be dead."""
    _ending[:] = [each for each in _ending if each.poll() is None]  # a server would keep zombies
    with suppress(OSError, NoHostProgram):  # its worker reads the end of the run by itself
        for more in (["--state=PENDING"], ["--signal=TERM", "--batch"]):
            words = [path_of("scancel"), "--quiet", "--me", "--name", run_id, *more]
            end = start(words, 30.0, passed_on(), b"", with_starter=False, stdout=DEVNULL, stderr=DEVNULL)
            _ending.append(end)


_ending: "list[Popen[bytes]]" = []


def why_ended() -> tuple[str, str] | None:
    """Return why Slurm ends this job, as the code of a failure and a sentence; None if unknown."""
    job = os.environ.get("SLURM_JOB_ID", "")
    form = "--Format=State:30,Reason:60,PreemptTime:30"  # a preempted job has no other sign while it ends
    output = _answer("--states=all", f"--jobs={job}", form) if job.isdecimal() else None
    words = output.split() if output else []
    if len(words) < 3:
        return None
    state, *reason, preempted = words
    if preempted != "N/A":
        return "crashed", "Slurm preempted the run for another job: continue it."
    if "TimeLimit" in reason:
        return "timeout", "Slurm's time limit ended the run: raise `time` in `placement`, then continue it."
    if state == "NODE_FAIL":
        return "crashed", "Slurm had given its node up (NODE_FAIL), and ended the run there: continue it."
    return "crashed", "Its job was cancelled in Slurm: continue it, or start it again."


def _answer(*words: str) -> str | None:
    """Return what `squeue` prints, bounded; None if it fails or is late."""
    try:
        return call("squeue", "--noheader", *words, seconds=ASK_SECONDS)
    except NoAnswer:
        return None
