"""A run is started although the zygote is in trouble, and a start that is refused leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from subagent_server.process import zygote_client
from subagent_server.process.cleanup import is_gone
from subagent_server.process.launcher import LaunchPackage
from subagent_server.process.marks import read_shim
from subagent_server.process.shim import ZYGOTE_SECONDS
from subagent_server.run import locks, processes, transitions
from subagent_server.run.processes import now
from subagent_server.run.store import RunStore
from subagent_server.verbs.reconcile import read_exit
from subagent_server.verbs.start import StartOrder, start
from tests.helpers import warm
from tests.helpers.processes import REPOSITORY
from tests.helpers.runs import RUN_ID, make_meta, make_request
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import WarmPlace, forks_of, is_fork
from tests.helpers.world import BOUND, World
from tests.process.zygote.tiny import tiny_place


def test_a_run_starts_plainly_if_the_zygote_is_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_client, "MOST_ZYGOTES", 0)  # no other in its place, which takes seconds
    world.agent_saying(asks("Go on?"), says("Done."))
    with tiny_place(world.home / "place") as place:
        zygote = place.start()
        world.environment[warm.PLACE] = str(place.directory)
        processes.send_signal(zygote, signal.SIGSTOP)
        run_id = world.start_asking()
        assert not is_fork(world.worker(run_id))
        shim = read_shim(world.paths(run_id))["shim"]["pid"]
        assert os.getsid(shim) == shim, "it outlives the terminal of its starter"
        wait_for(lambda: not processes.is_alive(zygote), BOUND, "the end of a zygote that is in the way")
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."


def test_a_run_that_finds_the_zygote_loading_waits_for_its_fork(world: World, place: WarmPlace) -> None:
    world.agent_saying(asks("Go on?"))
    warm.spawn(place.directory)
    wait_for(lambda: list(place.directory.glob("*.loading")), BOUND, "a zygote that loads")
    (zygote,) = warm.zygotes(place.directory)
    processes.send_signal(zygote, signal.SIGSTOP)  # it cannot be ready before the start
    run_id = world.start()
    assert list(place.directory.glob("*.loading"))
    processes.send_signal(zygote, signal.SIGCONT)
    world.asking(run_id)
    assert is_fork(world.worker(run_id))
    world.stop(run_id)
    world.gone(run_id)


def test_the_start_right_behind_the_one_that_begins_the_zygote_waits_for_its_fork(
    world: World, place: WarmPlace
) -> None:
    world.agent_saying(asks("Go on?"), asks("Go on?"))
    service, began = world.service, time.time()
    run_ids = [start(service, StartOrder("worker", "Go.")).run_id for _ in range(2)]
    place.zygote()
    (socket,) = place.directory.glob("*.sock")
    is_late = socket.stat().st_mtime - began > ZYGOTE_SECONDS  # a busy machine: then it starts plainly
    for run_id, is_warm in zip(run_ids, (False, True), strict=True):
        world.asking(run_id)
        assert is_fork(world.worker(run_id)) is is_warm or is_late
        world.stop(run_id)
        world.gone(run_id)


def test_a_zygote_ends_with_sigterm_although_it_has_rehearsed_a_worker_that_ignores_it(
    place: WarmPlace,
) -> None:
    zygote = place.start()
    processes.send_signal(zygote, signal.SIGTERM)  # as at a logout: systemd would wait 90 s for it
    wait_for(lambda: not processes.is_alive(zygote), BOUND, "its end")


def test_a_zygote_that_has_too_much_to_do_to_answer_the_starter_forks_the_run_later(
    world: World, shared_place: WarmPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.agent_saying(asks("Go on?"))
    shared_place.zygote()
    monkeypatch.setattr(zygote_client, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(zygote_client, "SILENT_SECONDS", 1e-6)
    run_id = world.start_asking()
    assert is_fork(world.worker(run_id))
    world.stop(run_id)


def test_a_start_that_is_refused_after_it_has_connected_leaves_no_process_and_no_lock(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent(mcpServers=[{"missing": {"command": "${NO_SUCH_VARIABLE}"}}])
    zygote = shared_place.zygote()
    run_id = world.start()
    assert world.failed(run_id)[0] == "config"
    assert not locks.is_held(world.paths(run_id).live_lock)
    wait_for(lambda: not forks_of(zygote), BOUND, "no fork")


def test_a_run_that_was_stopped_before_its_shim_begins_never_gets_a_worker(world: World) -> None:
    store = world.store
    run = store.create(make_request())
    with world.service.launcher.starting() as starting:
        reservation = starting.reserve(run)
    store.publish(make_meta())
    store.update(RUN_ID, transitions.StopRequested(reason="enough"), now())
    reservation.start(LaunchPackage({}, dict(world.environment), str(world.work), "Do it."))
    world.gone(RUN_ID)
    assert "shim" in read_shim(run) and "worker" not in read_shim(run)
    assert read_exit(run)["workerStarted"] is False


def test_a_shim_whose_record_the_disk_refuses_says_so_in_one_sentence(world: World) -> None:
    run = world.store.create(make_request())
    with world.service.launcher.starting() as starting:
        reservation = starting.reserve(run)
    world.store.publish(make_meta())
    run.shim.path.mkdir()
    reservation.start(LaunchPackage({}, dict(world.environment), str(world.work), "Do it."))
    world.gone(RUN_ID)
    reason = read_exit(run)["reason"]
    assert "shim.json could not be written" in reason and reason.endswith("again."), reason
    run.shim.path.rmdir()


@pytest.mark.parametrize("record", [b"[" * 30_000, b"[]", b'{"treeGone"', b"\xff"])
def test_a_record_that_no_shim_wrote_says_of_no_run_that_it_is_gone(store: RunStore, record: bytes) -> None:
    run = store.create(make_request(RUN_ID))
    run.exit.write(record)
    assert not is_gone(run)


def test_where_pythonpath_alone_leads_here_no_run_is_made_and_the_sentence_says_so(world: World) -> None:
    world.agent()
    packages = Path(click.__file__).parents[1]
    environment = {**world.environment, "PYTHONPATH": f"{REPOSITORY}:{packages}"}
    outside = [str(Path(sys.executable).resolve()), "-P", "-m", "subagent_server"]  # of no environment
    words = ["run", "worker", "Go."]
    done = subprocess.run([*outside, *words], env=environment, cwd=world.work, capture_output=True, text=True)
    assert done.returncode == 6 and "PYTHONPATH alone leads to this program" in done.stderr, done
    assert world.store.run_ids() == []
