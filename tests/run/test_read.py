"""Reading runs: ids first, unreadable ones by name, and the others in spite of them."""

import errno
import gzip
import json
import os
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from subagent_server.run import transitions
from subagent_server.run.errors import StorageFailed, UnknownRun, UnreadableMeta
from subagent_server.run.files import Entry
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.helpers.files import names
from tests.helpers.runs import LATER, RUN_ID, STARTED, make_meta, make_request, start_run

GOOD = json.loads(make_meta().to_json())
CORRUPT: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "half": make_meta().to_json()[:150],
    "not JSON": b"status: ready",
    "not UTF-8": b'{"runId": "\xff\xfe"}',
    "NULs, as after a power cut": bytes(300),
    "null": b"null",
    "a list": b"[]",
    "a number": b"7",
    "an empty object": b"{}",
    "an unknown status": json.dumps({**GOOD, "status": "sleeping"}).encode(),
    "no time": json.dumps({**GOOD, "createdAt": "yesterday"}).encode(),
    "messages of another kind": json.dumps({**GOOD, "messages": {"q1": "why?"}}).encode(),
    "version 1 with messages of another kind": json.dumps(
        {**GOOD, "schemaVersion": 1, "messages": ["why?"]}
    ).encode(),
    "version 1 with transitions of another kind": b'{"schemaVersion": 1, "transitions": 7}',
    "version 0": json.dumps({**GOOD, "schemaVersion": 0}).encode(),
    "version -3": json.dumps({**GOOD, "schemaVersion": -3}).encode(),
    "a version that is no number": json.dumps({**GOOD, "schemaVersion": "newest"}).encode(),
    "too deep": b"[" * 100_000,
    "a number without end": b'{"revision": ' + b"9" * 5000 + b"}",
    "the state of another run": make_meta("another").to_json(),
}
ASKS: dict[str, Callable[[RunStore, str], object]] = {
    "read": RunStore.read,
    "update": lambda store, run_id: store.update(run_id, transitions.StopRequested(), LATER),
    "roll_forward": lambda store, run_id: store.roll_forward(run_id, LATER),
}


@pytest.mark.parametrize("ask", ["update", "roll_forward"])
def test_a_start_that_never_was_cannot_be_changed(store: RunStore, ask: str) -> None:
    run = store.create(make_request())
    with pytest.raises(UnknownRun):
        ASKS[ask](store, RUN_ID)
    assert names(run.directory) == ["request.json"]


@pytest.mark.parametrize("what", CORRUPT)
def test_a_state_that_cannot_be_read_is_named_with_its_file_and_changed_by_nobody(
    store: RunStore, what: str
) -> None:
    start_run(store)
    path = store.paths.run(RUN_ID).meta
    path.path.write_bytes(CORRUPT[what])
    for ask in ("read", "update", "roll_forward"):
        with pytest.raises(UnreadableMeta) as unreadable:
            ASKS[ask](store, RUN_ID)
        assert f"The state of run {RUN_ID} cannot be read ({path}: " in unreadable.value.sentence
        assert unreadable.value.sentence.isprintable()
    assert path.path.read_bytes() == CORRUPT[what]


def test_a_state_for_which_no_file_can_be_opened_names_the_limit(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_run(store)
    refusal = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr(Entry, "read", Mock(side_effect=refusal))
    with pytest.raises(UnreadableMeta, match=r"no more files: raise `ulimit -n`, then try again\): fix that"):
        store.read(RUN_ID)


def test_unreadable_runs_do_not_hide_the_others(store: RunStore) -> None:
    start_run(store, "a-first")
    for number, content in enumerate(CORRUPT.values()):
        run_id = f"b-{number:02d}"
        start_run(store, run_id)
        store.paths.run(run_id).meta.path.write_bytes(content)
    start_run(store, "c-last")
    assert len(store.run_ids()) == len(CORRUPT) + 2
    assert [meta.run_id for meta in store.readable(store.run_ids())] == ["c-last", "a-first"]


def test_only_directories_that_are_named_like_runs_are_listed_newest_first(store: RunStore) -> None:
    for run_id in ("20261122-a", "20261123-b", "20261121-c"):
        start_run(store, run_id)
    for name in (".hidden", "Upper", "a b", "x" * 40):
        (store.paths.root / name).mkdir()
    (store.paths.root / "notes").write_text("a file, no run", encoding="utf-8")
    assert store.run_ids() == ["20261123-b", "20261122-a", "20261121-c"]


def test_what_stands_among_the_marks_and_is_no_run_id_is_passed_over(store: RunStore) -> None:
    start_run(store, "parent")
    start_run(store, "child")
    for directory in (store.paths.changes, store.paths.run("parent").children):
        directory.path.mkdir(exist_ok=True)
        (directory.path / "Not a run").touch()
        (directory.path / "child").touch()
    assert store.live_ids() == ["child", "parent"]
    assert store.children_of("parent") == ["child"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"outcome": "sleeping"}', bytes(50)])
def test_a_result_that_cannot_be_read_is_named_and_nothing_is_made_of_it(
    store: RunStore, content: bytes
) -> None:
    before = start_run(store, RUN_ID, STARTED)
    path = store.paths.run(RUN_ID).result
    path.path.write_bytes(content)
    with pytest.raises(UnreadableMeta, match=r"result\.json"):
        store.read_result(RUN_ID)
    with pytest.raises(UnreadableMeta, match=r"result\.json"):
        store.update(RUN_ID, transitions.StopRequested(), LATER)
    assert store.read(RUN_ID) == before
    assert path.path.read_bytes() == content


@pytest.mark.parametrize("damage", ["cut", "header only", "no gzip", "a flipped byte"])
def test_a_payload_that_cannot_be_read_is_named(store: RunStore, damage: str) -> None:
    start_run(store)
    good = gzip.compress(b"abcdefgh" * 99)
    flipped = bytearray(good)
    flipped[14] ^= 0xFF
    content = {
        "cut": good[:-9],
        "header only": good[:2],
        "no gzip": b"text",
        "a flipped byte": bytes(flipped),
    }
    store.paths.run(RUN_ID).payload.path.write_bytes(content[damage])
    with pytest.raises(UnreadableMeta, match=r"payload\.gz"):
        store.read_payload(RUN_ID)


def test_reading_takes_no_lock_and_leaves_no_trace(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    run.meta_lock.unlink()
    before = names(run.directory)
    assert store.read(RUN_ID).status is Status.RUNNING
    assert names(run.directory) == before


def test_a_lock_file_that_cannot_be_opened_refuses_the_change(store: RunStore) -> None:
    before = start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    run.meta_lock.unlink()
    run.meta_lock.path.mkdir()
    with pytest.raises(StorageFailed):
        store.update(RUN_ID, transitions.StopRequested(), LATER)
    assert store.read(RUN_ID) == before


def test_a_payload_is_read_up_to_its_bound(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subagent_server.run.store.PAYLOAD_BYTES", 8)
    start_run(store)
    file = store.paths.run(RUN_ID).payload.path
    file.write_bytes(gzip.compress(b"x" * 8))
    assert store.read_payload(RUN_ID) == b"x" * 8
    file.write_bytes(gzip.compress(b"x" * 9))
    with pytest.raises(UnreadableMeta, match="more than the 8 bytes"):
        store.read_payload(RUN_ID)
