"""The store on disk against a plain model of SPEC section 4 beside it: any events, in any order, any accident."""

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from subagent_server.domain import events
from subagent_server.domain.errors import CallerError
from subagent_server.domain.events import RunEvent
from subagent_server.domain.records import Failure, RunResult, Usage
from subagent_server.domain.states import Status
from subagent_server.host import atomic
from subagent_server.store.runs import RunStore
from tests.helpers.files import names
from tests.helpers.runs import RUN_ID, STARTED, T0, make_meta, make_request

WORKING = ("running", "waiting_parent_reply", "parent_replied")
TERMINAL = ("completed", "failed", "stopped")
FAILURE = Failure(code="agent_error", message="It broke.")
ANSWERS = st.sampled_from(["blue", "red", ""])
MESSAGE_IDS = st.sampled_from(["q1", "q1", "q2", "q2", "q3", "q9"])
OUTCOMES = st.sampled_from(TERMINAL)


@dataclass
class Question:
    """What the model knows of a question."""

    status: str = "pending_parent_reply"
    answer: str | None = None


@dataclass
class Model:
    """A run as SPEC section 4 tells it, in plain words and without any table of the product.

    Each happening returns `done`, `nothing` (a success without trace) or `refused`.
    """

    status: str = "ready"
    revision: int = 0
    turns: int = 0
    questions: list[Question] = field(default_factory=list)
    unread_result: str | None = None
    stored_outcome: str | None = None

    @property
    def pending(self) -> int:
        """How many questions wait for an answer."""
        return sum(question.status == "pending_parent_reply" for question in self.questions)

    def catch_up(self) -> None:
        """Apply the result that a crash left without its end: before any event."""
        if self.unread_result is not None and self.status not in TERMINAL:
            outcome, self.unread_result = self.unread_result, None
            self.end(outcome)

    def end(self, outcome: str, *, with_result: bool = False) -> str:
        """The run finishes, fails or is stopped."""
        if self.status in TERMINAL:
            return "nothing"
        if outcome == "completed" and self.status == "ready":
            return "refused"
        for question in self.questions:
            if question.status in ("pending_parent_reply", "parent_replied"):
                question.status = "cancelled"
        if with_result:
            self.stored_outcome = outcome
        return self._step(outcome)

    def start(self) -> str:
        """The worker begins."""
        return self._step("running") if self.status == "ready" else "refused"

    def ask(self) -> str:
        """The subagent asks."""
        if self.status not in WORKING:
            return "refused"
        self.questions.append(Question())
        return self._step(self._derived())

    def progress(self) -> str:
        """The subagent says how far it is."""
        return self._step(self.status) if self.status in WORKING else "refused"

    def settle(self, turns: int) -> str:
        """Usage is told, at any time."""
        self.turns = max(self.turns, turns)
        return self._step(self.status)

    def reply(self, number: int, answer: str) -> str:
        """An answer comes."""
        question = self._question(number)
        if question is None:
            return "refused"
        if question.answer is not None:
            return "nothing" if question.answer == answer else "refused"
        if question.status != "pending_parent_reply":
            return "refused"
        question.answer, question.status = answer, "parent_replied"
        return self._step(self._derived())

    def acknowledge(self, number: int) -> str:
        """The subagent reads an answer."""
        question = self._question(number)
        if question is None:
            return "refused"
        if question.status == "acknowledged_by_subagent":
            return "nothing"
        if question.status != "parent_replied":
            return "refused"
        question.status = "acknowledged_by_subagent"
        return self._step(self._derived())

    def expire(self, number: int) -> str:
        """The time of a question is over."""
        question = self._question(number)
        if question is None:
            return "refused"
        if question.status != "pending_parent_reply":
            return "nothing"
        question.status = "expired"
        return self._step(self._derived())

    def _question(self, number: int) -> Question | None:
        return self.questions[number - 1] if number <= len(self.questions) else None

    def _derived(self) -> str:
        statuses = [question.status for question in self.questions]
        if "parent_replied" in statuses:
            return "parent_replied"
        return "waiting_parent_reply" if "pending_parent_reply" in statuses else "running"

    def _step(self, status: str) -> str:
        self.status = status
        self.revision += 1
        return "done"


