"""Acknowledging the answers read by a run, without delaying the model call that carries them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from subagent_server.domain.errors import IllegalTransition, MessageClosed

LONGEST_DELAY_SECONDS = 0.25
"""How long an acknowledgement waits for a request. Another call of the turn may run for hours before one."""


class Acknowledgements:
    """Writes that answers were read: when the next model request has been sent, or after a short bound.

    Writing takes the lock of the run and syncs its state, which would hold up the request in this process.
    Nothing depends on the order: an answer is delivered with or without its acknowledgement.
    """

    def __init__(self, write: Callable[[str], object], longest_delay: float = LONGEST_DELAY_SECONDS) -> None:
        """`write` records an acknowledgement; the function blocks, and is called in a thread."""
        self._write = write
        self._longest_delay = longest_delay
        self._sent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, message_id: str) -> None:
        """Acknowledge the answer to a question as soon as it is time."""
        self._tasks.add(asyncio.create_task(self._acknowledge(message_id, self._sent)))

    def release(self) -> None:
        """Write what was added so far: a request has been sent, or will not be."""
        self._sent.set()
        self._sent = asyncio.Event()

    async def written(self) -> None:
        """Return when every answer that was added is acknowledged, unless the run has ended meanwhile.

        Raises:
            SubagentError: an acknowledgement could not be written.
        """
        self.release()
        while pending := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(pending)
        done, self._tasks = self._tasks, set()
        for task in done:
            with suppress(IllegalTransition, MessageClosed):  # the end of the run has closed its questions
                task.result()

    async def _acknowledge(self, message_id: str, sent: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._longest_delay):
                await sent.wait()
        await asyncio.to_thread(self._write, message_id)
