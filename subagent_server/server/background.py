"""Background tasks of a connection: no call waits for them, and their failures are logged."""

import asyncio
import sys
import traceback
from collections.abc import Coroutine
from typing import Any

from subagent_server.domain.errors import SubagentError


class Background:
    """Keeps tasks alive. One that fails says so on stderr; calls and the server are not affected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin `work` and return its task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def close(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, SubagentError):
            print(f"Changes are no longer reported: {error.sentence}", file=sys.stderr, flush=True)
        elif error is not None:
            traceback.print_exception(error, file=sys.stderr)
