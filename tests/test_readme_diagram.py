"""The diagram of the life of a run is the table, and the table is what `apply` does."""

from subagent_server.run import transitions
from subagent_server.run.errors import CallerError
from subagent_server.run.records import Failure, RunMeta
from subagent_server.run.transitions import RunEvent, apply
from tests.helpers.diagram import Edge, edges
from tests.helpers.runs import ASKED, LATER, STARTED, make_meta


def test_the_diagram_has_an_arrow_for_each_step_that_a_run_can_take_and_no_other() -> None:
    assert set(edges()) == _steps_taken(make_meta(), questions=3)


def _steps_taken(first: RunMeta, questions: int) -> set[Edge]:
    """Return the steps that `apply` takes through every state that it reaches with so many questions."""
    seen: set[str] = set()
    steps: set[Edge] = set()
    todo = [first]
    while todo:
        meta = todo.pop()
        for event in _possible(meta, questions):
            try:
                after = apply(meta, event, LATER)
            except CallerError:
                continue
            if after is meta:
                continue
            steps.add(Edge(meta.status, event.event, after.status))
            shape = f"{after.status} {[m.message_status for m in after.messages]}"
            if shape not in seen:
                seen.add(shape)
                todo.append(after)
    return steps


def _possible(meta: RunMeta, questions: int) -> list[RunEvent]:
    about = [
        event
        for message in meta.messages
        for event in (
            transitions.ReplyGiven(message_id=message.message_id, answer="blue"),
            transitions.ReplyAcknowledged(message_id=message.message_id),
            transitions.QuestionExpired(message_id=message.message_id),
        )
    ]
    asking = [ASKED] if len(meta.messages) < questions else []
    failed = transitions.RunFailed(failure=Failure(code="agent_error", message="It broke."))
    return [
        STARTED,
        *asking,
        *about,
        transitions.ProgressReported(),
        transitions.Finished(),
        failed,
        transitions.StopRequested(),
    ]
