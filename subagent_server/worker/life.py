"""The life of one worker: begin, work under watch, and end in exactly one outcome."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import RunRefused, SubagentError
from subagent_server.domain.records import Failure
from subagent_server.host.no_room import lack_of_room
from subagent_server.host.stderr import log_exception
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.runners.outcome import Outcome
from subagent_server.runners.runner import Runner
from subagent_server.service.otlp import export_end
from subagent_server.toolkit.run_context import RunOver
from subagent_server.worker.delegation import WorkerDelegation, open_delegation
from subagent_server.worker.executed_watch import ExecutedWatch
from subagent_server.worker.own_places import own_places
from subagent_server.worker.own_worktree import leave_worktree
from subagent_server.worker.parent_watch import ParentWatch
from subagent_server.worker.program_questions import ProgramQuestions
from subagent_server.worker.run_context import WorkerRun
from subagent_server.worker.run_end import Left, close_journal, end_run
from subagent_server.worker.runner_setup import RunnerSetup
from subagent_server.worker.runners import opener_of
from subagent_server.worker.subagent_listeners import subagents_heard

T = TypeVar("T")

MODEL_GRACE_SECONDS = 8.0
"""How long a stop waits for a model call that is under way; the shim kills after 10."""
CLOSE_SECONDS = 3.0
REST_SECONDS = 8.0
"""How long the programs of a run may take to end: one that is interrupted says last what it has cost."""


class Life:
    """Everything of a worker. The only part of the runner known here is the protocol."""

    def __init__(self, run: WorkerRun, agent: AgentDefinition, environment: dict[str, str]) -> None:
        self.run = run
        self.agent = agent
        self.environment = environment
        self._parent = ParentWatch(run.store, run.run_id)
        self._runner: Runner | None = None
        self._executed = ExecutedWatch(run, agent, environment)
        self._terminated = False
        self._questions = ProgramQuestions(run)

    async def live(self) -> None:
        """Work, write how it ended, and clean up.

        Raises:
            SubagentError: not even the failure could be written; the shim tries once more.
        """
        with self.run.listening():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
            try:
                await self._live()
            finally:
                await self._close_runner()

    async def _live(self) -> None:
        delegates = bool(self.agent.agents)
        async with subagents_heard(self.run, self.environment, may_delegate=delegates):
            outcome = await self._outcome()
            with suppress(SubagentError):  # however the run ends, the answers that it read come first
                await self.run.acknowledgements_written()
        executed = await self._rested()
        worktree = await leave_worktree(self.run)
        usage = self._runner.usage if self._runner is not None else None
        meta = end_run(self.run, outcome, usage, Left(executed, worktree))
        if not_exported := export_end(self.run.store, meta, self.environment):
            self.run.record("warning", message=not_exported)
        with suppress(SubagentError):  # the state has them all the same
            self._questions.tell()
        close_journal(self.run, meta)

    def _terminate(self) -> None:
        self._terminated = True
        self.run.wake()

    async def _outcome(self) -> Outcome | None:
        """Return how the agent ended, or None if the run was ended from outside. The one broad catch."""
        try:
            self._executed.begin()
            self._runner = await self._watched(self._opened())
            outcome = await self._watched(self._runner.work())
            await self.run.acknowledgements_written()
            return outcome
        except RunOver:
            return None
        except RunRefused as refusal:
            failure = Failure(code=refusal.failure_code, message=refusal.sentence, hint=refusal.hint)
        except SubagentError as error:
            failure = Failure(code=_code_of(error), message=error.sentence)
        except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is, the run ends with it
            failure = self._unforeseen(error)
        return Outcome("", failure=failure) if self._runner is None else self._runner.cut_short(failure)

    async def _rested(self) -> list[str]:
        """Return what can run code, after the programs of the tools are ended: they could still write."""
        if self._runner is None:
            return []
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await self._runner.rest()
        return await self._executed.found()

    def _unforeseen(self, error: Exception) -> Failure:
        lack = lack_of_room(error)
        if lack is not None:
            return Failure(code="crashed", message=f"The worker could not go on. {lack}")
        log_exception()
        return Failure(
            code="agent_error",
            message=f"The worker met a fault of its own: {type(error).__name__}: {error}"[:500],
            hint=f"{self.run.paths.worker_out.name} in its directory holds the details; please report it.",
        )

    async def _opened(self) -> Runner:
        delegation = self._delegation() if self.agent.agents else None
        root = Path(os.path.realpath(self.run.store.paths.root))
        places = await asyncio.to_thread(own_places, self.agent, self.environment, root, Path.cwd())
        setup = RunnerSetup(
            self.agent, self.run, self.environment, places, delegation, self._executed.commands
        )
        with self.run.working():
            return await opener_of(self.agent.runner)(setup)

    def _delegation(self) -> WorkerDelegation:
        delegation = open_delegation(self.run, self.environment)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, delegation.service.launcher.reap)
        return delegation

    # -- the watch beside the work

    async def _watched(self, doing: Coroutine[Any, Any, T]) -> T:
        """Return the result of `doing`, or raise why the run has to end before it."""
        work = asyncio.create_task(doing)
        try:
            reason = await self._reason_to_end(work)
            if reason is not None and self.run.model_busy:
                await asyncio.wait([work], timeout=MODEL_GRACE_SECONDS)
        finally:
            if not work.done():
                work.cancel()
            await asyncio.wait([work], timeout=CLOSE_SECONDS)
        if reason is not None:
            if work.done() and not work.cancelled():
                work.exception()  # it has met the same end by itself: retrieve it, or asyncio logs it
            raise reason()
        return work.result()

    async def _reason_to_end(self, work: "asyncio.Task[T]") -> Callable[[], Exception] | None:
        """Return why the work has to end, or None when it has ended by itself."""
        limit = self.agent.limits.timeout_seconds
        work.add_done_callback(lambda _: self.run.wake())
        while not work.done():
            if self._parent.is_dead:
                await asyncio.to_thread(self._parent.reconcile)
            if self.run.is_over:
                return RunOver
            remaining = limit - self.run.clock.elapsed
            if remaining <= 0:  # before the signal: the shim sends it to a worker that is late
                return lambda: _out_of_time(limit)
            if self._terminated:
                return _terminated
            unanswered = await self._questions.refusal()
            if unanswered is not None:
                return _raised(unanswered)
            self.run.report_deadline()
            patience = min(SLOW_POLL_SECONDS, remaining) if self.run.clock.running else SLOW_POLL_SECONDS
            await self.run.sleep(patience)
        return None

    async def _close_runner(self) -> None:
        """Close tools and connections, within a bound: the shim sweeps the processes that stay behind."""
        if self._runner is None:
            return
        closing = asyncio.ensure_future(self._runner.aclose())
        _, late = await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        for task in late:
            task.cancel()


def _out_of_time(limit: float) -> RunRefused:
    return RunRefused(
        "timeout",
        f"The agent used all of its {limit:g} s of working time.",
        "Raise `timeoutSeconds` in the agent file, or give it a smaller task.",
    )


def _raised(refusal: RunRefused) -> Callable[[], RunRefused]:
    return lambda: refusal


def _terminated() -> RunRefused:
    return RunRefused("crashed", "The worker was ended by SIGTERM before it had a result.")


def _code_of(error: SubagentError) -> str:
    return "storage" if error.code in ("storage", "lock_timeout", "unreadable_meta") else "config"
