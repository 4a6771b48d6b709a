"""A run as SPEC section 4 tells it, in plain words and without any table of the product."""

from dataclasses import dataclass, field

WORKING = ("running", "waiting_parent_reply", "parent_replied")
TERMINAL = ("completed", "failed", "stopped")


@dataclass
class Question:
    """What the model knows of a question."""

    status: str = "pending_parent_reply"
    answer: str | None = None


@dataclass
class Model:
    """Each happening returns `done`, `nothing` (a success without trace) or `refused`."""

    status: str = "ready"
    revision: int = 0
    turns: int = 0
    reported: bool = False
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
        if self.status not in WORKING or self.pending >= 16 or len(self.questions) >= 200:
            return "refused"
        self.questions.append(Question())
        return self._step(self._derived())

    def progress(self) -> str:
        """The subagent says how far it is, in the same words each time."""
        if self.status not in WORKING:
            return "refused"
        if self.reported:
            return "nothing"
        self.reported = True
        return self._step(self.status)

    def settle(self, turns: int) -> str:
        """Usage is told, at any time; what is known already leaves no trace."""
        if turns <= self.turns:
            return "nothing"
        self.turns = turns
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
