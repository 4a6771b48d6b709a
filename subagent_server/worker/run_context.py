"""The run as its runner sees it: journal, transcript, questions, and whether it may go on."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from subagent_server.domain.definitions import Limits
from subagent_server.domain.errors import IllegalTransition, MessageClosed, RunRefused
from subagent_server.domain.records import Message
from subagent_server.domain.states import MessageStatus
from subagent_server.toolkit.run_context import Reply, RunOver
from subagent_server.worker.own_run import OwnRun
from subagent_server.worker.work_clock import WorkClock

SLOW_POLL_SECONDS = 2.0
"""A lost wake-up costs this long and nothing else."""
HEAD_START_SECONDS = 0.015
"""How much sooner an answer is on its way to the model than it is acknowledged: both need this process."""
_FOR_ROOM_SECONDS = 0.5
"""How long a model call waits before it looks again whether a budget has room for it."""


class Door:
    """Implements `toolkit.run.RunDoor` on the worker's own run. Lives in one event loop."""

    def __init__(self, own: OwnRun, limits: Limits) -> None:
        self.run_id = own.run_id
        self.model_busy = False
        self.clock = WorkClock(own.give_back_slots)
        self._own = own
        self._limits = limits
        self._acknowledging: set[asyncio.Task[None]] = set()

    def record(self, kind: str, **facts: Any) -> None:
        """Append an event to the journal."""
        self._own.record(kind, facts)

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        """Append a message to the transcript."""
        self._own.remember(message | ({"stopReason": stop_reason} if stop_reason else {}))

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._own.meta().status.is_terminal

    def checkpoint(self) -> None:
        """Raise RunOver where the run has ended."""
        if self.is_over:
            raise RunOver

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count working time."""
        with self.clock.working():
            yield

    @asynccontextmanager
    async def model_call(self) -> AsyncIterator[None]:
        """Count working time, and let a stop wait for the reply. After it, taken answers are acknowledged.

        Raises:
            RunRefused: the money is spent.
            SubagentError: that an answer was taken could not be written.
        """
        calls = self._own.model_calls
        while not (calls.unbounded or await asyncio.to_thread(calls.begin)):
            await self.pause(_FOR_ROOM_SECONDS)
        self.model_busy = True
        try:
            with self.clock.working():
                yield
        finally:
            self.model_busy = False
            calls.end()
        await self.settled()

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run ends meanwhile."""
        deadline = time.monotonic() + seconds
        busy, self.model_busy = self.model_busy, False  # a stop has nothing to wait for
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                self.checkpoint()
                await self._own.sleep(min(remaining, SLOW_POLL_SECONDS))
            self.checkpoint()
        finally:
            self.model_busy = busy

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        """Ask the parent and sleep until the answer, the expiry, or the end of the run.

        The agent goes on with an answer while that is acknowledged: its delivery never depends on it.
        """
        message = await self._recorded(question, options)
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
        self._acknowledging.add(asyncio.create_task(self._acknowledge(message.message_id)))
        return Reply(message.message_id, message.answer_content)

    async def settled(self) -> None:
        """Wait until every answer that was taken is acknowledged, unless the run has ended meanwhile.

        Raises:
            SubagentError: that could not be written.
        """
        while pending := [task for task in self._acknowledging if not task.done()]:
            await asyncio.wait(pending)
        taken, self._acknowledging = self._acknowledging, set()
        for task in taken:
            with suppress(IllegalTransition, MessageClosed):  # its end has closed its questions
                task.result()

    async def _recorded(self, question: str, options: list[str] | None) -> Message:
        timeout = self._limits.ask_timeout_seconds
        try:
            return await asyncio.to_thread(self._own.ask, question, options, timeout)
        except IllegalTransition as error:
            raise RunOver from error

    async def _closed(self, message: Message) -> Message:
        """Return the question once it is answered or has expired."""
        while True:
            meta = self._own.meta()
            current = meta.message(message.message_id) or message
            if meta.status.is_terminal:
                raise RunOver
            if current.message_status is not MessageStatus.PENDING:
                return current
            seconds_left = self._own.seconds_left(current)
            if seconds_left <= 0:
                await self._expire(message.message_id)
            else:
                await self._own.sleep(min(seconds_left, SLOW_POLL_SECONDS))

    async def _acknowledge(self, message_id: str) -> None:
        await asyncio.sleep(HEAD_START_SECONDS)
        await asyncio.to_thread(self._own.acknowledge, message_id)

    async def _expire(self, message_id: str) -> None:
        try:
            await asyncio.to_thread(self._own.expire, message_id)
        except IllegalTransition:
            return  # answered or ended meanwhile: the next look says which

    def _unanswered(self, message: Message) -> Reply:
        self.record("no_reply", messageId=message.message_id)
        if self._limits.on_ask_timeout == "fail":
            raise RunRefused(
                "ask_timeout",
                f"Nobody answered {message.message_id} within {self._limits.ask_timeout_seconds:g} s.",
                "Answer sooner, raise `askTimeoutSeconds`, or set `onAskTimeout: continue`.",
            )
        return Reply(message.message_id, None)
