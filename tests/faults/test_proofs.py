"""Who is ended with a run and who is spared is for records and parents to say, not for a process itself."""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from subagent_server.run import processes
from tests.faults import test_kills
from tests.helpers import warm
from tests.helpers.forked import PROGRAM
from tests.helpers.ordinary_user import user
from tests.helpers.processes import Child, identity_of
from tests.helpers.scale import WHOLE
from tests.helpers.turns import asks, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import is_fork
from tests.helpers.world import BOUND, World, kill

WAIT = "import sys; print('there', flush=True); sys.stdin.readline()"
SLEEP = "import os, sys, time; open(sys.argv[-1], 'w').write(str(os.getpid())); time.sleep(1000)"
HIDING = {
    "says that it is a shim": f"env -i SUBAGENT_SHIM=x setsid {sys.executable} -c {shlex.quote(SLEEP)} pid &",
    "looks like a shim": (
        f"mkdir process; echo {shlex.quote(SLEEP)} > process/shim.py;"
        f"env -i setsid {sys.executable} -I -S process/shim.py /runs/no-record 3 4 pid &"
    ),
}
LOOK = """
    read -r _ _ _ shim _ < /proc/$PPID/stat
    for pid in $PPID $shim $ZYGOTE; do
        cat /proc/$pid/environ > /dev/null 2>&1 && echo open || echo closed
    done
    ulimit -Sc; ulimit -Hc
"""


def started_by(world: World) -> processes.Identity:
    """Return the process whose number is in the file `pid`."""
    file = world.work / "pid"
    pid = wait_for(lambda: file.exists() and file.read_text(encoding="utf-8"), BOUND, "its number")
    return identity_of(int(pid))


@pytest.mark.parametrize("how", HIDING)
def test_a_program_that_passes_for_a_shim_is_ended_with_its_run(world: World, how: str) -> None:
    run_id = world.asking_run(shell(HIDING[how]), asks("Go on?"))
    left = started_by(world)
    kill(world.worker(run_id))  # which would end what its shell has started
    assert world.failed(run_id)[0] == "crashed"
    world.gone(run_id)
    assert not processes.is_alive(left)


def test_a_process_with_the_mark_of_a_run_is_ended_by_its_shim_wherever_it_was_started(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"))
    with Child(WAIT, environment={"SUBAGENT_RUN_ID": run_id}, new_session=True) as elsewhere:
        assert elsewhere.hear() == "there"
        world.stop(run_id)
        assert elsewhere.wait() in (-signal.SIGTERM, -signal.SIGKILL)
    world.gone(run_id)


def test_a_run_that_a_program_has_started_is_spared_as_a_record_names_its_shim(world: World) -> None:
    world.agent(env={"ANTHROPIC_API_KEY": "${ANTHROPIC_API_KEY}"})  # its shell hands it on
    world.agent("other")
    away = "env -u SUBAGENT_RUN_ID -u SUBAGENT_RUN_TOKEN SUBAGENT_WARM=0"
    other = {"when": {"system": "subagent other"}, "turns": [asks("Which?"), says("Done.")]}
    command = f"{away} {shlex.join(PROGRAM)} run other 'Do it.' --detach"
    world.play(shell(command), asks("Go on?"), conversations=[other])
    world.environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    run_id = world.start_asking()
    (spared,) = set(world.store.run_ids()) - {run_id}
    world.asking(spared)
    kill(world.worker(run_id))
    assert world.failed(run_id)[0] == "crashed"
    world.gone(run_id)
    world.reply(spared, "this")
    assert world.completed(spared) == "Done."


def look_into(world: World, switch: str) -> list[str]:
    """Return what a program of a run sees of its worker, its shim and a warm process, and of its limits."""
    zygote = next(warm.zygotes(Path(world.environment[warm.PLACE])))
    world.environment |= {"SUBAGENT_WARM": switch, "ZYGOTE": str(zygote.pid)}
    simulator = world.play(shell(LOOK), asks("Go on?"))
    run_id = world.start_asking()
    assert is_fork(world.worker(run_id)) == is_fork(world.shim(run_id)) == (switch == "1")
    (seen,) = tool_results(simulator.requests[-1].body)
    return seen.split()


@pytest.mark.skipif(os.getuid() == 0, reason="root may look into every process")
def test_worker_shim_and_warm_process_are_closed_to_the_programs_of_their_own_user(world: World) -> None:
    world.agent()
    warm.await_zygote()
    for switch in ("1", "0"):
        assert look_into(world, switch) == ["closed"] * 3 + ["0", "0"]


KILLS = ("tests/faults/test_kills.py", "tests/faults/test_identities.py", "tests/run/test_processes.py")
PROOFS = ("tests/faults/test_proofs.py", "tests/process/test_forked_worker.py")
SAMPLE = (
    test_worker_shim_and_warm_process_are_closed_to_the_programs_of_their_own_user,
    test_kills.test_what_a_run_leaves_behind_at_its_end_is_ended_soon,
    test_a_run_that_a_program_has_started_is_spared_as_a_record_names_its_shim,
)


@pytest.mark.skipif(os.getuid() != 0, reason="the suite runs as an ordinary user")
@pytest.mark.timeout(900)
def test_kills_and_sweeps_are_the_same_for_an_ordinary_user() -> None:
    with user() as somebody:
        if WHOLE:
            somebody.run_tests(*KILLS, *PROOFS)
        else:
            somebody.play(*SAMPLE)
