"""EIO, ENOSPC and their like at every single write of a run's end: the old state or the new one, whole."""

from itertools import product
from pathlib import Path

import pytest

from subagent_server.run.paths import RunPaths, run_at
from subagent_server.run.records import RunMeta, RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.faults.system_calls import CALLS, STRACE, Program
from tests.helpers.files import names
from tests.helpers.runs import ASKED, LATER, STARTED, start_run
from tests.helpers.scale import sampled

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed: it is what spoils the calls")

END = Program("""
    from subagent_server.run import transitions
    from subagent_server.run.errors import StorageFailed
    from subagent_server.run.records import RunResult
    from subagent_server.run.states import Status
    from subagent_server.run.store import RunStore
    from tests.helpers.runs import LATER

    def attempt(path):
        result = RunResult(outcome=Status.COMPLETED, text="All done.")
        try:
            RunStore(path.parent).update(path.name, transitions.Finished(), LATER, result=result)
        except StorageFailed as error:
            return error.sentence
        return ""
""")
BEGIN = Program("""
    from subagent_server.run.errors import StorageFailed
    from subagent_server.run.store import RunStore
    from tests.helpers.runs import make_meta, make_request

    def attempt(path):
        store = RunStore(path.parent)
        try:
            store.create(make_request(path.name))
            store.publish(make_meta(path.name))
        except StorageFailed as error:
            return error.sentence
        return ""
""")
KNOWN = {"request.json", "run.meta.json", "run.meta.lock", "result.json"}
FAULTS = tuple(f"error={name}" for name in ("EIO", "ENOSPC", "EDQUOT", "EROFS", "ENOMEM"))
SPOILED = sampled([*product(CALLS, FAULTS)], 7, lambda case: case[0], lambda case: case[1])
WRITES = {"openat": 4, "write": 2, "fsync": 4, "renameat": 2}
"""How often a run's end does what: a lock, opened once to be checked and once to be held, and twice (result,
state) a file, its name, and its directory."""


def new_run(store: RunStore, run_id: str) -> RunPaths:
    """Make a run that asks."""
    start_run(store, run_id, STARTED, ASKED)
    return store.paths.run(run_id)


def check_whole(run: RunPaths, said: str) -> Status:
    """Check that a fault has left one state or the other, whole, and a sentence where it was told at all."""
    meta = RunMeta.model_validate_json(run.meta.path.read_bytes())
    assert meta.status in (Status.WAITING, Status.COMPLETED)
    assert meta.revision == len(meta.transitions) == (2 if meta.status is Status.WAITING else 3)
    assert set(names(run.directory)) <= KNOWN
    assert "\n" not in said and "Traceback" not in said
    unsure = "was written, but the disk does not confirm that it will last" in said
    if run.result.exists():
        assert RunResult.model_validate_json(run.result.path.read_bytes()).text == "All done."
    else:
        assert meta.status is Status.WAITING
    if meta.status is Status.WAITING:
        assert unsure or ("could not be written" in said and "what was there is unchanged" in said)
    else:
        assert unsure or not said
    return meta.status


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return which system calls of the program are the writes of a run's end."""
    store = RunStore(tmp_path_factory.mktemp("counted") / "runs")
    found = END.numbers(new_run(store, "counted").directory)
    assert store.read("counted").status is Status.COMPLETED
    return found


def test_every_write_of_a_runs_end_is_known(numbers: dict[str, list[int]]) -> None:
    assert {call: len(found) for call, found in numbers.items()} == WRITES


@pytest.mark.parametrize(("call", "fault"), SPOILED)
def test_a_write_that_fails_leaves_a_whole_state_and_one_sentence_and_a_reader_goes_on(
    store: RunStore, numbers: dict[str, list[int]], call: str, fault: str
) -> None:
    cases: dict[Path, int] = {
        new_run(store, f"run-{number:02d}").directory: number for number in numbers[call]
    }
    said = END.attempt(call, fault, cases)
    statuses = [check_whole(run_at(path), said[path]) for path in cases]
    assert all(said.values())
    assert Status.WAITING in statuses
    for path in cases:
        has_result = run_at(path).result.exists()
        expected = Status.COMPLETED if has_result else Status.WAITING
        assert store.roll_forward(path.name, LATER).status is expected


def test_a_start_that_fails_is_no_run_or_a_whole_one_and_says_so_in_one_sentence(store: RunStore) -> None:
    numbers = BEGIN.numbers(store.paths.root / "counted")
    assert store.read("counted").status is Status.READY
    for call in CALLS:
        cases = {store.paths.root / f"{call}-{number:02d}": number for number in numbers[call]}
        said = BEGIN.attempt(call, "error=EIO", cases)
        for path in cases:
            assert said[path] and "\n" not in said[path]
            run = run_at(path)
            assert not path.exists() or set(names(path)) <= KNOWN
            if run.meta.exists():
                assert RunMeta.model_validate_json(run.meta.path.read_bytes()).status is Status.READY
                assert "does not confirm that it will last" in said[path]
