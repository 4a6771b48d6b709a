"""One agent at work under watch, until it ends in exactly one outcome."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from subagent_server import extensions
from subagent_server.loop.runner import Outcome, Runner
from subagent_server.run import locks
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import RunRefused, SubagentError
from subagent_server.run.processes import NODE, on_node
from subagent_server.run.records import Failure, Message, WorktreeState
from subagent_server.run.states import MessageStatus
from subagent_server.run.stderr import half_upgraded, lack_of_room, log_exception
from subagent_server.run.store import RunStore, read_state
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.toolbox.run_context import RunOver
from subagent_server.verbs.export_run import export_end
from subagent_server.verbs.reconcile import elsewhere, ending_facts, observe
from subagent_server.verbs.run_worktree import settle_if_possible
from subagent_server.worker.protected_paths import ExecutedWatch, protected_paths
from subagent_server.worker.run_end import end_run
from subagent_server.worker.runners import RUNNERS, OpenRunner, RunnerSetup
from subagent_server.worker.subagents import subagent_events_recorded
from subagent_server.worker.worker_run import WorkerRun, seconds_left

T = TypeVar("T")

MODEL_GRACE_SECONDS = 8.0
"""How long a stop waits for a model call that is under way; the shim kills after 10."""
CLOSE_SECONDS = 3.0
ELSEWHERE_SECONDS = 15.0
"""Between two looks at a parent on another host."""
REST_SECONDS = 8.0
"""How long the programs of a run may take to end: one that is interrupted reports its cost last."""


class Supervisor:
    """Runs an agent to its outcome under watch. The only part of the runner known here is the protocol."""

    def __init__(self, run: WorkerRun, agent: AgentDefinition, environment: dict[str, str]) -> None:
        self.run = run
        self.agent = agent
        self.environment = environment
        self._parent = ParentWatch(run.store, run.run_id)
        self._runner: Runner | None = None
        self._executed = ExecutedWatch(run, agent, environment)
        self._terminated = False
        self._questions = ProgramQuestions(run)

    async def supervise(self) -> None:
        """Work, write how it ended, and clean up.

        Raises:
            SubagentError: not even the failure could be written; the shim tries once more.
        """
        with self.run.listening():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
            try:
                await self._run_to_end()
            finally:
                await self._close_runner()
                # A closing loop drops its pipe before its handlers: of a signal in between Python complains.
                for number in (signal.SIGCHLD, signal.SIGTERM):
                    loop.remove_signal_handler(number)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process has nothing left to end

    async def _run_to_end(self) -> None:
        """The order is the safety: nothing that the agent started may write after it was looked at."""
        # 1. The agent works. However that ends, the answers that it read are acknowledged first.
        async with subagent_events_recorded(self.run, self.environment, may_delegate=self.agent.may_delegate):
            outcome = await self._outcome()
            with suppress(SubagentError):
                await self.run.acknowledged()
        # 2. Its programs end, then what they have left is looked for, then its worktree is committed.
        executed = await self._stop_programs()
        worktree = await self._leave_worktree()
        # 3. Result, status and usage, then the children; the last event of the journal comes last.
        usage = self._runner.usage if self._runner is not None else None
        meta = end_run(self.run, outcome, usage, executed, worktree)
        if not_exported := export_end(self.run.store, meta, self.environment):
            self.run.record("warning", message=not_exported)
        with suppress(SubagentError):  # the state has them all the same
            self._questions.record()
        self.run.record("run_ended", **ending_facts(meta))

    def _terminate(self) -> None:
        self._terminated = True
        self.run.wake()

    async def _outcome(self) -> Outcome | None:
        """Return how the agent ended, or None if the run was ended from outside. The one broad catch."""
        try:
            self._executed.begin()
            self._runner = await self._watched(self._opened())
            outcome = await self._watched(self._runner.work())
            await self.run.acknowledged()
            return outcome
        except RunOver:
            return None
        except RunRefused as refusal:
            failure = Failure(code=refusal.failure_code, message=refusal.sentence, hint=refusal.hint)
        except SubagentError as error:
            is_storage = error.code in ("storage", "lock_timeout", "unreadable_meta")
            failure = Failure(code="storage" if is_storage else "config", message=error.sentence)
        except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is, the run ends with it
            failure = self._unforeseen(error)
        if failure.code == "config":  # another host may have what this one lacks
            failure = failure.model_copy(update={"message": on_node() + failure.message})
        return Outcome("", failure=failure) if self._runner is None else self._runner.cut_short(failure)

    async def _stop_programs(self) -> list[str]:
        """Return what can run code, after the programs of the tools are ended: they could still write."""
        if self._runner is None:
            return []
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await self._runner.stop_programs()
        return await self._executed.found()

    async def _leave_worktree(self) -> WorktreeState | None:
        """Commit what the run has changed, or remove its worktree; a failure is a warning of the run."""
        meta = self.run.meta()
        if meta.worktree is None:
            return None
        os.chdir(self.run.paths.files.descriptor)  # the worktree may go
        state = await asyncio.to_thread(settle_if_possible, self.run.store, meta)
        if isinstance(state, SubagentError):
            more = "The next reader of the run tries again."
            message = f"The worktree of the run was not settled. {state.sentence} {more}"
            self.run.record("warning", message=message)
            return None
        return state

    def _unforeseen(self, error: Exception) -> Failure:
        if (lack := lack_of_room(error) or half_upgraded(error)) is not None:
            return Failure(code="crashed", message=f"The worker could not continue. {lack}")
        log_exception()
        return Failure(
            code="agent_error",
            message=f"The worker met a fault of its own: {type(error).__name__}: {error}"[:500],
            hint=f"{self.run.paths.worker_out.name} in its directory holds the details; please report it.",
        )

    async def _opened(self) -> Runner:
        delegation = None
        if self.agent.may_delegate:
            # Not at the top: it imports every verb.
            from subagent_server.worker.delegation import WorkerDelegation

            delegation = WorkerDelegation(self.run, self.environment, self.agent)
            reap = delegation.service.launcher.reap
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reap)
        root = Path(os.path.realpath(self.run.store.paths.root))
        protected = await asyncio.to_thread(protected_paths, self.agent, self.environment, root, Path.cwd())
        setup = RunnerSetup(
            self.agent, self.run, self.environment, protected, delegation, self._executed.commands
        )
        with self.run.working():
            opener: OpenRunner = extensions.imported(RUNNERS[self.agent.runner])
            return await opener(setup)

    # -- the watch during the work

    async def _watched(self, doing: Coroutine[Any, Any, T]) -> T:
        """Return the result of `doing`, or raise why the run has to end before it."""
        work = asyncio.create_task(doing)
        try:
            reason = await self._reason_to_end(work)
            self.run.is_ending = reason is not None
            if reason is not None and self.run.model_busy:
                await asyncio.wait([work], timeout=MODEL_GRACE_SECONDS)
        finally:
            if not work.done():
                work.cancel()
            await asyncio.wait([work], timeout=CLOSE_SECONDS)
        if reason is not None:
            if work.done() and not work.cancelled():
                work.exception()  # it has met the same end by itself: retrieve it, or asyncio logs it
            raise reason
        return work.result()

    async def _reason_to_end(self, work: "asyncio.Task[T]") -> Exception | None:
        """Return why the work has to end, or None when it has ended by itself."""
        limit = self.agent.limits.timeout_seconds
        work.add_done_callback(lambda _: self.run.wake())
        while not work.done():
            if self._parent.is_dead:
                await asyncio.to_thread(self._parent.reconcile)
            if self.run.meta().status.is_terminal:
                return RunOver()
            remaining = limit - self.run.clock.elapsed
            if remaining <= 0:  # before the signal: the shim sends it to a worker that is late
                used = f"The agent used all of its {limit:g} s of working time."
                hint = "Raise `timeoutSeconds` (agent file or option), or give it a smaller task."
                if (why := self.run.retry_reason) is not None:  # the same may use up a larger limit
                    used += f" Its last request of the model had failed before: {why}."
                    hint = "See that the API answers. " + hint
                return RunRefused("timeout", used, hint)
            if self._terminated:
                self.run.is_ending = True  # an engine sends TERM to the tools too, and its answer takes time
                return await asyncio.to_thread(_why_terminated)
            if (unanswered := await self._questions.refusal()) is not None:
                return unanswered
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


def _why_terminated() -> RunRefused:
    """Return why something that is no reader of this run ended it: an engine may know."""
    why = None
    if NODE in os.environ:
        from subagent_server.process.slurm import why_ended  # on a node alone

        why = why_ended()
    code, sentence = why or ("crashed", "The worker was ended by SIGTERM before it had a result.")
    return RunRefused(code, sentence)


class ParentWatch:
    """The parent of this run, if another run started this run: its worker watches the lock of its parent."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._parent: str | None = None
        """The parent run: the empty text if no run started this one, None before the first look."""
        self._due = 0.0

    @property
    def is_dead(self) -> bool:
        """Whether this run has a parent run whose shim is gone, or that has to be looked at on another host.

        Raises:
            UnreadableMeta: of this run.
        """
        if self._parent is None:
            self._parent = self._store.read(self._run_id).parent_run_id or ""
        if not self._parent:
            return False
        with suppress(
            SubagentError, OSError
        ):  # a damaged id, or the disk refuses: the next look may do better
            parent = self._store.paths.run(self._parent)
            if elsewhere(parent, read_state(parent)) is not None:
                return self._is_due()  # a free lock on another host proves nothing: observe it now and then
            return not locks.is_held(parent.live_lock)
        return False

    def _is_due(self) -> bool:
        due, moment = self._due, time.monotonic()
        if moment >= due:
            self._due = moment + ELSEWHERE_SECONDS
        return moment >= due

    def reconcile(self) -> None:
        """Record the death of the parent run, which ends this run: the parent's worker and shim were killed.
        Blocks.

        Every reader of a dead run records its death and ends its children; so the children read their parent.
        """
        with suppress(SubagentError):  # it was removed, or the disk refuses: the next look may do better
            observe(self._store, self._parent or "")


