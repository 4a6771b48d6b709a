"""What a run leaves that other programs execute: looked at before its tools work, and when they rest."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import UnreadableMeta
from subagent_server.domain.executed_files import can_run_code
from subagent_server.domain.tool_selection import select
from subagent_server.host.clock import now
from subagent_server.host.inside import printable
from subagent_server.host.no_room import lack_of_room
from subagent_server.sandbox.executed_changes import Seen, changes, look
from subagent_server.store.logs import RunJournal
from subagent_server.store.runs import RunStore
from subagent_server.worker.run_context import WorkerRun

MAX_SHOWN = 20
"""How many files are named; of more, the number is said."""
MAX_PATH_CHARACTERS = 300


class ExecutedWatch:
    """The two looks of a worker. An agent without a shell and an editor that writes needs neither."""

    def __init__(self, run: WorkerRun, agent: AgentDefinition) -> None:
        selection = select(agent.tools, agent.disallowed_tools)
        self._needed = selection.bash or selection.edit
        self._run = run
        self._since = time.time()
        self._before: asyncio.Task[Seen] | None = None

    def begin(self) -> None:
        """Look for the first time, beside the first call of the model."""
        if self._needed:
            self._since = time.time()
            self._before = asyncio.create_task(asyncio.to_thread(_look, Path.cwd(), self._run.store))
            self._before.add_done_callback(_retrieve)

    async def found(self) -> list[str]:
        """Return what can run code since then, for people, and record it in the journal.

        A machine without room for a look is a warning: the run has its outcome by now.
        """
        if self._before is None:
            return []
        try:
            before = await self._before
            after = await asyncio.to_thread(_look, Path.cwd(), self._run.store, before)
        except Exception as error:
            if (lack := lack_of_room(error)) is None:
                raise
            self._run.record("warning", message=f"Whether files that run code came was not seen. {lack}")
            return []
        found = _shown(before, after, self._since)
        if found:
            self._run.record("warning", **_facts(found))
        return found


def record_left_behind(store: RunStore, run_id: str) -> None:
    """Record what a run whose worker died has left that can run code. Only times tell what is new."""
    try:
        cwd = Path(os.path.realpath(store.read_request(run_id).cwd))
        started = store.read(run_id).started_at
    except UnreadableMeta:
        return
    if started is not None:
        found = _shown(None, _look(cwd, store), started.timestamp())
        if found:
            RunJournal(store.paths.run(run_id)).append("warning", now(), _facts(found))


def _retrieve(look: "asyncio.Task[Seen]") -> None:
    """Take note of a failure: asyncio prints those of a look that nobody awaits, as the run ended before."""
    if not look.cancelled():
        look.exception()


def _look(cwd: Path, store: RunStore, before: Seen | None = None) -> Seen:
    return look(cwd, None if before is None else before.places, leave_out=store.paths.root)


def _shown(before: Seen | None, after: Seen, since: float) -> list[str]:
    found = changes(before, after, since)
    shown = [printable(path[:MAX_PATH_CHARACTERS]) for path in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"and {len(found) - MAX_SHOWN} more")
    if after.cut and not (before is not None and before.cut):
        shown.append("and maybe more (the directory has grown too large to be looked at)")
    return shown


def _facts(found: list[str]) -> dict[str, Any]:
    return {"message": can_run_code(found), "canRunCode": found}
