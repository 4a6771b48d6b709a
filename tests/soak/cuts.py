"""Power cuts amid runs with worktrees and merges: what was acknowledged is there afterwards, whole.

Runs, repository and the store of the worktrees lie on one file system, whose power goes at a random moment.
"""

import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subagent_server.run import processes
from subagent_server.run.states import Status
from subagent_server.verbs.reconcile import read_exit
from tests.faults.disks import PowerCut
from tests.helpers.repositories import make_repository
from tests.helpers.truth import processes_of
from tests.helpers.turns import says, shell
from tests.helpers.world import World

RUNS = 4
_LATEST_SECONDS = 600.0
_LAST_PAUSE_SECONDS = 2.0
_SETTLED = ("kept", "removed", None)
"""None: the run ended before it had a worktree."""
_DISK_MEBIBYTES = 64
_WORK = (
    "echo done >> $SUBAGENT_RUN_ID && git add . && git commit -qm done && echo done >> $SUBAGENT_RUN_ID.left"
)


@dataclass
class Acknowledged:
    """What the world was told before the power went."""

    ended: set[str] = field(default_factory=set)
    merged: set[str] = field(default_factory=set)


def cut_and_look(home: Path, chance: random.Random) -> tuple[list[str], Acknowledged]:
    """Cut the power of one world at a random moment; return what is wrong after it, and what was told."""
    home.mkdir(parents=True)
    disk = PowerCut(home, _DISK_MEBIBYTES)
    with disk.powered() as place:
        world = _world(place)
        runs = [world.start() for _ in range(RUNS)]
        told = _acknowledged(world, runs, chance)
        disk.cut()
        _end_processes(world, runs)
    with disk.powered():
        found = list(_wrong(world, runs, told))
        world.abandoned.update(runs)
        world.close()
    return found, told


def _world(place: Path) -> World:
    home = place / "world"
    home.mkdir()
    world = World(home)
    world.environment["SUBAGENT_WARM"] = "0"  # every process of a run has its mark
    (home / ".gitconfig").write_text("[user]\nname = A\nemail = a@example.com\n", encoding="utf-8")
    make_repository(world.work)
    world.agent_saying(shell(_WORK), says("Done."), isolation="worktree")
    subprocess.run(["sync", "--file-system", str(place)], check=True)
    return world


def _acknowledged(world: World, runs: list[str], chance: random.Random) -> Acknowledged:
    """Merge each run that has ended, until so much was acknowledged and a moment more; return what was."""
    told, never = Acknowledged(), threading.Event()
    wanted, pause = chance.randint(0, 2 * len(runs) - 1), chance.uniform(0, _LAST_PAUSE_SECONDS)
    latest = until = time.monotonic() + _LATEST_SECONDS
    while time.monotonic() < until:
        if until == latest and len(told.ended) + len(told.merged) >= wanted:
            until = time.monotonic() + pause
        for run_id in runs:
            is_gone = read_exit(world.paths(run_id)).get("treeGone") is True
            if is_gone and world.meta(run_id).status is Status.COMPLETED:
                told.ended.add(run_id)
        for run_id in told.ended - told.merged:
            if time.monotonic() < until and world.cli("merge", run_id).returncode == 0:
                told.merged.add(run_id)
        never.wait(0.02)
    return told


def _end_processes(world: World, runs: list[str]) -> None:
    """End all that the power would have ended; shims first, or they record the ends of the others."""
    for run_id in runs:
        for identity in processes_of(world.paths(run_id)):
            with suppress(ProcessLookupError):
                processes.send_signal(identity, signal.SIGKILL)
    left = processes.marked(f"SUBAGENT_RUNS={world.runs}")
    for run_id in runs:  # those that reconcile show no mark
        directory = str(world.paths(run_id).directory).encode()
        left += filter(None, map(processes.identify, processes.with_words(directory)))
    for identity in left:
        processes.send_signal(identity, signal.SIGKILL)


def _wrong(world: World, runs: list[str], told: Acknowledged) -> Iterator[str]:
    yield from _unfit(world)
    for run_id in runs:
        if not world.paths(run_id).meta.exists():
            yield f"{run_id} was started and is not there"
            continue
        meta = world.look(run_id).meta
        if run_id in told.ended and meta.status is not Status.COMPLETED:
            yield f"{run_id} had completed and is {meta.status}"
        shown = _shown(world, run_id)
        if run_id not in told.merged and shown.get("state") == "kept":
            done = world.cli("merge", run_id)
            if done.returncode != 0:
                yield f"{run_id} ({meta.status}) cannot be merged: {done.stderr.strip()[-300:]}"
        elif shown.get("state") not in _SETTLED:
            yield f"{run_id} ({meta.status}): its worktree is {shown.get('state')} after a reader"
        if run_id in told.ended:
            for name in (run_id, f"{run_id}.left"):
                content = _git(world, "show", f"HEAD:{name}")
                if content.stdout != "done\n":
                    yield f"{run_id}: {name} is lost: {content.stdout or content.stderr.strip()!r}"
    yield from _unfit(world)


def _shown(world: World, run_id: str) -> dict[str, Any]:
    view = json.loads(world.cli("show", run_id, "--json").stdout or "{}")
    return view.get("worktree") or {}


def _unfit(world: World) -> Iterator[str]:
    for words in (["fsck", "--no-dangling"], ["status", "--porcelain"]):
        done = _git(world, *words)
        if done.returncode != 0 or (done.stderr.strip() and words[0] == "fsck"):
            yield f"git {words[0]}: {done.returncode} {done.stderr.strip()[-300:]}"


def _git(world: World, *words: str) -> "subprocess.CompletedProcess[str]":
    command = ["git", "-C", str(world.work), *words]
    return subprocess.run(command, env=world.environment, capture_output=True, text=True, check=False)
