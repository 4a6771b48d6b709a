"""Changing a run: one file replaced whole, or not a byte; the result with the end, in one hold."""

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from subagent_server.run import store as store_module
from subagent_server.run import transitions
from subagent_server.run.errors import (
    IllegalTransition,
    LockTimeout,
    MessageClosed,
    NewerSchema,
    UnknownMessage,
    UnreadableMeta,
)
from subagent_server.run.locks import exclusive
from subagent_server.run.records import RunResult
from subagent_server.run.states import SCHEMA_VERSION, Status
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import RunEvent
from tests.helpers.files import names
from tests.helpers.runs import ASKED, LATER, RUN_ID, STARTED, start_run

BLUE = transitions.ReplyGiven(message_id="q1", answer="blue")
DONE = RunResult(outcome=Status.COMPLETED, text="All done.", summary="done")
OF_ITS_OWN = ["request.json", "run.meta.json", "run.meta.lock"]

REFUSED: list[tuple[RunEvent, type[Exception]]] = [
    (STARTED, IllegalTransition),
    (transitions.ReplyGiven(message_id="q1", answer="red"), MessageClosed),
    (transitions.ReplyGiven(message_id="q7", answer="red"), UnknownMessage),
    (transitions.ReplyAcknowledged(message_id="../../q"), UnknownMessage),
]
NOTHING_NEW: list[RunEvent] = [BLUE, transitions.QuestionExpired(message_id="q1")]


def untouched(path: Path) -> tuple[bytes, int, int]:
    """Return what changes when anybody writes a file, even with the same content."""
    status = path.stat()
    return path.read_bytes(), status.st_ino, status.st_mtime_ns


@pytest.mark.parametrize(("event", "error"), REFUSED, ids=lambda value: type(value).__name__)
def test_a_refused_event_changes_no_byte(store: RunStore, event: RunEvent, error: type[Exception]) -> None:
    start_run(store, RUN_ID, STARTED, ASKED, BLUE)
    run = store.paths.run(RUN_ID)
    before = untouched(run.meta.path)
    with pytest.raises(error):
        store.update(RUN_ID, event, LATER, result=DONE, payload=b"x")
    assert untouched(run.meta.path) == before
    assert names(run.directory) == OF_ITS_OWN


def test_a_result_waits_longer_for_the_lock(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    start_run(store, RUN_ID, STARTED, ASKED)
    monkeypatch.setattr(store_module, "TIMEOUT_SECONDS", 0.05)
    with ThreadPoolExecutor() as threads:
        with exclusive(store.paths.run(RUN_ID).meta_lock):
            with pytest.raises(LockTimeout):
                threads.submit(store.update, RUN_ID, BLUE, LATER).result()
            ending = threads.submit(store.update, RUN_ID, transitions.Finished(), LATER, result=DONE)
            with pytest.raises(TimeoutError):
                ending.result(0.5)
        assert ending.result().status is Status.COMPLETED


@pytest.mark.parametrize("event", NOTHING_NEW, ids=lambda value: type(value).__name__)
def test_an_event_that_has_already_happened_writes_nothing(store: RunStore, event: RunEvent) -> None:
    before = start_run(store, RUN_ID, STARTED, ASKED, BLUE)
    run = store.paths.run(RUN_ID)
    written = untouched(run.meta.path)
    assert store.update(RUN_ID, event, LATER) == before
    assert untouched(run.meta.path) == written


def test_a_result_is_not_stored_by_an_event_that_does_not_end_the_run(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    store.update(RUN_ID, transitions.ProgressReported(summary="half way"), LATER, result=DONE, payload=b"x")
    assert names(store.paths.run(RUN_ID).directory) == OF_ITS_OWN


@pytest.mark.parametrize("payload", [b"", b"x" * 100_000, bytes(range(256))], ids=len)
def test_a_payload_is_stored_compressed_and_named_with_its_size(store: RunStore, payload: bytes) -> None:
    start_run(store, RUN_ID, STARTED)
    ended = store.update(RUN_ID, transitions.Finished(summary="done"), LATER, result=DONE, payload=payload)
    run = store.paths.run(RUN_ID)
    assert ended.payload is not None
    assert (ended.payload.size, ended.payload.path) == (len(payload), "payload.gz")
    assert gzip.decompress(run.payload.path.read_bytes()) == store.read_payload(RUN_ID) == payload
    assert store.read(RUN_ID).summary == "done"


def test_the_state_of_a_later_version_is_read_as_far_as_known_and_never_written(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    newer = {**json.loads(run.meta.path.read_bytes()), "schemaVersion": SCHEMA_VERSION + 1, "mood": "good"}
    run.meta.path.write_text(json.dumps(newer), encoding="utf-8")
    before = untouched(run.meta.path)
    assert store.read(RUN_ID).status is Status.RUNNING
    assert store.read(RUN_ID).schema_version == SCHEMA_VERSION + 1
    changes: list[Callable[[], object]] = [
        lambda: store.update(RUN_ID, transitions.Finished(), LATER, result=DONE, payload=b"x"),
        lambda: store.roll_forward(RUN_ID, LATER),
    ]
    for change in changes:
        with pytest.raises(NewerSchema, match=r"schema 3, this one knows 2\): upgrade subagent-server"):
            change()
    assert untouched(run.meta.path) == before
    assert names(run.directory) == OF_ITS_OWN
    run.meta.path.write_text(json.dumps(newer | {"status": "paused"}), encoding="utf-8")
    with pytest.raises(UnreadableMeta, match="a later version wrote it: upgrade subagent-server; status"):
        store.read(RUN_ID)


@pytest.mark.parametrize("text", ["half a pair \ud83d", "NUL \0 and \x1b[31m", "\u2028", "🎈" * 5000])
def test_any_text_of_a_model_can_be_stored(store: RunStore, text: str) -> None:
    start_run(store, RUN_ID, STARTED)
    result = RunResult(outcome=Status.COMPLETED, text=text)
    store.update(RUN_ID, transitions.Finished(summary=text), LATER, result=result)
    shown = text.encode("utf-8", "replace").decode("utf-8")
    assert store.read(RUN_ID).summary == shown
    stored = store.read_result(RUN_ID)
    assert stored is not None
    assert stored.text == shown
