"""Where the files of a run lie, and what it takes to know it."""

from pathlib import Path

import pytest

from subagent_server.run.errors import InvalidRunId
from subagent_server.run.files import Directory, Entry
from subagent_server.run.paths import RootPaths, RunPaths, run_at
from tests.helpers.files import names
from tests.helpers.runs import RUN_ID

DOCUMENTED = {
    "request": "request.json",
    "inputs": "inputs",
    "meta": "run.meta.json",
    "meta_lock": "run.meta.lock",
    "spare": "run.meta.spare",
    "result": "result.json",
    "payload": "payload.gz",
    "events": "events.jsonl",
    "log": "run.log",
    "transcript": "transcript.jsonl",
    "live_lock": "live.lock",
    "shim_claim": "shim.claim",
    "shim": "shim.json",
    "exit": "exit.json",
    "worker_out": "worker.out",
    "children": "children",
}
"""By hand from SPEC section 4."""


@pytest.mark.parametrize(("name", "file"), DOCUMENTED.items())
def test_every_file_of_a_run_lies_where_the_contract_says(tmp_path: Path, name: str, file: str) -> None:
    assert getattr(RootPaths(tmp_path).run(RUN_ID), name).path == tmp_path / RUN_ID / file


def test_the_names_that_no_run_has_are_known(tmp_path: Path) -> None:
    run = RootPaths(tmp_path).run(RUN_ID)
    run.directory.mkdir()
    for name in vars(RunPaths):
        if isinstance(place := getattr(run, name), Entry | Directory) and place.path.parent == run.directory:
            place.path.touch()
    assert {*DOCUMENTED.values(), "worktree.json", "quarantine"} <= set(names(run.directory))
    for name in ("wake.17", "wake.n-1.17", ".run.meta.json.17.0a0b.tmp", "model.pt", "deep"):
        (run.directory / name).touch()
    assert sorted(run.other_names()) == ["deep", "model.pt"]


def test_who_sleeps_on_a_run_is_found_by_the_name_of_its_fifo(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    for name in ("awake.1", "run.log", "wake.another-host.12"):
        (tmp_path / name).touch()
    for pid in (12, 3):
        run.wake(pid).path.touch()
    assert run.sleepers() == [run.wake(12), run.wake(3)]


@pytest.mark.parametrize("run_id", ["..", "../x", "", ".changes", ".slots", "a/b", "A", "a\n"])
def test_no_path_is_made_of_what_is_no_run_id(tmp_path: Path, run_id: str) -> None:
    root = RootPaths(tmp_path)
    for make in (root.run, root.change_mark):
        with pytest.raises(InvalidRunId):
            make(run_id)
