"""The verdict on a run whose processes are on another host: by its files, its heartbeat, and its engine.

Nothing that only a host of its own can know is asked: no pid, no `/proc`, no FIFO, no free lock. The order of
belief is that of SPEC section 12. `judge` is pure, and `look` collects its facts.
"""

from dataclasses import dataclass, replace

from subagent_server.process import beat
from subagent_server.process.launcher import Sight
from subagent_server.run import durable, locks, processes
from subagent_server.run.errors import visible
from subagent_server.run.paths import RECORD_BYTES, RunPaths
from subagent_server.run.records import RunMeta

FRESH = 4
"""A beat younger than this part of a lease is that of a living run."""
SETTLE_SECONDS = 5.0
"""Between the two looks that find neither a shim nor a job: a job may just have been accepted."""
_MOST_NAME = 64


@dataclass(frozen=True)
class Facts:
    """What can be known from here. Ages are in seconds, by the clock of the file server."""

    lease: float
    node: str = ""
    tree_gone: bool = False
    """Nothing of the run is left, says `exit.json`, or ever was."""
    beat_age: float | None = None
    starting: bool = False
    """Its starter holds its lock. A free lock says nothing."""
    engine: str = ""
    """The name of the engine, empty without one."""
    sight: Sight | None = None
    """What the engine says; None if it does not answer, or there is none."""
    unseen_age: float | None = None
    """Since a first look found nothing of a run that never beat."""


@dataclass(frozen=True)
class Look:
    """Whether the processes of a run live, None if nobody can know; `reason` says why."""

    live: bool | None
    reason: str | None = None
    node: str = ""
    is_unseen: bool = False
    """Nothing was found of it: a second look decides."""


def judge(facts: Facts) -> Look:
    """Return the verdict on the processes of a run."""
    sight, age, node = facts.sight, facts.beat_age, facts.node
    if facts.tree_gone:
        return Look(False, node=node)
    if age is not None and abs(age) < facts.lease / FRESH:
        return Look(True, node=node)
    if sight is not None and sight.state == "waiting":
        return Look(True, f"waits in {facts.engine} ({sight.words})", node)
    if age is None:
        return _unheard(facts)
    if sight is not None and sight.state == "ended":
        return Look(False, f"{facts.engine} says {sight.words}", node)
    # A beat of tomorrow proves nothing: the clock of the file server was set back, or somebody wrote it.
    ago = f"{age:.0f} s ago" if age >= 0 else "at a time to come"
    heard = f"{node or 'its node'} was last heard {ago}"
    if age > 2 * facts.lease:
        return Look(False, heard, node)
    return Look(None, f"{heard}{_engine_says(facts)}", node)


def _unheard(facts: Facts) -> Look:
    """Judge a run that never beat: its process is on its way, or will never come.

    To call it dead is safe in either case: a shim that begins reads the state first.
    """
    sight, node, says = facts.sight, facts.node, _engine_says(facts)
    if facts.starting or (sight is not None and sight.state == "working"):
        return Look(True, "is being started", node)
    if facts.engine and sight is None:  # it may be in the queue
        return Look(None, f"nothing was heard of it yet{says}", node)
    # What is in no queue begins within two leases, or never: its node may have died when it was given to it.
    is_over = sight is not None and sight.state in ("ended", "absent")
    patience = SETTLE_SECONDS if is_over else 2 * facts.lease
    if facts.unseen_age is not None and facts.unseen_age >= patience:
        return Look(False, f"it never began{says}", node)
    return Look(None, f"nothing was heard of it yet{says}", node, is_unseen=True)


def _engine_says(facts: Facts) -> str:
    if not facts.engine:
        return ""
    if facts.sight is None:
        return f"; {facts.engine} does not answer"
    return f"; {facts.engine} says {facts.sight.words or 'nothing of it'}"


def is_here(run: RunPaths, meta: RunMeta) -> bool:
    """Whether the processes of a run are, or were, on this host, so that they can be looked at."""
    launch = meta.launch
    if launch is None:
        return True
    if launch.kind == "local":
        return launch.host == processes.host_name()
    # Two hosts of `ssh` may have one name; a host that was booted anew has no process of the run.
    shim = _shim(run)
    return shim is not None and (shim.host, shim.boot_id) == (processes.host_name(), processes.boot_id())


def node_of(run: RunPaths) -> str:
    """Return the host on which the shim of a run said to be; empty without one."""
    shim = _shim(run)
    return "" if shim is None else visible(shim.host[:_MOST_NAME])


def _shim(run: RunPaths) -> processes.Identity | None:
    return processes.Identity.from_json(durable.read_object(run.shim, RECORD_BYTES).get("shim"))


def look(run: RunPaths, meta: RunMeta) -> Look:
    """Return the verdict on a run that is not here. Raises OSError: the file system refuses."""
    launch = meta.launch
    node = node_of(run)
    if launch is None or launch.lease is None:  # no heartbeat: nobody here will ever know
        host = "another host" if launch is None else visible(launch.host[:_MOST_NAME])
        return Look(None, f"it runs on {node or host}", node)
    # A shim reads the state after its claim: of a run that ended before, none will begin.
    never_begins = meta.status.is_terminal and not run.shim_claim.exists()
    gone = never_begins or durable.read_object(run.exit, RECORD_BYTES).get("treeGone") is True
    age = None if gone else beat.age(run, run.beat)
    facts = Facts(launch.lease, node, tree_gone=gone, beat_age=age)
    if (verdict := judge(facts)).live or gone:
        return verdict
    # The order matters: a starter lets go of the lock when the engine has its job, so the engine comes last.
    starting = age is None and locks.is_held(run.live_lock)
    unseen = None if age is not None else beat.age(run, run.unseen)
    engine, sight = _sight(launch.kind, run.run_id)
    verdict = judge(replace(facts, starting=starting, engine=engine, sight=sight, unseen_age=unseen))
    if verdict.is_unseen and unseen is None:
        run.unseen.touch()
    elif not verdict.is_unseen and unseen is not None and verdict.live is not False:
        run.unseen.unlink()
    return verdict


def _sight(kind: str, run_id: str) -> tuple[str, Sight | None]:
    if kind != "slurm":
        return "", None
    from subagent_server.process import slurm  # most roots have no run of an engine

    return slurm.NAME, slurm.sight(run_id)


def end(run: RunPaths, meta: RunMeta) -> None:
    """Ask the engine to end a run whose end is on disk. Its worker sees that by itself within 2 s."""
    if meta.launch is not None and meta.launch.kind == "slurm":
        from subagent_server.process import slurm

        slurm.cancel(run.run_id)
