"""A disk that is really full: writes that are short, and runs that go on once there is room again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.run import durable, transitions
from subagent_server.run.errors import StorageFailed
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.verbs.examine import examine
from subagent_server.verbs.reconcile import tree_is_gone
from subagent_server.verbs.remove import Age, Pruned, prune
from tests.faults.disks import fill, memory_disk
from tests.helpers.files import names
from tests.helpers.processes import run_python
from tests.helpers.runs import ASKED, LATER, STARTED, start_run
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import World, kill

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
        before = run.meta.path.read_bytes()
        filler = fill(small_store.paths.root, leave=pages * PAGE)
        try:
            small_store.update(run.run_id, transitions.Finished(), LATER, result=RESULT)
            stored_at.append(pages)
        except StorageFailed as error:
            assert "could not be written" in error.sentence and "free space" in error.sentence
            assert run.meta.path.read_bytes() == before
        assert set(names(run.directory)) <= KNOWN
        filler.unlink()
        ended = small_store.update(run.run_id, transitions.Finished(), LATER, result=RESULT)
        assert ended.status == "completed"
        assert small_store.read_result(run.run_id) == RESULT
    assert 0 < len(stored_at) < 14, "there was too little room, and there was enough"


BEGIN = """
    import os, sys
    from subagent_server.worker.__main__ import main
    memory = os.memfd_create("package")
    os.write(memory, b'{"prompt": "x", "secrets": []}')
    main([sys.argv[1], str(memory)])
