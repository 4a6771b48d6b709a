"""The run as its runner sees it: journal, transcript, questions, and whether it may go on."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from subagent_server.domain import events
from subagent_server.domain.definitions import Limits
from subagent_server.domain.errors import IllegalTransition, MessageClosed, RunRefused
from subagent_server.domain.records import Message, RunMeta
from subagent_server.domain.states import MessageStatus
from subagent_server.host import locks
from subagent_server.host.clock import now
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.service.questions import ask
from subagent_server.store.logs import RunJournal, append_transcript
from subagent_server.store.runs import RunStore
from subagent_server.toolkit.run import Reply, RunOver
from subagent_server.worker.sleeper import Sleeper
from subagent_server.worker.work_clock import WorkClock


class Door:
    """Implements `toolkit.run.RunDoor` on a run directory. Lives in one event loop."""

    def __init__(self, store: RunStore, run_id: str, limits: Limits, slots: list[int]) -> None:
        self.run_id = run_id
        self.model_busy = False
        self._store = store
        self._run = store.paths.run(run_id)
        self._limits = limits
        self._slots = slots
        self._journal = RunJournal(self._run)
        self._sleeper = Sleeper(self._run.wake(os.getpid()))
        self.clock = WorkClock(self._give_back_slots)

    # -- telling

    def record(self, kind: str, **facts: Any) -> None:
        """Append an event to the journal."""
        self._journal.append(kind, now(), facts)

    def remember(self, message: dict[str, Any]) -> None:
        """Append a message to the transcript; a disk that refuses is a warning."""
        try:
            append_transcript(self._run, message)
        except OSError as error:
            print(f"The transcript could not be written ({error}); the run goes on.", file=sys.stderr)

    # -- going on

    def meta(self) -> RunMeta:
        """Return the state of the run."""
        return self._store.read(self.run_id)

    def checkpoint(self) -> None:
        """Raise RunOver where the run has ended."""
        if self.meta().status.is_terminal:
            raise RunOver

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count working time."""
        with self.clock.working():
            yield

    @contextmanager
    def model_call(self) -> Iterator[None]:
        """Count working time, and let a stop wait for the reply."""
        self.model_busy = True
        try:
            with self.clock.working():
                yield
        finally:
            self.model_busy = False

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run ends meanwhile."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self.checkpoint()
            await self._sleeper.sleep(min(remaining, SLOW_POLL_SECONDS))
        self.checkpoint()

    async def sleep(self, seconds: float) -> None:
        """Return at the next change of the run, or when the time is over."""
        await self._sleeper.sleep(seconds)

    def wake(self) -> None:
        """Wake all who sleep here."""
        self._sleeper.wake_all()

    def close(self) -> None:
        """Give back what is held."""
        self._sleeper.close()

    # -- asking

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        """Ask the parent and sleep until the answer, the expiry, or the end of the run."""
        timeout = self._limits.ask_timeout_seconds
        message = await self._recorded(question, options, timeout)
        facts = {"options": message.options} if message.options else {}
        self.record("question", messageId=message.message_id, question=question, **facts)
        with self.clock.waiting():
            message = await self._closed(message)
        if message.message_status is MessageStatus.EXPIRED:
            return self._unanswered(message)
        self.record(
            "reply",
            messageId=message.message_id,
            answer=message.answer_content,
            answeredBy=message.answered_by,
        )
        acknowledged = events.ReplyAcknowledged(message_id=message.message_id)
        await self._apply(acknowledged)
        return Reply(message.message_id, message.answer_content)

    async def _recorded(self, question: str, options: list[str] | None, timeout: float) -> Message:
        try:
            return await asyncio.to_thread(ask, self._store, self.run_id, question, options, timeout)
        except IllegalTransition as error:
            raise RunOver from error

    async def _closed(self, message: Message) -> Message:
        """Return the question once it is answered or has expired."""
        while True:
            meta = self.meta()
            current = meta.message(message.message_id) or message
            if meta.status.is_terminal:
                raise RunOver
            if current.message_status is not MessageStatus.PENDING:
                return current
            seconds_left = self._seconds_left(current)
            if seconds_left <= 0:
                await self._apply(events.QuestionExpired(message_id=message.message_id))
                continue
            await self._sleeper.sleep(min(seconds_left, SLOW_POLL_SECONDS))

    @staticmethod
    def _seconds_left(message: Message) -> float:
        if message.expires_at is None:
            return SLOW_POLL_SECONDS
        return (message.expires_at - now()).total_seconds()

    def _unanswered(self, message: Message) -> Reply:
        self.record("no_reply", messageId=message.message_id)
        if self._limits.on_ask_timeout == "fail":
            raise RunRefused(
                "ask_timeout",
                f"Nobody answered {message.message_id} within {self._limits.ask_timeout_seconds:g} s.",
                "Answer sooner, raise `askTimeoutSeconds`, or set `onAskTimeout: continue`.",
            )
        return Reply(message.message_id, None)

    async def _apply(self, event: events.RunEvent) -> None:
        try:
            await asyncio.to_thread(self._store.update, self.run_id, event, now())
        except (IllegalTransition, MessageClosed) as error:
            raise RunOver from error  # the run ended, and its questions with it

    def _give_back_slots(self) -> None:
        """Everything that is open waits for somebody else: others may work. The slots are not taken again."""
        for descriptor in self._slots:
            locks.give_back(descriptor)
        self._slots.clear()
