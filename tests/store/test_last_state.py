"""Looking at one run again and again: an unchanged state is not read anew, and no change is missed."""

import os
from pathlib import Path

import pytest

from subagent_server.domain import events
from subagent_server.domain.errors import UnknownRun, UnreadableMeta
from subagent_server.domain.records import RunMeta
from subagent_server.host import atomic
from subagent_server.host.directory import Entry
from subagent_server.store.last_state import TRUSTED_SECONDS, LastState
from subagent_server.store.runs import RunStore
from tests.helpers.runs import LATER, RUN_ID, STARTED, make_meta, start_run

LONG_AGO = 1_000_000_000_123_456_789


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def path(store: RunStore) -> Path:
    """The state of a run."""
    start_run(store)
    return store.paths.run(RUN_ID).meta.path


def written(path: Path, revision: int) -> None:
    """Replace a state by one that is as long."""
    atomic.write_durably(Entry.at(path), make_meta().model_copy(update={"revision": revision}).to_json())


def aged(path: Path) -> None:
    """Let a file look as if it had been there for years."""
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


def test_a_state_that_is_as_it_was_is_not_read_again(store: RunStore, path: Path) -> None:
    aged(path)
    last = LastState(store, RUN_ID)
    first = last.read()
    assert first == store.read(RUN_ID)
    assert last.read() is first


def test_every_one_of_many_quick_changes_is_seen(store: RunStore, path: Path) -> None:
    last = LastState(store, RUN_ID)
    store.update(RUN_ID, STARTED, LATER)
    seen: list[RunMeta] = []
    for number in range(60):
        store.update(RUN_ID, events.ProgressReported(summary=f"{number:03}"), LATER)
        seen += [last.read(), last.read()]
    assert [meta.summary for meta in seen] == [f"{number:03}" for number in range(60) for _ in range(2)]


def test_changes_of_one_moment_that_keep_the_size_are_seen_although_inodes_come_again(
    store: RunStore, path: Path
) -> None:
    last = LastState(store, RUN_ID)
    sizes, revisions = set(), []
    for revision in range(100, 200):
        written(path, revision)
        sizes.add(path.stat().st_size)
        revisions.append(last.read().revision)
    assert revisions == list(range(100, 200))
    assert len(sizes) == 1


def test_a_change_that_no_file_shows_is_seen_after_a_while(store: RunStore, path: Path) -> None:
    clock = Clock()
    last = LastState(store, RUN_ID, clock)
    written(path, 1)
    aged(path)
    assert last.read().revision == 1
    path.write_bytes(path.read_bytes().replace(b'"revision": 1', b'"revision": 2'))
    aged(path)
    clock.seconds += TRUSTED_SECONDS - 1
    assert last.read().revision == 1
    clock.seconds += 1
    assert last.read().revision == 2


def test_a_run_that_went_or_was_spoilt_meanwhile_is_refused_as_ever(store: RunStore, path: Path) -> None:
    aged(path)
    last = LastState(store, RUN_ID)
    last.read()
    path.write_bytes(b"{")
    with pytest.raises(UnreadableMeta):
        last.read()
    path.unlink()
    with pytest.raises(UnknownRun):
        last.read()
    atomic.write_durably(Entry.at(path), make_meta().to_json())
    assert last.read() == make_meta()
