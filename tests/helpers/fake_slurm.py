"""`sbatch`, `squeue` and `scancel` as a launcher sees them: `fake_slurm(directory)` makes them there.

A job is a directory `jobs/NAME` with what its `sbatch` was given. `say(mode)` decides what comes of the next
ones: `run` on a node, `refuse`, be `silent`, `kill` the starter between acceptance and reply, `queue`, or
`queue late`, which fails besides.
"""

import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.files import write_program

_PROGRAM = """
    import json, os, re, signal, subprocess, sys, time
    from pathlib import Path

    home, words = Path(__file__).parent, sys.argv[1:]
    mode, jobs = (home / "mode").read_text(), home / "jobs"
    if mode == "silent":
        signal.pause()

    def sbatch():
        script = sys.stdin.read()
        name = re.search("--job-name=(.*)", script)[1]
        number = int(re.search("--export-file=([0-9]+)", " ".join(words))[1])
        given = os.read(number, 1 << 20)
        if mode == "refuse":
            sys.exit("sbatch: error: Batch job submission failed: Invalid account")
        job = jobs / name
        job.mkdir()
        (job / "script").write_text(script)
        (job / "environment").write_bytes(given)
        (job / "argv").write_text(" ".join(words))
        (job / "own").write_text(json.dumps(dict(os.environ)))
        (job / "state").write_text("PENDING" if "queue" in mode else "RUNNING")
        if mode == "queue late":
            sys.exit("sbatch: error: Batch job submission failed: Socket timed out")
        if mode != "queue":
            pairs = dict(pair.split("=", 1) for pair in given.decode().split("\\0") if pair)
            node = {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "7"}
            node |= {"CUDA_VISIBLE_DEVICES": "3", "TMPDIR": str(job)}
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            process = subprocess.Popen(
                ["sh", str(job / "script")], env=pairs | node, cwd="/", start_new_session=True, **streams
            )
            (job / "pid").write_text(str(process.pid))
        if mode == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
        print(7)

    def squeue():
        for job in sorted(jobs.iterdir()):
            state, pid = (job / "state").read_text(), job / "pid"
            is_over = pid.exists() and not Path("/proc", pid.read_text()).exists()
            print(f"{job.name}|{'FAILED' if is_over else state}|Priority")

    def scancel():
        job = jobs / words[words.index("--name") + 1]
        if "--state=PENDING" in words and (job / "state").read_text() == "PENDING":
            (job / "state").write_text("CANCELLED")
        if "--batch" in words and (job / "pid").exists():
            os.kill(int((job / "pid").read_text()), signal.SIGTERM)

    {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[Path(__file__).name]()
"""


@dataclass(frozen=True)
class FakeSlurm:
    """The programs, in `home`."""

    home: Path

    @property
    def path(self) -> str:
        """The variable PATH by which they are found."""
        return f"{self.home}{os.pathsep}{os.environ['PATH']}"

    def say(self, mode: str) -> None:
        """Decide what comes of the next commands."""
        (self.home / "mode").write_text(mode, encoding="utf-8")

    def job(self, run_id: str, what: str) -> str:
        """Return what a job was given, or its `state`."""
        return (self.home / "jobs" / run_id / what).read_text(encoding="utf-8")


def fake_slurm(home: Path) -> FakeSlurm:
    """Make the programs in a new directory."""
    (home / "jobs").mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel"):
        write_program(home / name, f"#!{sys.executable} -IS\n{textwrap.dedent(_PROGRAM)}")
    made = FakeSlurm(home)
    made.say("run")
    return made
