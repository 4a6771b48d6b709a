"""What a runner may ask of its run. The worker fills this in; no runner reaches a run's files."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


class RunOver(Exception):
    """The run has been ended by somebody else; nothing more may be started for it."""


@dataclass(frozen=True)
class Reply:
    """What came of a question: the parent's answer, or None where none came in time."""

    message_id: str
    answer: str | None


class RunDoor(Protocol):
    """The run as its runner sees it."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        ...

    def record(self, kind: str, **facts: Any) -> None:
        """Append an event to the journal. A disk that refuses is a warning, not an error."""
        ...

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        """Append a message to the transcript; of the model's, why it ended. It lasts before a tool begins."""
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

    def model_call(self) -> AbstractAsyncContextManager[None]:
        """Mark a model call, its `usage` event included: working time that a stop lets end within the grace.

        It waits where the calls of other runs may need what is left of a budget.

        Raises:
            RunOver: the run has ended while it waited.
            RunRefused: `budget`, where the money of the run, or of one above it, is spent.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run ends meanwhile.

        Raises:
            RunOver.
        """
        ...

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        """Ask the parent and wait for the answer; the wait is no working time.

        Raises:
            BadArgument: the question cannot be asked so.
            RunRefused: no answer came and the agent says that this fails the run (`ask_timeout`).
            RunOver: the run ended while it waited.
        """
        ...
