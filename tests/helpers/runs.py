"""Runs made by hand: requests, states and questions with nothing to fill in that a test does not care for."""

from datetime import UTC, datetime, timedelta
from typing import Any

from subagent_server.run import transitions
from subagent_server.run.records import Message, RunMeta, RunRequest, WorkerIdentity
from subagent_server.run.states import MessageStatus
from subagent_server.run.store import RunStore

T0 = datetime(2026, 11, 22, 9, 30, 15, 417_000, tzinfo=UTC)
"""The moment at which the runs of tests begin."""
LATER = T0 + timedelta(minutes=5)
RUN_ID = "20261122-093015-417-k3f9qz"
WORKER = WorkerIdentity(host="here", pid=4711, start_time=123456, boot_id="boot")

STARTED = transitions.WorkerStarted(worker=WORKER)
ASKED = transitions.QuestionAsked(question="Which colour?", expires_at=T0 + timedelta(days=36_500))


def make_request(run_id: str = RUN_ID, **facts: Any) -> RunRequest:
    """Return a request of an agent called `reviewer`."""
    given = {"agent": {"name": "reviewer"}, "prompt": "Look at it.", "cwd": "/tmp", "root_run_id": run_id}
    return RunRequest.model_validate({**given, "run_id": run_id, "created_at": T0, **facts})


def make_meta(run_id: str = RUN_ID, **facts: Any) -> RunMeta:
    """Return a state, `ready` unless `facts` say otherwise."""
    given = {"agent_name": "reviewer", "root_run_id": run_id, "created_at": T0}
    return RunMeta.model_validate({**given, "run_id": run_id, **facts})


def make_message(message_id: str, status: MessageStatus, **facts: Any) -> Message:
    """Return a question in `status`; one that was answered has the answer `blue` of the parent."""
    given: dict[str, Any] = {
        "question_content": f"{message_id}?",
        "question_timestamp": T0,
        "asked_revision": 1,
    }
    if status in (MessageStatus.REPLIED, MessageStatus.ACKNOWLEDGED):
        given |= {"answer_content": "blue", "answer_timestamp": T0, "answered_by": "parent"}
    return Message.model_validate({**given, "message_id": message_id, "message_status": status, **facts})


def start_run(
    store: RunStore, run_id: str = RUN_ID, *happened: transitions.RunEvent, **facts: Any
) -> RunMeta:
    """Make a run on disk to which `happened` has happened, and return its state as it is read."""
    store.create(make_request(run_id))
    store.publish(make_meta(run_id, **facts))
    for event in happened:
        store.update(run_id, event, T0)
    return store.read(run_id)
