"""Watch the files that other programs execute: around each command, before the first, and when all rest."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.host.no_room import lack_of_room
from subagent_server.sandbox.executed_changes import Seen, new_repositories, own_hooks
from subagent_server.sandbox.name_watch import CommandWatch, NameWatch, Taken
from subagent_server.sandbox.nested_repositories import disarmed
from subagent_server.sandbox.own_writes import OwnWrites
from subagent_server.sandbox.quarantine import Quarantine
from subagent_server.service.left_behind import left_facts, left_since, look_for_run, taken_facts
from subagent_server.settings import state_directory_of
from subagent_server.worker.run_context import WorkerRun


class ExecutedWatch:
    """The looks of a worker. An agent without a shell, programs and an editor that writes needs none."""

    def __init__(self, run: WorkerRun, agent: AgentDefinition, environment: Mapping[str, str]) -> None:
        selection = agent.selection
        self._needed = selection.bash or selection.edit or agent.enabled_code_mode is not None
        self._run = run
        self._since = time.time()
        self._before: asyncio.Task[Seen] | None = None
        self._quarantine = Quarantine(run.paths.quarantine)
        self._cwd = Path.cwd()
        names = NameWatch(
            self._cwd, self._quarantine, OwnWrites(state_directory_of(environment)), agent.lifted
        )
        self.commands = CommandWatch(names, run.paths.before, self._tell, run.masker.text)

    def begin(self) -> None:
        """Look for the first time, beside the first call of the model; what changes from now on counts."""
        if self._needed:
            self._since = time.time()
            self._before = asyncio.create_task(self._first_look())
            self._before.add_done_callback(_retrieve)

    async def _first_look(self) -> Seen:
        await self._run.first_request.wait()
        return await asyncio.to_thread(self._look_first)

    def _look_first(self) -> Seen:
        """Look; git of the host reads no repository that this run writes, which has no hooks of the user."""
        hooks = () if self._run.meta().worktree is not None else own_hooks(self._cwd)
        return look_for_run(self._run.store, self._cwd, hooks)

    async def found(self) -> list[str]:
        """Return what can run code since then, for people, and record it in the journal.

        A machine without room for a look is a warning: the run has its outcome by now.
        """
        if self._before is None or not self._run.first_request.is_set():
            return []  # no tool has been called
        try:
            before = await self._before
            after = await asyncio.to_thread(look_for_run, self._run.store, self._cwd, before.hooks)
            await asyncio.to_thread(self._disarm, new_repositories(before, after))
        except Exception as error:
            if (lack := lack_of_room(error)) is None:
                raise
            self._run.record("warning", message=f"Whether files that run code came was not seen. {lack}")
            return []
        found = left_since(before, after, self._since)
        if found:
            self._run.record("warning", **left_facts(found))
        return found

    def _disarm(self, repositories: list[str]) -> None:
        """Take hooks and configuration from repositories that came below the top; there, it is a person's."""
        taken = disarmed(
            self._cwd, [path for path in repositories if path not in ("", ".git")], self._quarantine
        )
        if taken:
            self._run.record("warning", **taken_facts(taken, self._cwd))

    def _tell(self, taken: Taken) -> str:
        """Record what came during a command, and return the remark for the agent."""
        self._run.record("warning", **taken_facts(taken, self._cwd))
        moved = ", ".join(kept.shown(self._cwd) for kept in taken.moved)
        stuck = ", ".join(taken.stuck)
        remarks = [
            f"[moved out of the working directory, because other programs execute it unasked: {moved}. "
            "A person can give it back: say in your answer what it is for]"
            if moved
            else "",
            f"[other programs execute such files unasked, and they could not be moved away: {stuck}]"
            if stuck
            else "",
        ]
        return "\n".join(filter(None, remarks))


def _retrieve(look: "asyncio.Task[Seen]") -> None:
    """Take note of a failure: asyncio prints those of a look that nobody awaits, as the run ended before."""
    if not look.cancelled():
        look.exception()
