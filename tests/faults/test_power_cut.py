"""The power goes: what was told to be stored is there afterwards, whole."""

import json
import sys
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.store import RunStore
from subagent_server.verbs.reconcile import read_exit
from tests.faults.disks import PowerCut
from tests.helpers.processes import Child
from tests.helpers.runs import RUN_ID, STARTED, start_run
from tests.helpers.truth import read_lines
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

REFUSALS = ("could not be written", "does not confirm", "cannot be read")
"""What a change says when the power goes: in its write, in its sync, or before it has read what to change."""
WRITER = """
    import sys
    from pathlib import Path
    from subagent_server.run import transitions
    from subagent_server.run.errors import StorageFailed, UnreadableMeta
    from subagent_server.run.records import RunResult
    from subagent_server.run.states import Status
    from subagent_server.run.store import RunStore
    from datetime import timedelta
    from tests.helpers.runs import LATER
    at = lambda number: LATER + timedelta(minutes=number)
    store, run_id, count = RunStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    try:
        for number in range(count):
            meta = store.update(run_id, transitions.ProgressReported(summary="x" * 100 * number), at(number))
            print(meta.revision, flush=True)
        result = RunResult(outcome=Status.COMPLETED, text="Paid for.")
        print(store.update(run_id, transitions.Finished(), LATER, result=result).revision, flush=True)
        sys.stdin.readline()
    except (StorageFailed, UnreadableMeta) as error:
        print(error.sentence, flush=True)
"""


@pytest.mark.parametrize("changes", [1, 7])
def test_a_change_that_was_reported_as_stored_outlives_a_power_cut(tmp_path: Path, changes: int) -> None:
    disk = PowerCut(tmp_path)
    with disk.powered() as place:
        store = RunStore(place / "runs")
        start_run(store, RUN_ID, STARTED)
        with Child(WRITER, store.paths.root, RUN_ID, 1000) as writer:
            told = 0
            while told < changes:
                told = int(writer.hear())
            disk.cut()  # somewhere in the middle of the next change
            while (line := writer.hear()).isdecimal():
                told = int(line)
            assert any(words in line for words in REFUSALS), line
    with disk.powered():
        meta = store.read(RUN_ID)
        assert meta.revision in (told, told + 1)
        assert len(meta.transitions) == meta.revision


def test_a_result_that_was_reported_as_stored_outlives_a_power_cut(tmp_path: Path) -> None:
    disk = PowerCut(tmp_path)
    with disk.powered() as place:
        store = RunStore(place / "runs")
        start_run(store, RUN_ID, STARTED)
        with Child(WRITER, store.paths.root, RUN_ID, 1) as writer:
            assert [writer.hear(), writer.hear()] == ["2", "3"]
            disk.cut()
    with disk.powered():
        assert store.read(RUN_ID).status == "completed"
        result = store.read_result(RUN_ID)
        assert result is not None and result.text == "Paid for."
        assert json.loads(store.paths.run(RUN_ID).request.path.read_bytes())["runId"] == RUN_ID


def test_the_journal_of_a_run_whose_tree_is_on_record_as_gone_outlives_a_power_cut(
    world: World, tmp_path: Path
) -> None:
    disk, elsewhere = PowerCut(tmp_path), world.store
    world.agent_saying(says("All done."))
    with disk.powered() as place:
        world.store = RunStore(place / "runs")
        world.environment["SUBAGENT_RUNS"] = str(world.store.paths.root)
        run_id = world.start()
        run = world.paths(run_id)
        wait_for(lambda: read_exit(run).get("treeGone"), BOUND, "the end of the run's tree")
        world.gone(run_id)
        disk.cut()
        world.store = elsewhere  # its end is checked here
    with disk.powered() as place:
        run = RunStore(place / "runs").paths.run(run_id)
        events = [event["type"] for event in read_lines(run.events.path)]
        assert events[-1] == "run_ended" and "text" in events
        assert "All done." in run.log.path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("moment", "end"),
    [("while it works", "lost"), ("while it is asked", "lost"), ("after its end", "completed")],
)
def test_a_run_of_a_program_whose_power_was_cut_says_so_and_is_continued(
    world: World, tmp_path: Path, moment: str, end: str
) -> None:
    disk, elsewhere = PowerCut(tmp_path), world.store
    code = (
        f"import sys, time; sys.path.insert(0, {PROGRAMS!r})\n"
        "from asking_parent import Server\n"
        "print('At work.', flush=True)\n"
        f"{MOMENTS[moment]}"
    )
    world.agent(runner="command", command=sys.executable, args=["-c", code], prompt="")
    with disk.powered() as place:
        world.store = RunStore(place / "runs")
        world.environment["SUBAGENT_RUNS"] = str(world.store.paths.root)
        run_id = world.start("Paint it.")
        run = world.paths(run_id)
        if moment == "while it is asked":
            world.asking(run_id)
        elif moment == "while it works":
            wait_for(lambda: world.events(run_id, "text"), BOUND, "the first words")
        else:
            wait_for(lambda: read_exit(run).get("treeGone"), BOUND, "the end of the run's tree")
        shim, others = world.shim(run_id), processes.marked(f"SUBAGENT_RUN_ID={run_id}")
        disk.cut()
        for identity in (shim, *others):  # they end with the power; the shim first, or it records the end
            processes.send_signal(identity, 9)
        world.store = elsewhere
    with disk.powered() as place:
        world.store = RunStore(place / "runs")
        meta = world.look(run_id).meta
        assert (meta.error.code if meta.error else meta.status.value) == end
        world.agent(runner="command", command="/bin/echo", args=["Painted."], prompt="")
        second = world.continued(run_id, "Go on.")
        assert world.completed_and_gone(second) == "Painted."
        world.store = elsewhere


PROGRAMS = str(Path(__file__).parents[1] / "extensions" / "programs")
MOMENTS = {
    "while it works": "time.sleep(600)",
    "while it is asked": "Server().ask('Which colour?')",
    "after its end": "",
}
