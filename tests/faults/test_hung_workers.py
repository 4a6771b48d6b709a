"""A worker that no longer answers is ended by its limit all the same, and its run says so."""

import signal
import subprocess
import time
from functools import partial

import pytest

from subagent_server.run import locks, processes
from tests.helpers.forked import PROGRAM
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

LATE_SECONDS = 120.0
"""How long the end may take: the limit, 15 s after it, 10 s of grace, and a busy machine."""
LIMITS = (3.0, 12.0, 48.0)
"""Seconds. A machine that is too busy to stop a worker within a limit gets the next one."""


def hung(world: World, prompt: str, **limits: float) -> str:
    """Return a run whose worker is stopped before its limits are over."""
    for seconds in LIMITS:
        world.agent(limits={"timeoutSeconds": seconds, "askTimeoutSeconds": seconds, **limits})
        run_id = world.start(prompt)
        if prompt == "work":
            wait_for(partial(world.events, run_id, "tool_call"), BOUND, "the command of a run")
        else:
            world.asking(run_id)
            wait_for(lambda: not works(world), BOUND, "a worker that waits")
        is_stopped = processes.send_signal(world.worker(run_id), signal.SIGSTOP)
        if is_stopped and not world.meta(run_id).status.is_terminal:
            return run_id
    raise AssertionError("no worker could be stopped in time")


def works(world: World) -> bool:
    """Whether a worker holds a slot: one that waits has given it back, after it has reported its deadline."""
    slots = world.store.paths.slots
    return any(locks.is_held(slots.entry(name)) for name in slots.names() if name[-1].isdigit())


def test_workers_that_are_stopped_end_by_their_limit_or_by_the_expiry_of_their_question(world: World) -> None:
    world.play(
        turns=[asks("Colour?"), says("Red.")],
        conversations=[{"when": {"prompt": "work"}, "turns": [shell("sleep 1000"), says("Done.")]}],
    )
    patient = hung(world, "ask", askTimeoutSeconds=3600)
    asking, working = hung(world, "ask"), hung(world, "work")
    for run_id in (working, asking):
        error = world.until(run_id, lambda meta: meta.status.is_terminal, LATE_SECONDS).error
        assert error is not None and error.code == "timeout"
        world.gone(run_id)
    assert not world.meta(patient).status.is_terminal, "its question is still open"
    assert processes.send_signal(world.worker(patient), signal.SIGCONT)
    world.reply(patient, "red")
    assert world.completed(patient) == "Red."


def test_a_process_has_its_grace_though_its_supervisor_was_suspended_with_it() -> None:
    reader = processes.DeadlineReader()
    processes.DeadlineWriter(reader.writer).write(time.monotonic() - 2 * processes.LATE_SECONDS)
    assert 0 < reader.seconds_left() <= processes.LATE_SECONDS


@pytest.mark.parametrize("warm", ["0", "1"])
def test_a_run_whose_starter_ignored_signals_ends_and_its_programs_heed_them(world: World, warm: str) -> None:
    world.agent_saying(shell("sleep 1000 & kill -TERM $!; wait $!; echo code $?"), says("Done."))
    starter = [
        "env",
        "--ignore-signal=CHLD,TERM,INT,HUP,QUIT,USR1,ALRM",
        *PROGRAM,
        "run",
        "worker",
        "Do it.",
        "-d",
    ]
    environment = {**world.environment, "SUBAGENT_WARM": warm}
    done = subprocess.run(
        starter, cwd=world.work, env=environment, capture_output=True, text=True, timeout=BOUND
    )
    run_id = done.stdout.split()[0]
    assert world.completed_and_gone(run_id) == "Done."
    (result,) = world.events(run_id, "tool_result")
    assert "code 143" in str(result)