class ProgramQuestions:
    """Records the questions that programs of a run ask through its server for children, and expires them.

    Such a question is in the state of the run. The worker, which alone writes the journal, reads it there, so
    the journal has every question, by whichever way it was asked.
    """

    def __init__(self, run: WorkerRun) -> None:
        self._run = run
        self._asked: set[str] = set()
        self._closed: set[str] = set()

    async def refusal(self) -> RunRefused | None:
        """Expire questions whose time is over, and record all; return why they end the run, or None.

        A program asks through a tool, and may be gone when the time of its question is over.
        """
        for message in self._run.questions_of_programs():
            if message.message_status is MessageStatus.PENDING and seconds_left(message) <= 0:
                await self._run.expire(message.message_id)
        messages = self.record()
        expired = [each for each in messages if each.message_status is MessageStatus.EXPIRED]
        return self._run.refusal_of_late(expired[0]) if expired else None

    def record(self) -> list[Message]:
        """Record the questions and answers since the last call, and return all questions.

        Raises:
            UnreadableMeta: of this run.
        """
        messages = self._run.questions_of_programs()
        for message in messages:
            if message.message_id not in self._asked:
                self._asked.add(message.message_id)
                self._run.record_question(message)
            is_closed = message.message_status is MessageStatus.EXPIRED or message.answer_content is not None
            if is_closed and message.message_id not in self._closed:
                self._closed.add(message.message_id)
                self._run.record_end_of(message)
        return messages
