"""The same model, and every event by a process of its own, which may die on its way: in any order."""

import base64
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from subagent_server.run import transitions
from subagent_server.run.records import RunResult
from subagent_server.run.transitions import RunEvent
from tests.helpers.processes import Child
from tests.helpers.runs import RUN_ID
from tests.helpers.scale import times
from tests.run.run_model import TERMINAL, WORKING
from tests.run.test_store_agrees_with_model import OUTCOMES, StoreAgreesWithModel, ending, result_of

NURSERY = """
    import base64, os, pickle, sys
    from subagent_server.run.errors import CallerError
    from subagent_server.run import stderr
    from subagent_server.run.store import RunStore

    def live(root, run_id, event, now, result, point):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ[stderr.VARIABLE] = point
        try:
            said = str(RunStore(root).update(run_id, event, now, result=result).revision)
        except CallerError:
            said = "refused"
        os.write(1, said.encode() + b"\\n")

    for line in sys.stdin:
        if os.fork() == 0:
            live(*pickle.loads(base64.b64decode(line)))
            os._exit(0)
        if os.wait()[1]:
            os.write(1, b"died\\n")
"""
"""Forks a process for each event: one that is killed costs no start of Python."""


class ByProcesses(StoreAgreesWithModel):
    """No process lives longer than one event."""

    nursery: Child

    def happens(self, event: RunEvent, expected: str, result: RunResult | None = None) -> None:
        before, written = (
            self.store.read(RUN_ID).revision,
            self.store.paths.run(RUN_ID).meta.path.read_bytes(),
        )
        said = self.by_another(event, result)
        assert said == ("refused" if expected == "refused" else str(self.model.revision))
        if before == self.model.revision:
            assert self.store.paths.run(RUN_ID).meta.path.read_bytes() == written

    @rule()
    def worker_dies_once_its_question_is_written(self) -> None:
        """Whether its question is written, or refused and then it does not come so far."""
        asked = transitions.QuestionAsked(question="Which?", expires_at=self.now)
        expected = self.caught_up().ask()
        assert self.by_another(asked, point="store.written") == (
            "refused" if expected == "refused" else "died"
        )

    @precondition(lambda self: self.model.revision >= self.ends_not_before)
    @rule(outcome=OUTCOMES, with_result=st.booleans())
    def worker_dies_once_its_end_is_written(self, outcome: str, with_result: bool) -> None:
        result = result_of(outcome) if with_result else None
        expected = self.caught_up().end(outcome, with_result=with_result)
        said = self.by_another(ending(outcome), result, "store.written")
        assert said == {"done": "died", "refused": "refused", "nothing": str(self.model.revision)}[expected]

    @precondition(lambda self: self.model.revision >= self.ends_not_before)
    @rule(outcome=OUTCOMES, with_result=st.booleans())
    def worker_dies_before_its_end_is_written(self, outcome: str, with_result: bool) -> None:
        """Its result counts, if it had one; else nothing has happened."""
        result = result_of(outcome) if with_result else None
        model = self.caught_up()
        said = self.by_another(ending(outcome), result, "store.result_named")
        if model.status in TERMINAL:
            assert said == str(model.revision)
        elif outcome == "completed" and model.status not in WORKING:
            assert said == "refused"
        else:
            assert said == "died"
            if with_result:
                model.unread_result = model.stored_outcome = outcome

    def by_another(self, event: RunEvent, result: RunResult | None = None, point: str = "") -> str:
        """Let a new process do it, which dies at `point`; return the revision it was told, or its end."""
        order = (self.root, RUN_ID, event, self.now, result, point)
        self.nursery.tell(base64.b64encode(pickle.dumps(order)).decode("ascii"))
        return self.nursery.hear()


@contextmanager
def nursery() -> Iterator[None]:
    """Give the machines one nursery for all their lives."""
    with Child(NURSERY) as child:
        ByProcesses.nursery = child
        yield


@pytest.mark.process
def test_the_store_agrees_with_the_model_when_every_event_is_by_a_process_that_may_die() -> None:
    bounds = settings(max_examples=times(3, 25), stateful_step_count=30, deadline=None, database=None)
    with nursery():
        run_state_machine_as_test(ByProcesses, settings=bounds)
