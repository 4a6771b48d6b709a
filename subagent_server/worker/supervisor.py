"""The life of one worker: begin, work under watch, and end in exactly one outcome."""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from subagent_server.loop.runner import Outcome, Runner
from subagent_server.run import locks
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import RunRefused, StorageFailed, SubagentError
from subagent_server.run.files import Directory, Entry, NotPlain
from subagent_server.run.records import Failure, Message
from subagent_server.run.states import MessageStatus
from subagent_server.run.stderr import lack_of_room, log_exception
from subagent_server.run.store import RunStore
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.toolbox.context import RunOver
from subagent_server.verbs.export_run import export_end
from subagent_server.verbs.reconcile import observe
from subagent_server.worker.own_places import ExecutedWatch, leave_worktree, own_places
from subagent_server.worker.run import WorkerRun, seconds_left
from subagent_server.worker.run_end import Left, close_journal, end_run
from subagent_server.worker.runners import RunnerSetup, WorkerDelegation, open_delegation, opener_of
from subagent_server.worker.subagents import subagents_heard

# -- Ending a run whose parent run has died: the worker of a child watches the lock of its parent.


class ParentWatch:
    """The parent of this run, if another run started this run: whether the parent's shim still lives."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._parent: str | None = None
        """The parent run: the empty text if no run started this one, None before the first look."""

    @property
    def is_dead(self) -> bool:
        """Whether this run has a parent run whose shim is gone.

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
            return not locks.is_held(self._store.paths.run(self._parent).live_lock)
        return False

    def reconcile(self) -> None:
        """Record the death of the parent run, which ends this run: the parent's worker and shim were killed.
        Blocks.

        Every reader of a dead run records its death and ends its children; so the children read their parent.
        """
        with suppress(SubagentError):  # it was removed, or the disk refuses: the next look may do better
            observe(self._store, self._parent or "")


# -- Record the questions that programs of a run ask by themselves, through its server for children.
#
# Such a question is in the state of the run. The worker, which alone writes the journal, reads it there, so
# the journal has every question, by whichever way it was asked.


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


# -- Taking turns at the heavy imports: a worker for each core, so servers and running agents stay quick.


def take_import_lock(slots: Directory) -> int:
    """Take a lock, of which there are as many as cores, and return the held lock. Blocks while all are taken.

    Raises:
        StorageFailed: all the names are taken by other kinds of files.
    """
    taken: list[Entry] = []
    for number in range(os.cpu_count() or 1):
        file = slots.entry(f"starting.{number}")
        with suppress(NotPlain):
            descriptor = locks.take(file)
            if descriptor is not None:
                return descriptor
            taken.append(file)
    if not taken:
        raise StorageFailed(slots.path, "it holds something else than lock files")
    descriptor = locks.open_lock(random.choice(taken))
    locks.lock(descriptor)
    return descriptor