class StoreAgreesWithModel(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the files say what the model says."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-against-model-"))
        self.model = Model()
        self.now = T0

    @initialize()
    def accept(self) -> None:
        """A run is accepted."""
        self.store = RunStore(self.root)
        self.store.create(make_request())
        self.store.publish(make_meta())

    @rule()
    def worker_starts(self) -> None:
        """Legal once."""
        self.happens(STARTED, self.caught_up().start())

    @rule()
    def subagent_asks(self) -> None:
        """Legal while it works."""
        asked = events.QuestionAsked(question="Which?", expires_at=self.now + timedelta(hours=1))
        self.happens(asked, self.caught_up().ask())

    @rule(message_id=MESSAGE_IDS, answer=ANSWERS)
    def answer_comes(self, message_id: str, answer: str) -> None:
        """From the parent, again and again, to any question."""
        event = events.ReplyGiven(message_id=message_id, answer=answer)
        self.happens(event, self.caught_up().reply(int(message_id[1:]), answer))

    @rule(message_id=MESSAGE_IDS)
    def answer_is_read(self, message_id: str) -> None:
        """By the subagent, or once more."""
        event = events.ReplyAcknowledged(message_id=message_id)
        self.happens(event, self.caught_up().acknowledge(int(message_id[1:])))

    @rule(message_id=MESSAGE_IDS)
    def question_expires(self, message_id: str) -> None:
        """Whether or not it is still open."""
        event = events.QuestionExpired(message_id=message_id)
        self.happens(event, self.caught_up().expire(int(message_id[1:])))

    @rule()
    def subagent_reports(self) -> None:
        """Legal while it works."""
        self.happens(events.ProgressReported(summary="half way"), self.caught_up().progress())

    @rule(turns=st.integers(0, 9))
    def usage_is_settled(self, turns: int) -> None:
        """Legal always."""
        self.happens(events.UsageSettled(usage=Usage(turns=turns)), self.caught_up().settle(turns))

    @rule(outcome=OUTCOMES, with_result=st.booleans())
    def run_ends(self, outcome: str, with_result: bool) -> None:
        """With a result or without, again and again."""
        result = _result(outcome) if with_result else None
        expected = self.caught_up().end(outcome, with_result=with_result)
        self.happens(_ending(outcome), expected, result)

    @rule(outcome=OUTCOMES)
    def worker_crashes_between_result_and_state(self, outcome: str) -> None:
        """The result is there under its name; the state lacks it."""
        possible = WORKING if outcome == "completed" else ("ready", *WORKING)
        if self.model.status in possible and self.model.unread_result is None:
            atomic.write_durably(self.store.paths.run(RUN_ID).result, _result(outcome).to_json())
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
        assert json.loads(run.meta.read_bytes())["runId"] == RUN_ID

    def teardown(self) -> None:
        """Leave no file behind."""
        shutil.rmtree(self.root)

    def caught_up(self) -> Model:
        """Return the model after what any change does first; let time go on."""
        self.now += timedelta(seconds=1)
        self.model.catch_up()
        return self.model

    def happens(self, event: RunEvent, expected: str, result: RunResult | None = None) -> None:
        """Let `event` happen to the run, and compare how it went."""
        written = self.store.paths.run(RUN_ID).meta.read_bytes() if self.model.unread_result is None else None
        try:
            after = self.store.update(RUN_ID, event, self.now, result=result)
        except CallerError:
            assert expected == "refused"
            return
        assert expected != "refused"
        assert after.revision == self.model.revision
        if written is not None and expected == "nothing":
            assert after == self.store.read(RUN_ID)


def _result(outcome: str) -> RunResult:
    return RunResult(
        outcome=Status(outcome), text="All there is.", error=FAILURE if outcome == "failed" else None
    )


def _ending(outcome: str) -> RunEvent:
    ends: dict[str, RunEvent] = {
        "completed": events.Finished(),
        "failed": events.RunFailed(failure=FAILURE),
        "stopped": events.StopRequested(),
    }
    return ends[outcome]


TestStoreAgreesWithModel = StoreAgreesWithModel.TestCase
TestStoreAgreesWithModel.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
