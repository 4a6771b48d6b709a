"""Making runs: exclusive, whole or not at all, and nobody's business until their first state is written."""

import json
from pathlib import Path

import pytest

from subagent_server.run import wake
from subagent_server.run.errors import StorageFailed
from subagent_server.run.records import Usage
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.helpers.files import longest_file, names
from tests.helpers.runs import RUN_ID, STARTED, make_meta, make_request, start_run

OTHER_ID = "20261122-093016-000-zzzzzz"


def test_the_root_is_made_on_first_use_and_keeps_itself_out_of_the_repository(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "deep" / "runs")
    assert store.run_ids() == store.live_ids() == []
    assert not (tmp_path / "deep").exists()
    store.create(make_request())
    assert names(store.paths.root) == [".changes", ".gitignore", ".removed", ".slots", RUN_ID]
    assert "*" in (store.paths.root / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_a_new_directory_holds_the_request_and_is_its_owner_s_alone(store: RunStore) -> None:
    run = store.create(make_request(label="first"))
    assert names(run.directory) == ["request.json"]
    assert run.directory.stat().st_mode & 0o777 == 0o700
    assert json.loads(run.request.path.read_bytes())["createdAt"] == "2026-11-22T09:30:15.417Z"
    assert store.read_request(RUN_ID) == make_request(label="first")


def test_a_run_exists_for_everybody_when_its_first_state_is_written(store: RunStore) -> None:
    store.create(make_request())
    store.publish(make_meta())
    again = RunStore(store.paths.root)
    assert again.read(RUN_ID) == make_meta()
    assert again.live_ids() == again.run_ids() == [RUN_ID]


def test_a_nested_run_leaves_its_mark_with_its_parent(store: RunStore) -> None:
    start_run(store)
    store.create(make_request(OTHER_ID, parent_run_id=RUN_ID))
    assert store.children_of(RUN_ID) == [OTHER_ID]
    assert store.children_of(OTHER_ID) == []


def test_only_a_run_that_names_its_parent_adds_to_its_cost(store: RunStore) -> None:
    start_run(store)
    assert store.usage_below(RUN_ID) is None
    start_run(store, OTHER_ID)
    store.paths.run(RUN_ID).children.make()
    store.paths.run(RUN_ID).children.entry(OTHER_ID).touch()  # a mark is a file, and files are data
    assert store.usage_below(RUN_ID) is None
    store.create(make_request("child", parent_run_id=RUN_ID))
    store.publish(make_meta("child", parent_run_id=RUN_ID, with_descendants=Usage(turns=3)))
    assert store.usage_below(RUN_ID) == Usage(turns=3)


def test_a_run_that_is_discarded_leaves_nothing_behind(store: RunStore) -> None:
    start_run(store)
    run = store.create(make_request(OTHER_ID, parent_run_id=RUN_ID))
    store.publish(make_meta(OTHER_ID))
    for _ in range(2):
        store.discard(run, RUN_ID)
        assert store.children_of(RUN_ID) == []
        assert store.run_ids() == store.live_ids() == [RUN_ID]


def test_only_a_run_whose_tree_is_gone_leaves_the_list_of_the_live(store: RunStore) -> None:
    start_run(store)
    wake.retire(store.paths.run(RUN_ID))
    assert store.live_ids() == []
    assert store.read(RUN_ID).status is Status.READY
    wake.retire(store.paths.run(RUN_ID))


def test_a_request_that_the_disk_refuses_leaves_no_mark_with_the_parent(store: RunStore) -> None:
    start_run(store)
    with pytest.raises(StorageFailed), longest_file(1000):
        store.create(make_request(OTHER_ID, parent_run_id=RUN_ID, prompt="x" * 5000))
    assert store.children_of(RUN_ID) == []
    assert store.run_ids() == [RUN_ID]


def test_a_second_run_of_the_same_id_is_refused_and_the_first_is_whole(store: RunStore) -> None:
    before = start_run(store, RUN_ID, STARTED)
    with pytest.raises(StorageFailed, match="File exists"):
        store.create(make_request(prompt="another"))
    assert store.read(RUN_ID) == before and store.read_request(RUN_ID).prompt == "Look at it."
    assert store.live_ids() == [RUN_ID]
