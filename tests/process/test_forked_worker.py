"""A run whose shim and worker are forks of the zygote is as one that was started plainly, only sooner."""

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from subagent_server.run import stderr
from subagent_server.run.states import Status
from tests.helpers.processes import open_files
from tests.helpers.truth import processes_of
from tests.helpers.turns import asks, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import WarmPlace, forks_of, is_fork, only_root
from tests.helpers.world import API_KEY, BOUND, World, kill

VIEW = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "environment": {n: v for n, v in os.environ.items() if not n.startswith("SUBAGENT_")},
    "cwd": os.getcwd(), "umask": status["Umask"].strip(), "nice": os.nice(0),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "cpus": sorted(os.sched_getaffinity(0)), "oom": open("/proc/self/oom_score_adj").read(),
    "blocked": status["SigBlk"], "ignored": status["SigIgn"],
}))
"""


ADDRESS = "CPE_SUBAGENT_LOGGING_ADDRESS"


def held_by(pid: int, run_id: str) -> list[str]:
    """Return what the descriptors of a process are for good.

    Without numbers, what it is writing now, and slots, which it gives back as soon as it only waits.
    """
    found = []
    for held in open_files(pid):
        name = re.sub(r"[\[.]\d+\]?$", "", held)
        if "/.slots/" not in name and (run_id not in name or name.endswith(("worker.out", "wake"))):
            found.append(name.replace(run_id, "RUN"))
    pokes = [name for name in found if name.endswith("wake")][1:]  # who changes a run pokes its own FIFO too
    return sorted((Counter(found) - Counter(pokes)).elements())


@contextmanager
def unusual_starter() -> Iterator[None]:
    """Be a starter that hands on what is not usual."""
    before = os.umask(0o027)
    handler = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, handler)
        os.umask(before)


@only_root
def test_a_program_of_a_run_inherits_the_same_warm_and_plain(world: World, shared_place: WarmPlace) -> None:
    world.agent(env={"OF_THE_AGENT": "grün"})
    (world.home / "view.py").write_text(VIEW, encoding="utf-8")
    simulator = world.play(shell(f"{sys.executable} -I {world.home}/view.py"), asks("Go on?"))
    shared_place.zygote()
    seen, workers = {}, {}
    for is_warm in (True, False):
        world.environment["SUBAGENT_WARM"] = "1" if is_warm else "0"
        with unusual_starter():
            run_id, was_forked = shared_place.started()
        assert was_forked is is_warm
        seen[is_warm] = json.loads(tool_results(simulator.requests[-1].body)[0])
        assert seen[is_warm]["environment"].pop(ADDRESS), "each run has one of its own"
        worker = Path(f"/proc/{world.worker(run_id).pid}")
        seen[is_warm]["worker"] = [
            os.fsencode(world.paths(run_id).directory) in (worker / "cmdline").read_bytes(),
            (worker / "cwd").readlink() == world.work,
            os.getsid(int(worker.name)) == int(worker.name),
        ]
        workers[is_warm] = int(worker.name), run_id
    wait_for(
        lambda: held_by(*workers[True]) == held_by(*workers[False]), BOUND, "the same descriptors in both"
    )  # each may hold one for a moment, as for a file that it reads
    for _, run_id in workers.values():
        world.stop(run_id)
    assert seen[True] == seen[False]
    inherited = seen[True]["umask"], seen[True]["environment"]["OF_THE_AGENT"], seen[True]["oom"]
    assert inherited == ("0027", "grün", "500\n"), "without memory, a program ends before its worker"


@only_root
def test_a_fork_shows_its_own_command_and_environment_and_holds_nothing_of_another(
    world: World, place: WarmPlace
) -> None:
    world.agent_saying(asks("Go on?"), says("Done."))
    zygote = place.start()
    one, other = place.started()[0], place.started()[0]
    for run_id, foreign in ((one, other), (other, one)):
        shim, worker = world.shim(run_id), world.worker(run_id)
        assert processes_of(world.paths(run_id)) == [shim, worker]
        for identity, program in ((shim, b"process/shim.py"), (worker, b"subagent_server.worker")):
            command = Path(f"/proc/{identity.pid}/cmdline").read_bytes()
            assert program in command and run_id.encode() in command
            assert is_fork(identity)
            held = list(open_files(identity.pid))
            assert not [name for name in held if foreign in name or str(place.directory) in name], held
    assert API_KEY.encode() not in Path(f"/proc/{zygote.pid}/environ").read_bytes()
    kill(zygote)
    for run_id in (one, other):
        world.reply(run_id, "yes")
        assert world.completed_and_gone(run_id) == "Done."


def test_a_killed_warm_worker_is_recorded_by_its_shim_and_swept(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent_saying(shell("(setsid sleep 1000 &); echo started"), asks("Go on?"))
    zygote = shared_place.zygote()
    run_id, was_forked = shared_place.started()
    assert was_forked
    kill(world.worker(run_id))
    assert world.failed(run_id)[0] == "crashed"
    world.gone(run_id)
    wait_for(lambda: not forks_of(zygote), BOUND, "that nothing is left to collect")


def test_nested_runs_are_forked_from_the_same_zygote(world: World, shared_place: WarmPlace) -> None:
    world.agent("lead", agents=["worker"])
    world.agent("worker")
    start = {"tool_use": [{"name": "run_worker", "input": {"prompt": "Do it.", "waitSeconds": 60}}]}
    nested = {"when": {"system": "subagent worker"}, "turns": [asks("Go on?")]}
    world.play(start, asks("And now?"), conversations=[nested])
    shared_place.zygote()
    lead = world.start(agent="lead")
    (worker,) = wait_for(lambda: world.store.children_of(lead), BOUND, "the nested run")
    wait_for(world.paths(worker).meta.exists, BOUND, "its state")
    world.until(worker, lambda meta: meta.pending_questions)
    assert is_fork(world.worker(worker))
    world.stop(lead)
    assert world.ended(worker).status is Status.STOPPED
    world.gone(worker)


def test_an_environment_that_wants_a_fresh_interpreter_gets_one(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent_saying(asks("Go on?"), says("Done."), env={"LD_BIND_NOW": "1"})
    shared_place.zygote()
    run_id, was_forked = shared_place.started()
    assert not was_forked and is_fork(world.shim(run_id))
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."


CUT_OFF = (
    *("starter.reserved", "starter.published"),
    *("shim.claimed", "shim.forked", "shim.worker_recorded", "worker.started"),
)
"""What becomes of the runs: `tests/faults/test_lethal_points.py`."""


def test_a_warm_start_that_is_cut_off_leaves_no_process_and_no_lock(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent_saying(says("Done."))
    zygote = shared_place.zygote()
    for point in CUT_OFF:
        before = set(world.store.run_ids())
        world.cli("run", "worker", "Do it.", "--detach", env={stderr.VARIABLE: point})
        (run_id,) = set(world.store.run_ids()) - before
        world.gone(run_id)
        wait_for(lambda: not forks_of(zygote), BOUND, "the forks to leave")
    assert world.completed(world.start()) == "Done."
