"""What is known of a large root: never the truth, right again whatever became of its file."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from subagent_server.domain import events
from subagent_server.domain.states import Status
from subagent_server.store import change_marks
from subagent_server.store.facts import read_facts
from subagent_server.store.index import open_index
from subagent_server.store.runs import RunStore
from subagent_server.store.stored import StoredRuns
from tests.helpers.processes import run_python
from tests.helpers.runs import LATER, RUN_ID, STARTED, start_run
from tests.helpers.stored import make_stored

FAILED = [Status.FAILED]


def found(store: RunStore, *statuses: Status, agent: str | None = None) -> list[str]:
    """Return what the index has, as it is opened now."""
    with open_index(store.paths) as index:
        return index.find(statuses, agent)


def garbage(path: Path) -> None:
    """Spoil the file."""
    path.write_bytes(b"no database at all" * 500)


def damage(path: Path) -> None:
    """Spoil all of the file but its beginning."""
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 30_000)


def other_version(path: Path) -> None:
    """Leave what another version could have left."""
    path.unlink()
    with sqlite3.connect(path) as file:
        file.executescript("CREATE TABLE runs(id); PRAGMA user_version = 99;")
    file.close()


def test_runs_are_found_by_status_agent_and_family(store: RunStore) -> None:
    ids = make_stored(store.paths.root, 40)
    failed = [run_id for number, run_id in enumerate(ids) if number % 10 in (7, 8)]
    assert found(store) == ids[::-1]
    assert found(store, *FAILED) == failed[::-1]
    assert found(store, *FAILED, agent="scout") == [ids[37], ids[17]]
    assert found(store, agent="nobody") == []
    with open_index(store.paths) as index:
        assert index.find([], None, ids[3]) == [ids[3]]
        assert sum(run.spent.input_tokens or 0 for run in index.ended()) == 40_000 + sum(range(40))


@pytest.mark.parametrize("harm", [Path.unlink, garbage, damage, other_version, None])
def test_a_file_that_is_missing_spoilt_or_of_another_version_is_made_anew(
    store: RunStore, harm: Callable[[Path], object] | None
) -> None:
    make_stored(store.paths.root, 30)
    before = found(store, *FAILED)
    if harm is None:
        shutil.rmtree(store.paths.index.path)
    else:
        harm(store.paths.index.path / "runs.sqlite3")
    assert found(store, *FAILED) == before and len(before) == 6


def test_a_place_that_takes_no_file_costs_time_and_nothing_else(store: RunStore) -> None:
    ids = make_stored(store.paths.root, 30)
    shutil.rmtree(store.paths.index.path, ignore_errors=True)
    store.paths.index.path.write_text("in the way", encoding="utf-8")
    assert found(store) == ids[::-1]
    assert list(islice(StoredRuns(store.paths).newest_first(), 2)) == [ids[-1], ids[-2]]


def test_runs_that_go_and_come_back_are_followed(store: RunStore, tmp_path: Path) -> None:
    ids = make_stored(store.paths.root, 20)
    gone = store.paths.run(ids[7])
    assert ids[7] in found(store, *FAILED)
    gone.directory.rename(tmp_path / "kept")
    assert ids[7] not in found(store)
    shutil.copytree(tmp_path / "kept", gone.directory)
    assert ids[7] in found(store, *FAILED)
    shutil.rmtree(gone.directory)
    shutil.copytree(store.paths.run(ids[0]).directory, tmp_path / "other")
    state = (tmp_path / "other" / "run.meta.json").read_text(encoding="utf-8").replace(ids[0], ids[7])
    (tmp_path / "other" / "run.meta.json").write_text(state, encoding="utf-8")
    (tmp_path / "other").rename(gone.directory)
    assert ids[7] not in found(store, *FAILED) and ids[7] in found(store, Status.COMPLETED)


def test_a_run_that_has_not_ended_is_asked_again_each_time(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    assert found(store, *FAILED) == [RUN_ID], "nothing is known of it, so it may fit"
    store.update(RUN_ID, events.StopRequested(reason="enough"), LATER)
    change_marks.retire(store.paths.run(RUN_ID))
    assert found(store, *FAILED) == [] and found(store, Status.STOPPED) == [RUN_ID]


@pytest.mark.race
def test_several_readers_that_need_the_index_at_once_all_get_it(store: RunStore) -> None:
    make_stored(store.paths.root, 300)
    code = (
        "import sys; from pathlib import Path; from subagent_server.store.index import open_index;"
        "from subagent_server.store.paths import RootPaths\n"
        "with open_index(RootPaths(Path(sys.argv[1]))) as index: print(len(index.find([])))"
    )
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: run_python(code, str(store.paths.root)), range(4)))
    assert [(one.stdout.strip(), one.stderr) for one in done] == [("300", "")] * 4


def test_names_of_a_large_root_are_kept_only_as_long_as_it_is_at_rest(store: RunStore) -> None:
    ids = make_stored(store.paths.root, 2_100)
    stored, newest = StoredRuns(store.paths), store.paths.index.path / "newest.json"
    assert list(islice(stored.newest_first(), 3)) == ids[:-4:-1]
    assert not newest.exists(), "the root has just changed: a further change could go unseen"

    os.utime(store.paths.root, (1, 1))
    assert list(stored.newest_first()) == ids[::-1]
    assert newest.exists()
    assert list(stored.newest_first()) == ids[::-1]
    newest.write_bytes(b"{")
    assert list(islice(stored.newest_first(), 1)) == ids[-1:]
    shutil.rmtree(store.paths.run(ids[-1]).directory)
    assert list(islice(stored.newest_first(), 1)) == [ids[-2]]
    assert stored.starting_with("20260101-00")
    assert ids[5] in stored.ending_in(ids[5].rsplit("-", 1)[-1])


def test_facts_agree_with_what_the_store_reads(store: RunStore) -> None:
    for run_id in make_stored(store.paths.root, 10):
        facts, meta = read_facts(store.paths.run(run_id)), store.read(run_id)
        assert facts is not None
        assert (facts.status, facts.agent, facts.label) == (meta.status, meta.agent_name, meta.label)
        assert (facts.created, facts.ended) == (meta.created_at, meta.ended_at)
        assert facts.what == (meta.error.message if meta.error else meta.summary)
        assert facts.spent.input_tokens == meta.usage.input_tokens
