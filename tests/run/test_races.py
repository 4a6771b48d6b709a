"""Several processes at one run: exactly one ends it, exactly one answers, and no change is lost."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from subagent_server.run.store import RunStore
from tests.helpers.processes import Child
from tests.helpers.runs import ASKED, STARTED, start_run

pytestmark = [pytest.mark.race, pytest.mark.process]

RACERS = 4
PRELUDE = """
    import sys
    from datetime import UTC, datetime
    from pathlib import Path
    from subagent_server.run import transitions
    from subagent_server.run.errors import CallerError
    from subagent_server.run.records import Failure, RunResult
    from subagent_server.run.states import Status
    from subagent_server.run.store import RunStore
    store, number, run_ids = RunStore(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    print("ready", flush=True)
    sys.stdin.readline()
"""
END = (
    PRELUDE
    + """
    failure = Failure(code="agent_error", message=f"by {number}")
    kinds = [
        (transitions.Finished(summary=f"by {number}"), Status.COMPLETED),
        (transitions.RunFailed(failure=failure), Status.FAILED),
        (transitions.StopRequested(reason=f"by {number}"), None),
        (transitions.Finished(summary=f"by {number}"), Status.COMPLETED),
    ]
    for turn, run_id in enumerate(run_ids):
        event, outcome = kinds[(number + turn) % len(kinds)]
        result = None
        if outcome is not None:
            error = failure if outcome is Status.FAILED else None
            result = RunResult(outcome=outcome, text=f"by {number}", summary=f"by {number}", error=error)
        returned = store.update(run_id, event, datetime.now(UTC), result=result)
        print(returned.status, flush=True)
    """
)
ANSWER = (
    PRELUDE
    + """
    for run_id in run_ids:
        event = transitions.ReplyGiven(message_id="q1", answer=f"by {number}")
        try:
            store.update(run_id, event, datetime.now(UTC))
            print("accepted", flush=True)
        except CallerError as error:
            print(error.code, flush=True)
    """
)
ASK = (
    PRELUDE
    + """
    for _ in range(10):
        event = transitions.QuestionAsked(question=f"by {number}", expires_at=datetime.now(UTC))
        asked = store.update(run_ids[0], event, datetime.now(UTC)).messages[-1]
        over = transitions.QuestionExpired(message_id=asked.message_id)
        store.update(run_ids[0], over, datetime.now(UTC))
    print("done", flush=True)
    """
)


@contextmanager
def racing(store: RunStore, code: str, run_ids: list[str]) -> Iterator[list[Child]]:
    """Start the racers, let them load, and release them together."""
    with ExitStack() as stack:
        racers = [
            stack.enter_context(Child(code, store.paths.root, number, *run_ids)) for number in range(RACERS)
        ]
        for racer in racers:
            assert racer.hear() == "ready"
        for racer in racers:
            racer.tell()
        yield racers


def test_of_several_ends_exactly_one_happens_and_its_result_is_the_one_that_is_kept(store: RunStore) -> None:
    run_ids = [f"run-{number:02d}" for number in range(24)]
    for run_id in run_ids:
        start_run(store, run_id, STARTED, ASKED)
    with racing(store, END, run_ids) as racers:
        told = {run_id: {racer.hear() for racer in racers} for run_id in run_ids}
    for run_id in run_ids:
        meta, result = store.read(run_id), store.read_result(run_id)
        assert told[run_id] == {meta.status.value}
        assert [step.to_status.is_terminal for step in meta.transitions] == [False, False, True]
        assert meta.revision == 3
        if result is None:
            assert meta.status == "stopped"
        else:
            winner = meta.error.message if meta.error else meta.summary
            assert (result.outcome, result.text) == (meta.status, winner)
        assert {path.name for path in store.paths.run(run_id).directory.iterdir()} <= {
            *("request.json", "run.meta.json", "run.meta.lock", "result.json")
        }


def test_of_several_answers_exactly_one_is_accepted_and_it_is_the_one_that_is_read(store: RunStore) -> None:
    run_ids = [f"run-{number:02d}" for number in range(12)]
    for run_id in run_ids:
        start_run(store, run_id, STARTED, ASKED)
    with racing(store, ANSWER, run_ids) as racers:
        for run_id in run_ids:
            told = [racer.hear() for racer in racers]
            assert sorted(told) == ["accepted", *["message_closed"] * (RACERS - 1)]
            answer = store.read(run_id).messages[0].answer_content
            assert answer == f"by {told.index('accepted')}"


def test_no_change_of_several_writers_is_lost_while_others_read(store: RunStore) -> None:
    start_run(store, "run", STARTED)
    with racing(store, ASK, ["run"]) as racers:
        revisions = [store.read("run").revision for _ in range(300)]
        assert {racer.hear() for racer in racers} == {"done"}
    meta = store.read("run")
    assert revisions == sorted(revisions)
    assert meta.revision == len(meta.transitions) == 1 + RACERS * 20
    assert len(meta.messages) == RACERS * 10 and meta.pending_questions == 0
    assert [m.message_id for m in meta.messages] == [f"q{n}" for n in range(1, RACERS * 10 + 1)]
    asked = [number for number, step in enumerate(meta.transitions, 1) if step.event == "question_asked"]
    assert [m.asked_revision for m in meta.messages] == asked
