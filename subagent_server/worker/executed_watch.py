"""Watch the files that other programs execute: look before the tools of a run work, and when they rest."""

import asyncio
import time
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.tool_selection import select
from subagent_server.host.no_room import lack_of_room
from subagent_server.sandbox.executed_changes import Seen
from subagent_server.service.left_behind import left_facts, left_since, look_for_run
from subagent_server.worker.run_context import WorkerRun


class ExecutedWatch:
    """The two looks of a worker. An agent without a shell and an editor that writes needs neither."""

    def __init__(self, run: WorkerRun, agent: AgentDefinition) -> None:
        selection = select(agent.tools, agent.disallowed_tools)
        self._needed = selection.bash or selection.edit
        self._run = run
        self._since = time.time()
        self._before: asyncio.Task[Seen] | None = None

    def begin(self) -> None:
        """Look for the first time, beside the first call of the model; what changes from now on counts."""
        if self._needed:
            self._since = time.time()
            self._before = asyncio.create_task(self._first_look())
            self._before.add_done_callback(_retrieve)

    async def _first_look(self) -> Seen:
        await self._run.first_request.wait()
        return await asyncio.to_thread(look_for_run, self._run.store, Path.cwd())

    async def found(self) -> list[str]:
        """Return what can run code since then, for people, and record it in the journal.

        A machine without room for a look is a warning: the run has its outcome by now.
        """
        if self._before is None or not self._run.first_request.is_set():
            return []  # no tool has been called
        try:
            before = await self._before
            after = await asyncio.to_thread(look_for_run, self._run.store, Path.cwd(), before)
        except Exception as error:
            if (lack := lack_of_room(error)) is None:
                raise
            self._run.record("warning", message=f"Whether files that run code came was not seen. {lack}")
            return []
        found = left_since(before, after, self._since)
        if found:
            self._run.record("warning", **left_facts(found))
        return found


def _retrieve(look: "asyncio.Task[Seen]") -> None:
    """Take note of a failure: asyncio prints those of a look that nobody awaits, as the run ended before."""
    if not look.cancelled():
        look.exception()