"""


def test_a_worker_that_cannot_write_that_it_has_begun_ends_its_run_with_storage(
    small_store: RunStore,
) -> None:
    run = small_store.paths.run("run-00")
    start_run(small_store, run.run_id)
    small_store.reserve(run)
    filler = fill(small_store.paths.root)
    done = run_python(BEGIN, run.directory)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    meta = small_store.read(run.run_id)
    assert meta.error is not None and (meta.status, meta.error.code) == (Status.FAILED, "storage")
    filler.unlink()


@pytest.fixture
def small_world(tmp_path: Path) -> Iterator[World]:
    """A world whose runs are on a disk of their own."""
    made = World(tmp_path)
    with memory_disk(made.runs, "4m"):
        yield made
        made.close()


def test_on_a_full_disk_a_run_waits_whole_and_goes_on_once_there_is_room(small_world: World) -> None:
    world = small_world
    run_id = world.asking_run(asks("Go on?"), says("Done."))
    filler = fill(world.runs)
    before, runs = world.paths(run_id).meta.path.read_bytes(), world.store.run_ids()
    for words in (["reply", run_id, "Yes."], ["run", "worker", "More work.", "--detach"]):
        done = world.cli(*words)
        assert done.returncode == 6, done
        assert done.stderr.count("\n") == 1 and "free space" in done.stderr
    assert world.paths(run_id).meta.path.read_bytes() == before
    assert world.store.run_ids() == runs
    assert run_id in world.cli("ls").stdout
    filler.unlink()
    assert world.cli("reply", run_id, "Yes.").returncode == 0
    assert world.completed(run_id) == "Done."


def test_a_run_works_on_while_the_disk_is_full_and_its_journal_goes_on_once_there_is_room(
    small_world: World,
) -> None:
    world = small_world
    wait_and_say = "until [ -e {0} ]; do sleep 0.05; done; head -c 9000 /dev/zero | tr '\\0' x; echo {0}"
    simulator = world.agent_saying(
        shell(wait_and_say.format("full")), shell(wait_and_say.format("free")), says("Done.")
    )
    run_id = world.start()
    simulator.wait_for_requests(1, 60)
    filler = fill(world.runs)
    (world.work / "full").touch()
    simulator.wait_for_requests(2, 60)
    filler.unlink()
    (world.work / "free").touch()
    assert world.completed_and_gone(run_id) == "Done."
    assert "could not be written (" in world.paths(run_id).worker_out.path.read_text(encoding="utf-8")
    results = [e for e in durable.records(world.paths(run_id).events) if e["type"] == "tool_result"]
    assert len(results) == 1 and "free" in results[0]["text"], "what had no room is missing"
    assert not list(examine(world.store, [run_id], {}))
    world.abandoned.add(run_id)  # half a line is left, which readers pass over and a strict reader does not


LONG = "x" * 100_000


def test_what_ends_a_run_is_written_though_the_disk_is_full_and_the_rest_once_there_is_room(
    small_world: World,
) -> None:
    world = small_world
    world.agent()
    world.agent("painter")
    painting = {"when": {"system": "subagent painter"}, "turns": [asks("Colour?"), asks("Really?")]}
    until_full = shell("until [ -e full ]; do sleep 0.05; done")
    more_than_others_free = says("x" * 1_000_000)  # a painter may still replace a file when the disk fills
    world.play(until_full, more_than_others_free, conversations=[painting])
    ending, killed, stopped = world.start(), world.start(agent="painter"), world.start(agent="painter")
    for run_id in (killed, stopped):
        world.asking(run_id)
        world.reply(run_id, LONG)
        world.until(run_id, lambda meta: len(meta.messages) == 2)
    wait_for(lambda: world.events(ending, "tool_call"), 60, "the work of the run that will end")
    fill(world.runs)
    (world.work / "full").touch()
    code, message = world.failed(ending)
    assert code == "storage" and "result.json could not be written (No space left" in message
    kill(world.worker(killed))
    assert world.failed(killed)[0] == "crashed"
    assert world.stop(stopped, "enough").meta.status is Status.STOPPED
    run_ids = (ending, killed, stopped)
    for run_id in run_ids:
        world.gone(run_id)
        assert not world.paths(run_id).spare.exists()
        is_settled = tree_is_gone(world.paths(run_id))
        assert is_settled == (run_id not in world.store.live_ids()), "else no list would look at it again"
    fill(world.runs, name=".more")  # what the spare files gave back
    seen = [world.look(run_id) for run_id in run_ids]
    assert [observed.live for observed in seen] == [False] * 3
    for name in (".filler", ".more"):
        (world.runs / name).unlink()
    for run_id, before in zip(run_ids, seen, strict=True):
        assert world.look(run_id) == before
        assert not list(examine(world.store, [run_id], {}))


def test_a_dead_run_whose_end_has_no_room_at_all_is_read_and_removed(small_world: World) -> None:
    world = small_world
    run_id = world.asking_run(asks("Go on?"))
    world.paths(run_id).spare.path.unlink()  # as where a quota refuses what was reserved, too
    filler = fill(world.runs)
    kill(world.shim(run_id))
    kill(world.worker(run_id))
    observed = world.look(run_id)
    assert observed.meta.error is not None and (observed.meta.error.code, observed.live) == ("lost", False)
    for words in (["show", run_id], ["logs", run_id], ["ls"]):
        done = world.cli(*words)
        assert done.returncode == 0 and "could not be written" not in done.stdout, done
    assert not world.meta(run_id).status.is_terminal
    assert world.cli("rm", run_id).returncode == 0, "that makes room"
    filler.unlink()


def test_room_is_kept_for_the_end_of_a_run_as_long_as_it_has_none(small_store: RunStore) -> None:
    run = small_store.paths.run("run-00")
    start_run(small_store, run.run_id, STARTED, ASKED)
    small_store.reserve(run)
    long = transitions.ProgressReported(summary=LONG)
    small_store.update(run.run_id, long, LATER)
    assert run.spare.stat().st_size > len(LONG), "it grows with the state"
    filler = fill(small_store.paths.root)
    with pytest.raises(StorageFailed, match="free space"):
        small_store.update(run.run_id, transitions.ProgressReported(summary="short"), LATER)
    assert run.spare.exists(), "nothing but an end may take it"
    stopped = small_store.update(run.run_id, transitions.StopRequested(reason="enough"), LATER)
    assert small_store.read(run.run_id) == stopped and stopped.status is Status.STOPPED
    assert set(names(run.directory)) <= KNOWN
    filler.unlink()


def test_runs_are_removed_where_the_disk_has_no_room_for_another_name(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "runs", "2m,nr_inodes=40") as place:
        store = RunStore(place)
        store.make_root()
        start_run(store, "run-00", STARTED, transitions.StopRequested())
        with pytest.raises(OSError):
            for number in range(40):
                (place / f".{number}").touch()
        assert list(prune(store, Age())) == [Pruned("run-00")]
        (place / ".40").touch()
