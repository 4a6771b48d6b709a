"""The store on disk against a plain model of SPEC section 4 beside it: any event, any order, any accident."""

import json
import os
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from subagent_server.run import durable, transitions
from subagent_server.run.errors import CallerError
from subagent_server.run.records import Failure, RunResult, Usage
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import RunEvent
from tests.helpers.files import names
from tests.helpers.runs import RUN_ID, STARTED, T0, make_meta, make_request
from tests.helpers.scale import times
from tests.run.run_model import TERMINAL, WORKING, Model

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where syncing costs nothing, so that many more lives of a run can be tried."""
FAILURE = Failure(code="agent_error", message="It broke.")
ANSWERS = st.sampled_from(["blue", "red", ""])
MESSAGE_IDS = st.sampled_from(["q1", "q2", "q3", "q9"])
OUTCOMES = st.sampled_from(TERMINAL)


class StoreAgreesWithModel(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the files say what the model says."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-against-model-", dir=IN_MEMORY))
        self.model = Model()
        self.now = T0
        self.ends_not_before = 0

    @initialize(begun=st.sampled_from([True, True, True, False]), ends_not_before=st.integers(0, 20))
    def accept(self, begun: bool, ends_not_before: int) -> None:
        """A run is accepted, begins as a rule, and lives for so many changes at least."""
        self.store = RunStore(self.root)
        self.store.create(make_request())
        self.store.publish(make_meta())
        self.ends_not_before = ends_not_before
        if begun:
            self.worker_starts()

    @rule()
    def worker_starts(self) -> None:
        """Legal once."""
        self.happens(STARTED, self.caught_up().start())

    @rule()
    def subagent_asks(self) -> None:
        """Legal while it works."""
        asked = transitions.QuestionAsked(question="Which?", expires_at=self.now + timedelta(hours=1))
        self.happens(asked, self.caught_up().ask())

    @rule(message_id=MESSAGE_IDS, answer=ANSWERS)
    def answer_comes(self, message_id: str, answer: str) -> None:
        """From the parent, again and again, to any question."""
        event = transitions.ReplyGiven(message_id=message_id, answer=answer)
        self.happens(event, self.caught_up().reply(int(message_id[1:]), answer))

    @rule(message_id=MESSAGE_IDS)
    def answer_is_read(self, message_id: str) -> None:
        """By the subagent, or once more."""
        event = transitions.ReplyAcknowledged(message_id=message_id)
        self.happens(event, self.caught_up().acknowledge(int(message_id[1:])))

    @rule(message_id=MESSAGE_IDS)
    def question_expires(self, message_id: str) -> None:
        """Whether or not it is still open."""
        event = transitions.QuestionExpired(message_id=message_id)
        self.happens(event, self.caught_up().expire(int(message_id[1:])))

    @rule()
    def subagent_reports(self) -> None:
        """Legal while it works."""
        self.happens(transitions.ProgressReported(summary="half way"), self.caught_up().progress())

    @rule(turns=st.integers(0, 9))
    def usage_is_settled(self, turns: int) -> None:
        """Legal always."""
        self.happens(transitions.UsageSettled(usage=Usage(turns=turns)), self.caught_up().settle(turns))

    @precondition(lambda self: self.model.revision >= self.ends_not_before)
    @rule(outcome=OUTCOMES, with_result=st.booleans())
    def run_ends(self, outcome: str, with_result: bool) -> None:
        """With a result or without, again and again."""
        result = result_of(outcome) if with_result else None
        expected = self.caught_up().end(outcome, with_result=with_result)
        self.happens(ending(outcome), expected, result)

    @precondition(lambda self: self.model.revision >= self.ends_not_before)
    @rule(outcome=OUTCOMES)
    def worker_crashes_between_result_and_state(self, outcome: str) -> None:
        """The result is there under its name; the state lacks it."""
        if self.model.status in ("ready", *WORKING) and self.model.unread_result is None:
            durable.write_durably(self.store.paths.run(RUN_ID).result, result_of(outcome).to_json())
            self.model.unread_result = self.model.stored_outcome = outcome

    @rule()
    def somebody_looks(self) -> None:
        """A reader rolls forward what it finds."""
        self.model.catch_up()
        self.store.roll_forward(RUN_ID, self.now)

    @rule()
    def server_is_restarted(self) -> None:
        """Everything in memory is forgotten."""
        self.store = RunStore(self.root)

    @invariant()
    def files_say_what_the_model_says(self) -> None:
        """Status, questions, counts and the result."""
        meta, model = self.store.read(RUN_ID), self.model
        assert (meta.status, meta.revision, meta.usage.turns) == (model.status, model.revision, model.turns)
        assert meta.pending_questions == model.pending == len(meta.pending)
        told = [(m.message_status.value, m.answer_content) for m in meta.messages]
        assert told == [(question.status, question.answer) for question in model.questions]
        result = self.store.read_result(RUN_ID)
        assert (result.outcome if result else None) == model.stored_outcome

    @invariant()
    def history_is_dense_and_ends_where_the_run_is(self) -> None:
        """Each step begins where the one before it ended, and at most one ends the run."""
        meta = self.store.read(RUN_ID)
        steps = meta.transitions
        assert meta.revision == len(steps)
        ends = [Status.READY, *(step.to_status for step in steps)]
        assert [step.from_status for step in steps] == ends[:-1]
        assert ends[-1] is meta.status
        assert sum(not s.from_status.is_terminal and s.to_status.is_terminal for s in steps) <= 1
        assert (meta.ended_at is not None) == meta.status.is_terminal

    @invariant()
    def nothing_else_lies_in_the_directory(self) -> None:
        """No temporary file, and a state that any JSON reader reads."""
        run = self.store.paths.run(RUN_ID)
        known = {"request.json", "run.meta.json", "run.meta.lock", "result.json"}
        assert set(names(run.directory)) <= known
        assert json.loads(run.meta.path.read_bytes())["runId"] == RUN_ID

    def teardown(self) -> None:
        """End a run that still lives, every other one by a crash: few end by chance. Leave no file behind."""
        try:
            outcome = TERMINAL[self.model.revision % len(TERMINAL)]
            if self.model.revision % 2:
                self.worker_crashes_between_result_and_state(outcome)
            else:
                self.run_ends(outcome, with_result=True)
            self.somebody_looks()
            self.files_say_what_the_model_says()
            self.history_is_dense_and_ends_where_the_run_is()
        finally:
            shutil.rmtree(self.root)

    def caught_up(self) -> Model:
        """Return the model after what any change does first; let time go on."""
        self.now += timedelta(seconds=1)
        self.model.catch_up()
        return self.model

    def happens(self, event: RunEvent, expected: str, result: RunResult | None = None) -> None:
        before, written = (
            self.store.read(RUN_ID).revision,
            self.store.paths.run(RUN_ID).meta.path.read_bytes(),
        )
        try:
            after = self.store.update(RUN_ID, event, self.now, result=result)
            assert expected != "refused"
            assert after.revision == self.model.revision
        except CallerError:
            assert expected == "refused"
        if before == self.model.revision:
            assert self.store.paths.run(RUN_ID).meta.path.read_bytes() == written


def result_of(outcome: str) -> RunResult:
    return RunResult(
        outcome=Status(outcome), text="All there is.", error=FAILURE if outcome == "failed" else None
    )


def ending(outcome: str) -> RunEvent:
    ends: dict[str, RunEvent] = {
        "completed": transitions.Finished(),
        "failed": transitions.RunFailed(failure=FAILURE),
        "stopped": transitions.StopRequested(),
    }
    return ends[outcome]


def test_the_store_agrees_with_a_plain_model_whatever_happens() -> None:
    bounds = settings(max_examples=times(15, 120), stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(StoreAgreesWithModel, settings=bounds)
