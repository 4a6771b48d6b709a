"""The first program of a run on a node: `python -E -P -m subagent_server.process.node_start RUN_DIRECTORY`.

It takes the run's lock; opens the package, whose key is in `SUBAGENT_PACKAGE_KEY` or comes by standard input;
and becomes the shim. The same shim and worker as anywhere else.
"""

import os
import sys
from pathlib import Path

from subagent_server.run import processes

if __name__ == "__main__":  # before anything else: the environment holds the key
    processes.keep_others_out()

from subagent_server.process.launcher import fill
from subagent_server.process.remote import KEY, unseal
from subagent_server.process.shim import EXIT_SECOND_SHIM, shim_command
from subagent_server.process.zygote_protocol import interpreter_variables
from subagent_server.run import locks
from subagent_server.run.errors import HostError
from subagent_server.run.paths import RunPaths, run_at
from subagent_server.run.stderr import log

_OF_STARTER = (
    *("TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "DISPLAY", "WAYLAND_DISPLAY"),
    *("SUBAGENT_LAUNCHER", "SUBAGENT_RUNTIME_DIR"),
    *("SUBAGENT_LOGGING_ADDRESS", "CPE_SUBAGENT_LOGGING_ADDRESS"),
)
"""Variables that name what only the host of the starter has."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""What Slurm sets for a job with GPUs: any other may be that of another job."""
_OF_NODE = ("SLURM_CONF", "SLURM_JOB_ID", "SLURMD_NODENAME", processes.NODE, "TMPDIR", *_DEVICES)
_OF_SHIM = ("PATH", "HOME", "TZ", *_OF_NODE)


def become_shim(directory: str) -> int:
    """Become the shim of a run; return only if that cannot be."""
    node = processes.become_node()
    run = run_at(Path(directory))
    key = os.environ.pop(KEY, None)
    try:
        processes.check_system()
        if key is None:  # its starter waits for the end of this command, then lets go of the lock
            if not (key := sys.stdin.readline()):
                raise ValueError("its key did not come; `StdinNull` of ssh keeps it back")
            _detach(run)
        lock = locks.open_lock(run.live_lock)
        locks.lock(lock)  # the starter holds it until the run is handed over
        package = unseal(run, key)
    except (HostError, OSError, ValueError) as error:
        log(f"The run could not begin on {node}: {error}")
        return EXIT_SECOND_SHIM
    own = {name: os.environ[name] for name in _OF_NODE if name in os.environ}
    left_out = (*_OF_STARTER, *(_DEVICES if "SLURM_JOB_ID" in own else ()))
    inherited = {
        n: v for n, v in package["environment"].items() if n not in left_out and not n.startswith("SLURM")
    }
    package["environment"] = {**inherited, **own, "SUBAGENT_WARM": "0"}
    memory = os.memfd_create("subagent-launch")
    fill(memory, package)
    for descriptor in (lock, memory):
        os.set_inheritable(descriptor, True)
    passed_on = {name: os.environ[name] for name in _OF_SHIM if name in os.environ}
    command = shim_command(directory, lock, memory)
    return os.execve(command[0], command, {**passed_on, **interpreter_variables(os.environ)})


def _detach(run: RunPaths) -> None:
    """Continue as a process of a session of its own, with the run's file for output. Raises OSError."""
    with Path(os.devnull).open("rb") as nothing, run.worker_out.appender() as output:
        if os.fork():
            os._exit(0)
        os.setsid()
        for number, stream in enumerate((nothing, output, output)):
            os.dup2(stream.fileno(), number)


if __name__ == "__main__":
    sys.exit(become_shim(sys.argv[1]))
