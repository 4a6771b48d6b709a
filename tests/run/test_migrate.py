"""States of older versions load, and are of the present version once they are written."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run import transitions
from subagent_server.run.records import RunMeta
from subagent_server.run.states import SCHEMA_VERSION, Status
from subagent_server.run.store import RunStore
from tests.helpers.runs import LATER

VERSION_1 = Path(__file__).with_name("data") / "meta_v1.json"
RUN_ID = "20260214-081500-250-hq7m2d"


def left_by_version_1(store: RunStore, **changes: Any) -> Path:
    """Put the old file into a run directory of its own and return it; a change to None leaves a field out."""
    run = store.paths.run(RUN_ID)
    run.directory.mkdir()
    data = {**json.loads(VERSION_1.read_bytes()), **changes}
    run.meta.path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}), encoding="utf-8")
    return run.meta.path


def test_a_state_of_version_1_loads_with_all_it_says(store: RunStore) -> None:
    left_by_version_1(store)
    meta = store.read(RUN_ID)
    assert (meta.schema_version, meta.status, meta.agent_name) == (SCHEMA_VERSION, Status.WAITING, "reviewer")
    assert (meta.label, meta.summary) == ("valentine release", "Two of five files read.")
    assert (meta.usage.cost_usd, meta.usage.turns) == (Decimal("0.0623415"), 4)
    assert [m.message_id for m in meta.pending] == ["q2"]
    assert meta.worker is not None
    assert meta.worker.pid == 23817


def test_what_version_1_did_not_know_is_derived_from_what_it_did(store: RunStore) -> None:
    left_by_version_1(store)
    meta = store.read(RUN_ID)
    assert (meta.root_run_id, meta.depth, meta.launch) == (RUN_ID, 0, None)
    assert meta.with_descendants == meta.usage
    assert meta.revision == len(meta.transitions) == 6
    assert meta.pending_questions == 1


def test_an_old_run_goes_on_and_is_written_in_the_present_version(store: RunStore) -> None:
    path = left_by_version_1(store)
    answered = store.update(RUN_ID, transitions.ReplyGiven(message_id="q2", answer="yes"), LATER)
    assert (answered.status, answered.revision, answered.pending_questions) == (Status.REPLIED, 7, 0)
    written = json.loads(path.read_bytes())
    assert (written["schemaVersion"], written["rootRunId"]) == (SCHEMA_VERSION, RUN_ID)
    assert RunMeta.model_validate(written) == store.read(RUN_ID) == answered
    asked = store.update(RUN_ID, transitions.QuestionAsked(question="And tests?", expires_at=LATER), LATER)
    assert asked.messages[-1].asked_revision == asked.revision == 8


@pytest.mark.parametrize("end", ["stopped", "completed", "failed"])
def test_the_end_of_an_old_run_keeps_its_time(store: RunStore, end: str) -> None:
    ended = "2026-02-14T08:20:00.000Z"
    left_by_version_1(store, status=end, completedAt=ended, messages=[])
    meta = store.read(RUN_ID)
    assert meta.ended_at is not None
    assert meta.ended_at.isoformat() == "2026-02-14T08:20:00+00:00"
    assert (meta.stopped_at is not None) == (end == "stopped")
    assert (meta.completed_at is not None) == (end != "stopped")


def test_the_least_that_version_1_wrote_is_enough(store: RunStore) -> None:
    rest = ("label", "startedAt", "summary", "usage", "messages", "transitions", "worker", "childTokenHash")
    left_by_version_1(store, status="ready", **dict.fromkeys(rest))
    meta = store.read(RUN_ID)
    assert (meta.status, meta.revision, meta.messages) == (Status.READY, 0, [])
