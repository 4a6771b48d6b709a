"""Record the questions that programs of a run ask by themselves, through its server for children.

Such a question is in the state of the run. The worker, which alone writes the journal, reads it there, so the
journal has every question, by whichever way it was asked.
"""

from collections.abc import Sequence

from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import Message
from subagent_server.domain.states import MessageStatus
from subagent_server.worker.run_context import WorkerRun, seconds_left


class ProgramQuestions:
    """Tells the journal of them, and gives up those whose time is over."""

    def __init__(self, run: WorkerRun) -> None:
        self._run = run
        self._asked: set[str] = set()
        self._closed: set[str] = set()

    def tell(self) -> None:
        """Record what has been asked and answered since the last look.

        Raises:
            UnreadableMeta: of this run.
        """
        self._tell(self._run.questions_of_programs())

    async def refusal(self) -> RunRefused | None:
        """Give up expired questions, and record all; return why they end the run, or None.

        A program asks through a tool, and may be gone when the time of its question is over.
        """
        messages = self._run.questions_of_programs()
        late = [each for each in messages if _is_open(each) and seconds_left(each) <= 0]
        for message in late:
            await self._run.expire(message.message_id)
        if late:
            messages = self._run.questions_of_programs()
        self._tell(messages)
        expired = [each for each in messages if each.message_status is MessageStatus.EXPIRED]
        return self._run.refusal_of_late(expired[0]) if expired else None

    def _tell(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.message_id not in self._asked:
                self._asked.add(message.message_id)
                self._run.record_question(message)
            if message.message_id not in self._closed and _is_closed(message):
                self._closed.add(message.message_id)
                self._run.record_end_of(message)


def _is_open(message: Message) -> bool:
    return message.message_status is MessageStatus.PENDING


def _is_closed(message: Message) -> bool:
    return message.message_status is MessageStatus.EXPIRED or message.answer_content is not None
