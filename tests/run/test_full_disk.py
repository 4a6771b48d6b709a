"""A disk that refuses: what was there is whole, nothing half-made is left, and the run says so.

The disk is a limit on the size of files in a process of its own: a write beyond it fails as on a full disk.
"""

import json

import pytest

from subagent_server.run.journal import RunJournal
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.helpers.files import names
from tests.helpers.processes import run_python
from tests.helpers.runs import LATER, RUN_ID, STARTED, start_run

pytestmark = pytest.mark.process

PRELUDE = """
import os, resource, sys
from pathlib import Path
from subagent_server.run import transitions
from subagent_server.run.errors import StorageFailed
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from subagent_server.run.journal import RunJournal
from subagent_server.run.store import RunStore
from tests.helpers.runs import LATER, RUN_ID
store = RunStore(Path(sys.argv[1]))

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def attempt(event, **files):
    try:
        store.update(RUN_ID, event, LATER, **files)
        print("stored")
    except StorageFailed as error:
        print(error.code, error.sentence)
"""
LONG = "x" * 100_000
LONG_RESULT = f"RunResult(outcome=Status.COMPLETED, text={LONG!r})"


def on_a_small_disk(store: RunStore, code: str) -> str:
    """Run `code` after the prelude and return what it printed."""
    done = run_python(PRELUDE + code, store.paths.root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_state_that_cannot_be_written_leaves_the_old_one_and_no_other_file(store: RunStore) -> None:
    before = start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    written, content = run.meta.path.read_bytes(), names(run.directory)
    said = on_a_small_disk(store, f"room(5000); attempt(transitions.ProgressReported(summary={LONG!r}))")
    assert said.startswith(f"storage {run.meta} could not be written (File too large)")
    assert (run.meta.path.read_bytes(), names(run.directory)) == (written, content)
    assert store.read(RUN_ID) == before


@pytest.mark.parametrize("payload", ["None", "b'x' * 1000"])
def test_a_result_that_cannot_be_written_changes_nothing_and_leaves_no_other_file(
    store: RunStore, payload: str
) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    written, content = run.meta.path.read_bytes(), names(run.directory)
    said = on_a_small_disk(
        store, f"room(5000); attempt(transitions.Finished(), payload={payload}, result={LONG_RESULT})"
    )
    assert said.startswith(f"storage {run.result} could not be written")
    assert (run.meta.path.read_bytes(), names(run.directory)) == (written, content)


def test_a_result_whose_state_cannot_be_written_is_applied_by_the_next_writer(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    said = on_a_small_disk(
        store,
        f"""
room(5000)
attempt(transitions.Finished(summary={LONG!r}), result=RunResult(outcome=Status.COMPLETED, text="paid"))
""",
    )
    assert said.startswith("storage")
    assert store.read(RUN_ID).status is Status.RUNNING
    ended = store.roll_forward(RUN_ID, LATER)
    stored = store.read_result(RUN_ID)
    assert stored is not None
    assert (ended.status, stored.text) == (Status.COMPLETED, "paid")


def test_a_first_state_that_cannot_be_written_leaves_no_run(store: RunStore) -> None:
    said = on_a_small_disk(
        store,
        """
from tests.helpers.runs import make_meta, make_request
run = store.create(make_request())
room(50)
try:
    store.publish(make_meta())
except StorageFailed as error:
    print(error.code)
store.discard(run)
print(store.run_ids(), store.live_ids())
""",
    )
    assert said.splitlines() == ["storage", "[] []"]
    assert names(store.paths.root) == [".changes", ".gitignore", ".slots"]


def test_a_journal_that_cannot_be_written_is_a_warning_and_the_run_goes_on(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    done = run_python(
        PRELUDE
        + """
journal = RunJournal(store.paths.run(RUN_ID))
journal.append("turn", LATER, {"turn": 1})
room(150)
journal.append("text", LATER, {"text": "x" * 5000})
journal.append("text", LATER, {"text": "y" * 5000})
room(resource.RLIM_INFINITY)
journal.append("turn", LATER, {"turn": 2})
print("went on")
""",
        store.paths.root,
    )
    assert done.stdout == "went on\n"
    assert done.stderr.count("The journal of the run could not be written") == 2
    assert "Traceback" not in done.stderr
    check_dense(store)
    RunJournal(store.paths.run(RUN_ID)).append("turn", LATER, {"turn": 3})
    check_dense(store)


def test_a_line_for_whose_newline_there_is_no_room_is_taken_back_with_its_number(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    line = len('{"seq":1,"at":"2026-11-22T09:35:15.417Z","type":"turn","turn":1}')
    on_a_small_disk(
        store,
        f"""
journal = RunJournal(store.paths.run(RUN_ID))
room({line})
journal.append("turn", LATER, {{"turn": 1}})
room(resource.RLIM_INFINITY)
journal.append("turn", LATER, {{"turn": 2}})
""",
    )
    check_dense(store, at_least=1)


def check_dense(store: RunStore, *, at_least: int = 2) -> None:
    """Assert that every line of the journal is an event, numbered from 1 without gap or repetition."""
    lines = store.paths.run(RUN_ID).events.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) >= at_least
