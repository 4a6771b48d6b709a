"""Every state that a run can reach is as the published schema says."""

import json
from itertools import product

import pytest
from jsonschema import Draft202012Validator

from subagent_server.run import transitions
from subagent_server.run.errors import IllegalTransition, MessageClosed, UnknownMessage
from subagent_server.run.records import Failure, RunMeta
from subagent_server.run.schemas import FAILURE_CODES, file_schema
from subagent_server.run.states import Status
from subagent_server.run.transitions import apply
from tests.helpers.runs import ASKED, LATER, STARTED, make_meta

STEPS: list[transitions.RunEvent] = [
    STARTED,
    ASKED,
    transitions.ReplyGiven(message_id="q1", answer="blue"),
    transitions.ReplyAcknowledged(message_id="q1"),
    transitions.QuestionExpired(message_id="q1"),
    transitions.ProgressReported(summary="half way"),
    transitions.Finished(summary="done"),
    transitions.RunFailed(failure=Failure(code="timeout", message="It took too long.")),
    transitions.StopRequested(reason="enough"),
]


def reached(depth: int) -> dict[str, RunMeta]:
    """Return the states that up to `depth` events lead to, by how they look without their history."""
    found: dict[str, RunMeta] = {}
    edge = [make_meta(status=Status.READY)]
    for _ in range(depth):
        found |= {
            state.model_copy(update={"transitions": [], "revision": 0}).to_json().decode(): state
            for state in edge
        }
        edge = [
            after for before, event in product(edge, STEPS) if (after := _after(before, event)) is not None
        ]
    return found


def _after(meta: RunMeta, event: transitions.RunEvent) -> RunMeta | None:
    try:
        after = apply(meta, event, LATER)
    except (IllegalTransition, UnknownMessage, MessageClosed):
        return None
    return None if after is meta else after


COMPLETED = json.loads(apply(apply(make_meta(), STARTED, LATER), transitions.Finished(), LATER).to_json())


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, set()),
        ({"revision": -1}, {"revision"}),
        ({"runId": "../x"}, {"runId"}),
        ({"usage": {"inputTokens": -5}}, {"usage", "usage/inputTokens"}),
        ({"status": "failed"}, {""}),
        ({"status": "stopped"}, {""}),
        ({"error": {"code": "tired", "message": "m"}}, {"error/code"}),
        *(({key: ...}, {""}) for key in ("usage", "transitions", "pendingQuestions", "createdAt")),
    ],
)
def test_the_schema_of_a_state_is_as_strict_as_its_writer(
    changes: dict[str, object], where: set[str]
) -> None:
    state = {key: value for key, value in {**COMPLETED, **changes}.items() if value is not ...}
    errors = Draft202012Validator(file_schema("meta")).iter_errors(state)
    assert {"/".join(map(str, error.absolute_path)) for error in errors} == where


def test_every_state_that_events_lead_to_is_valid() -> None:
    validator = Draft202012Validator(file_schema("meta"))
    states = list(reached(5).values())
    assert {state.status for state in states} == set(Status)
    for state in states:
        validator.validate(json.loads(state.to_json()))


@pytest.mark.parametrize("code", FAILURE_CODES)
def test_every_code_of_a_failure_is_valid(code: str) -> None:
    failed = _after(make_meta(), transitions.RunFailed(failure=Failure(code=code, message="m")))
    assert failed is not None
    Draft202012Validator(file_schema("meta")).validate(json.loads(failed.to_json()))
