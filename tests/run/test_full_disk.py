"""A disk that refuses: what was there is whole, nothing half-made is left, and the run says so."""

import json
from pathlib import Path

import pytest

from subagent_server.run import transitions
from subagent_server.run.errors import StorageFailed
from subagent_server.run.journal import RunJournal
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.helpers.files import longest_file, names
from tests.helpers.runs import LATER, RUN_ID, STARTED, make_meta, make_request, start_run

LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("event", "result", "payload", "file"),
    [
        (transitions.ProgressReported(summary=LONG), None, None, "meta"),
        (transitions.Finished(), RunResult(outcome=Status.COMPLETED, text=LONG), None, "result"),
        (transitions.Finished(), RunResult(outcome=Status.COMPLETED, text=LONG), b"x" * 1000, "result"),
    ],
)
def test_what_cannot_be_written_changes_nothing_and_leaves_no_other_file(
    store: RunStore, event: transitions.RunEvent, result: RunResult | None, payload: bytes | None, file: str
) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    before, content = run.meta.path.read_bytes(), names(run.directory)
    refusal = rf"^{getattr(run, file)} could not be written \(File too large\)"
    with pytest.raises(StorageFailed, match=refusal), longest_file(5000):
        store.update(RUN_ID, event, LATER, result=result, payload=payload)
    assert (run.meta.path.read_bytes(), names(run.directory)) == (before, content)


def test_a_first_state_that_cannot_be_written_leaves_no_run(store: RunStore) -> None:
    run = store.create(make_request())
    with pytest.raises(StorageFailed), longest_file(50):
        store.publish(make_meta())
    store.discard(run)
    assert store.run_ids() == store.live_ids() == []
    assert names(store.paths.root) == [".changes", ".gitignore", ".removed", ".slots"]


def test_a_root_that_could_not_be_made_whole_is_made_whole_later(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    with pytest.raises(StorageFailed), longest_file(50):
        store.make_root()
    store.make_root()
    assert "*" in (store.paths.root / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert names(store.paths.root) == [".changes", ".gitignore", ".removed", ".slots"]


def test_a_journal_that_cannot_be_written_is_a_warning_and_its_numbers_stay_dense(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    journal = RunJournal(run)
    journal.append("turn", LATER, {"turn": 1})
    line = len(run.events.path.read_bytes())
    # Room for nothing more, for a part of a line, and for all of one but its newline.
    for room in (line, line + 50, 2 * line - 1):
        with longest_file(room):
            journal.append("turn", LATER, {"turn": 2})
    journal.append("turn", LATER, {"turn": 2})
    RunJournal(run).append("turn", LATER, {"turn": 3})
    assert capsys.readouterr().err.count("The journal of the run could not be written") == 3
    lines = run.events.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]
