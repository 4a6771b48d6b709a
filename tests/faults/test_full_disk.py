"""A disk that is really full: writes that are short, and runs that go on once there is room again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.domain import events
from subagent_server.domain.errors import StorageFailed
from subagent_server.domain.records import RunResult
from subagent_server.domain.states import Status
from subagent_server.host import journal
from subagent_server.service.doctor import examine
from subagent_server.store.runs import RunStore
from tests.faults.disks import fill, memory_disk
from tests.helpers.files import names
from tests.helpers.runs import ASKED, LATER, STARTED, start_run
from tests.helpers.turns import asks, says, shell
from tests.helpers.world import World

PAGE = os.sysconf("SC_PAGESIZE")
RESULT = RunResult(outcome=Status.COMPLETED, text="x" * (6 * PAGE))
KNOWN = {"request.json", "run.meta.json", "run.meta.lock", "result.json"}


@pytest.fixture
def small_store(tmp_path: Path) -> Iterator[RunStore]:
    """An empty runs root on a disk of its own."""
    with memory_disk(tmp_path / "runs", "2m") as place:
        store = RunStore(place)
        store.make_root()
        yield store


def test_whatever_room_is_left_the_state_is_whole_and_with_more_room_the_end_is_written(
    small_store: RunStore,
) -> None:
    stored_at = []
    for pages in range(14):
        run = small_store.paths.run(f"run-{pages:02d}")
        start_run(small_store, run.run_id, STARTED, ASKED)
        before = run.meta.read_bytes()
        filler = fill(small_store.paths.root, leave=pages * PAGE)
        try:
            small_store.update(run.run_id, events.Finished(), LATER, result=RESULT)
            stored_at.append(pages)
        except StorageFailed as error:
            assert "could not be written" in error.sentence and "free space" in error.sentence
            assert run.meta.read_bytes() == before
        assert set(names(run.directory)) <= KNOWN
        filler.unlink()
        assert small_store.update(run.run_id, events.Finished(), LATER, result=RESULT).status == "completed"
        assert small_store.read_result(run.run_id) == RESULT
    assert 0 < len(stored_at) < 14, "there was too little room, and there was enough"


@pytest.fixture
def small_world(tmp_path: Path) -> Iterator[World]:
    """A world whose runs are on a disk of their own."""
    made = World(tmp_path)
    with memory_disk(made.runs, "4m"):
        yield made
        made.close()


def test_on_a_full_disk_a_run_waits_whole_and_goes_on_once_there_is_room(small_world: World) -> None:
    world = small_world
    world.agent()
    world.play(asks("Go on?"), says("Done."))
    run_id = world.start()
    world.asking(run_id)
    filler = fill(world.runs)
    before, runs = world.paths(run_id).meta.read_bytes(), world.store.run_ids()
    for words in (["reply", run_id, "Yes."], ["run", "worker", "More work.", "--detach"]):
        done = world.cli(*words)
        assert done.returncode == 6, done
        assert done.stderr.count("\n") == 1 and "free space" in done.stderr
    assert world.paths(run_id).meta.read_bytes() == before
    assert world.store.run_ids() == runs
    assert run_id in world.cli("ls").stdout
    filler.unlink()
    assert world.cli("reply", run_id, "Yes.").returncode == 0
    assert world.completed(run_id) == "Done."


def test_a_run_works_on_while_the_disk_is_full_and_its_journal_goes_on_once_there_is_room(
    small_world: World,
) -> None:
    world = small_world
    world.agent()
    wait_and_say = "until [ -e {0} ]; do sleep 0.05; done; head -c 9000 /dev/zero | tr '\\0' x; echo {0}"
    simulator = world.play(
        shell(wait_and_say.format("full")), shell(wait_and_say.format("free")), says("Done.")
    )
    run_id = world.start()
    simulator.wait_for_requests(1, 40)
    filler = fill(world.runs)
    (world.work / "full").touch()
    simulator.wait_for_requests(2, 40)
    filler.unlink()
    (world.work / "free").touch()
    assert world.completed(run_id) == "Done."
    world.gone(run_id)
    assert "could not be written (" in world.paths(run_id).worker_out.read_text(encoding="utf-8")
    results = [e for e in journal.records(world.paths(run_id).events) if e["type"] == "tool_result"]
    assert len(results) == 1 and "free" in results[0]["text"], "what had no room is missing"
    assert not list(examine(world.store, run_id, {}))
    world.abandoned.add(run_id)  # half a line is left, which readers pass over and a strict reader does not


def test_a_run_that_ends_on_a_full_disk_has_not_completed_and_its_files_are_whole(small_world: World) -> None:
    world = small_world
    world.agent()
    simulator = world.play(says("Done.", latency=1.0))
    run_id = world.start()
    simulator.wait_for_requests(1, 40)
    filler = fill(world.runs)
    world.gone(run_id)
    assert world.meta(run_id).status is Status.RUNNING, "nobody could write anything else"
    filler.unlink()
    observed = world.look(run_id)
    assert (observed.meta.status, observed.live) == (Status.FAILED, False)
    assert observed.meta.error is not None and observed.meta.error.code in ("lost", "crashed", "storage")
