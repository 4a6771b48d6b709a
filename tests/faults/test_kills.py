"""kill -9 of whoever serves, keeps or works: the file tells the truth, and nothing is left."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from subagent_server.run import processes, transitions
from subagent_server.run.locks import TIMEOUT_SECONDS, exclusive
from subagent_server.run.states import Status
from tests.helpers.processes import identity_of
from tests.helpers.truth import processes_of
from tests.helpers.turns import asks, call, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import World, kill

GRACE_SECONDS = 10.0
STUBBORN = "(setsid bash -c \"trap '' TERM HUP INT; exec sleep 1000\" &); echo started"
"""What ignores TERM, left its session and its parent, and holds the output of its shell open."""
UNMARKED = (
    "for i in 1 2; do env -i PATH=$PATH setsid sh -c "
    "'trap \"\" TERM HUP INT; (while :; do sleep 1; done) & echo $! >> pids' & done; "
    "until [ $(wc -l < pids) = 2 ]; do :; done 2>/dev/null"
)
"""As `STUBBORN`, and without the mark of the run; their numbers are in the file `pids`."""
HEADLESS = """env -i PATH=$PATH python3 -c '
import ctypes, os, threading, time
if os.fork():
    os._exit(0)
os.setsid()
threading.Thread(target=time.sleep, args=(1000,)).start()
print(os.getpid(), file=open("pid", "w"), flush=True)
ctypes.CDLL(None).pthread_exit(None)
' > /dev/null 2>&1; until [ -s pid ]; do :; done"""
"""What the kernel shows as a zombie: its first thread has ended, another has not."""


def test_a_run_without_a_shim_is_judged_dead_only_after_its_worker_is(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"))
    worker = world.worker(run_id)
    with ThreadPoolExecutor(1) as reader:
        # Nobody can write what became of the run, and the worker is not stopped in the middle of a write.
        with exclusive(world.paths(run_id).meta_lock):
            processes.send_signal(worker, signal.SIGSTOP)  # it cannot see its end, and cannot end by itself
            kill(world.shim(run_id))
            judged = reader.submit(world.look, run_id)
            wait_for(lambda: not processes.is_alive(worker), TIMEOUT_SECONDS, "the end of the worker")
            assert not world.meta(run_id).status.is_terminal
        assert judged.exception() is None
    error = world.meta(run_id).error
    assert error is not None and error.code == "lost"


@pytest.mark.parametrize("signal_is_late", [False, True])
def test_what_ignores_term_and_left_its_session_is_gone_within_the_grace_and_live_says_so(
    world: World, signal_is_late: bool
) -> None:
    run_id = world.asking_run(shell(f"{STUBBORN}; {UNMARKED}"), asks("Go on?"))
    pids = (world.work / "pids").read_text(encoding="utf-8").split()
    daemons = [identity_of(int(pid)) for pid in pids]
    assert len(daemons) == 2
    began = time.monotonic()
    if signal_is_late:  # the worker sees the state first, and ends by itself
        world.store.update(run_id, transitions.StopRequested(), processes.now())
    else:
        world.stop(run_id)
    observed = world.look(run_id)
    assert (observed.meta.status, observed.live) == (Status.STOPPED, True)

    def over() -> bool:
        live = world.look(run_id).live
        left = [*processes_of(world.paths(run_id)), *filter(processes.is_alive, daemons)]
        assert live or not left, "live says that nothing is left"
        return not live

    wait_for(over, GRACE_SECONDS + 60, "the end of everything")
    assert time.monotonic() - began >= GRACE_SECONDS - 1, "it was given its grace"


def test_a_worker_that_hangs_is_ended_after_the_grace_of_a_stop(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"))
    worker = world.worker(run_id)
    processes.send_signal(worker, signal.SIGSTOP)
    world.stop(run_id)
    wait_for(lambda: not processes.is_alive(worker), GRACE_SECONDS + 20, "the end of the worker")
    world.gone(run_id)


def test_what_a_run_leaves_behind_at_its_end_is_ended_soon(world: World) -> None:
    world.agent_saying(shell(f"{STUBBORN}; {HEADLESS}"), says("Done."), sandbox="none")
    run_id = world.start()
    assert world.completed_and_gone(run_id) == "Done."
    assert processes.identify(int((world.work / "pid").read_text(encoding="ascii"))) is None


def parent_of_one(world: World) -> tuple[str, str]:
    """Start a run that starts another and waits for it; return the ids of both, once the other works."""
    world.agent("lead", agents=["worker"])
    world.agent("worker")
    work = {"when": {"system": "subagent worker"}, "turns": [shell("sleep 1000"), says("Done.")]}
    delegate = call("run_worker", prompt="Do it.", waitSeconds=60)
    world.play(delegate, says("Led."), conversations=[work])
    lead = world.start(agent="lead")
    (worker,) = wait_for(lambda: world.store.children_of(lead), 60, "the nested run")
    wait_for(world.paths(worker).meta.exists, 60, "the state of the nested run")
    wait_for(lambda: world.events(worker, "tool_call"), 60, "the work of the nested run")
    return lead, worker


def test_a_nested_run_outlives_the_kill_of_its_parent_s_shim_until_somebody_reads(world: World) -> None:
    lead, worker = parent_of_one(world)
    kill(world.shim(lead))
    assert processes.is_alive(world.worker(worker))
    assert world.look(lead).meta.status is Status.FAILED
    assert world.ended(worker).status is Status.STOPPED
    world.gone(worker)
