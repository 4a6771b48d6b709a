"""A cluster of Slurm with three nodes, on one machine and as an ordinary user.

`SlurmUser` and `SlurmdUser` are that user, and each `slurmd -N nX` has a port. A node is a pid namespace of
its own, so `kill` of its init is a power cut, and no process of a node can be seen from another one.

Of root, a node may have a file server of its own besides: a `bindfs` through which alone it reaches the
directory `shared`, and which can be stopped.
"""

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.helpers.http_server import free_port
from tests.helpers.wait import wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "unshare")
NODES = ("n1", "n2", "n3")
BOUND = 60.0
_EXITING = 4
"""`PF_EXITING` of the kernel, among the flags of a process."""
_SPACE = (
    *("unshare", *(() if os.getuid() == 0 else ("--user", "--map-current-user"))),
    *("--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
_INIT = """\
late=attr_timeout=3,entry_timeout=3,negative_timeout=3
bindfs -f --multithreaded --enable-lock-forwarding -o "$late" "$2" "$2" &
until mountpoint -q "$2"; do sleep 0.05; done
slurmd -D -N "$1" & while :; do wait; sleep 0.1; done"""
"""The init of a node with a file server; it reaps orphans."""
_CONF = """\
ClusterName=nodes
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge/s
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/ctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/log.ctld
SlurmdLogFile={home}/log.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=0
SlurmdTimeout=15
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerParameters=batch_sched_delay=0,sched_interval=5
SlurmdParameters=config_overrides
PartitionName=DEFAULT Nodes=n1,n2,n3 MaxTime=INFINITE State=UP LLN=YES
PartitionName=main Default=YES PriorityTier=1 GraceTime=10
PartitionName=urgent PriorityTier=10 PreemptMode=OFF
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=128 State=UNKNOWN\n"


def missing() -> list[str]:
    """Return the programs that are not installed here; on Debian, apt-get has them all."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Cluster:
    """Three nodes; `environment` is what a client needs. Leaving the `with` block ends every process."""

    def __init__(self, home: Path, shared: Path | None = None) -> None:
        self.home = home
        self._shared = shared
        self.environment = {"SLURM_CONF": str(home / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self._controller: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Cluster":
        for name in ("state", "munge", *(f"spool.{node}" for node in NODES)):
            (self.home / name).mkdir()
        (self.home / "munge").chmod(0o755)
        key = self.home / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        port, *ports = (free_port() for _ in range(1 + len(NODES)))
        facts = {"host": host, "user": getpass.getuser(), "home": self.home, "port": port}
        nodes = (_NODE.format(name=n, host=host, port=p) for n, p in zip(NODES, ports, strict=True))
        (self.home / "slurm.conf").write_text("".join([*nodes, _CONF.format(**facts)]), encoding="utf-8")
        m = self.home / "munge"
        files = [f"--socket={m}/s", f"--key-file={key}", f"--pid-file={m}/pid", f"--seed-file={m}/seed"]
        self._others.append(self._started("munged", "-F", "-f", *files, f"--log-file={m}/log"))
        wait_for((m / "s").exists, BOUND, "munged")
        self.controller_up()
        for node in NODES:
            self.node_up(node)
        wait_for(lambda: self.states().count("idle") == len(NODES), BOUND, "the nodes")
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self._nodes):
            self.node_kill(node)
        self.controller_kill()
        for process in self._others:
            process.kill()
            process.wait()

    def controller_up(self) -> None:
        """Start slurmctld."""
        self._controller = self._started("slurmctld", "-D")

    def controller_kill(self) -> None:
        """End slurmctld at once."""
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()
            self._controller = None

    def node_up(self, node: str) -> None:
        """Start a node."""
        plain = ("slurmd", "-D", "-N", node)
        init = plain if self._shared is None else ("sh", "-c", _INIT, "init", node, str(self._shared))
        self._nodes[node] = self._started(*_SPACE, *init)

    def node_kill(self, node: str) -> None:
        """Cut the power of a node: its init dies, and with it every process."""
        process = self._nodes.pop(node)
        process.kill()  # --kill-child takes the init along
        process.wait()

    def send(self, node: str, program: str, number: signal.Signals) -> None:
        """Send a signal to the `bindfs` or `slurmd` of a node that has a file server."""
        (init,) = _children(self._nodes[node].pid)
        for pid in _children(init):
            if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == program:
                os.kill(pid, number)

    def actors(self, node: str) -> dict[int, int]:
        """Return the parent of each process that can still act, as the process table of a node has it.

        One that is dead cannot, nor one that got KILL: the kernel may keep it until its file server answers.
        """
        (init,) = _children(self._nodes[node].pid)
        found: dict[int, int] = {}
        for each in Path(f"/proc/{init}/root/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, parent, *_, flags = (each / "stat").read_text("ascii").rpartition(")")[2].split()[:7]
                signals = re.findall(r"(?m)^(?:SigPnd|ShdPnd):\t(\w+)$", (each / "status").read_text("ascii"))
                is_killed = any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in signals)
                if state not in "ZX" and not int(flags) & _EXITING and not is_killed:
                    found[int(each.name)] = int(parent)
        return found

    def states(self) -> list[str]:
        """Return the state of each node, in no order."""
        return self.command("sinfo", "-N", "-h", "-p", "main", "-o", "%t").split()

    def command(self, *words: str) -> str:
        """Return what a command of Slurm says."""
        done = subprocess.run(
            words,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        return done.stdout

    def _started(self, *words: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **self.environment, "LANG": "C.UTF-8"}
        with (self.home / "out").open("ab") as out:
            return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
