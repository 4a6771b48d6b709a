"""The run as its runner sees it. The worker implements it; a runner reaches no file of the run."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from subagent_server.domain.records import Usage


class RunOver(Exception):
    """The run was ended from outside; nothing more may be started for it."""


@dataclass(frozen=True)
class Reply:
    """The answer to a question; None means that it did not come in time."""

    message_id: str
    answer: str | None


class RunContext(Protocol):
    """Everything that a runner and its tools may ask of their run."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        ...

    def record(self, kind: str, **facts: Any) -> None:
        """Append an event to the journal. A disk that refuses is a warning, not an error."""
        ...

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        """Append a message to the transcript, so that it lasts before a tool begins.

        `stop_reason` is why the model ended a message of its own.
        """
        ...

    def adopt(self, messages: list[dict[str, Any]]) -> None:
        """Begin the transcript with the conversation of the run that this one carries on."""
        ...

    def checkpoint(self) -> None:
        """Called before every model and tool call.

        Raises:
            RunOver: the run has ended meanwhile.
        """
        ...

    def working(self) -> AbstractContextManager[None]:
        """Mark a stretch as working time, which `timeoutSeconds` bounds. Stretches may overlap."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Suspend the stretch of working time that this is inside."""
        ...

    @property
    def waits_for_others(self) -> bool:
        """Whether a question of the run is open, or a run that it has started goes on."""
        ...

    def session_opened(self, session_id: str) -> None:
        """Keep the name of the conversation that a program has begun, so that it can be resumed.

        Raises:
            SubagentError: it cannot be written.
        """
        ...

    def model_call(self, spent: Usage, besides: Decimal = Decimal(0)) -> AbstractAsyncContextManager[None]:
        """Mark a model call, its `usage` event included: working time that a stop lets end within the grace.

        `spent` is what the run has used so far. `besides` is what the call may cost besides its tokens, in
        USD. Entering waits while calls of other runs may need the rest of
        a budget.

        Raises:
            RunOver: the run has ended while it waited.
            RunRefused: `budget`, if the money of the run, or of a run above it, is spent.
        """
        ...

    def request_sent(self) -> None:
        """Called when the request of a model call has been sent: the answers in it may be acknowledged."""
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run ends meanwhile.

        Raises:
            RunOver.
        """
        ...

    async def spare(self, seconds: float) -> None:
        """Pause for a busy API: working time stands still meanwhile.

        Raises:
            RunOver.
        """
        ...

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        """Ask the parent and wait for the answer; the wait does not count as working time.

        Raises:
            BadArgument: the question cannot be asked in this form.
            RunRefused: no answer came and the agent says that this fails the run (`ask_timeout`).
            RunOver: the run ended while it waited.
        """
        ...
