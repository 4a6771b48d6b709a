"""The run as its worker has it: state, journal, transcript, questions, clock and model calls."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from subagent_server.process import cleanup
from subagent_server.run import locks, processes, transitions
from subagent_server.run.agent_definition import AgentDefinition, Limits
from subagent_server.run.errors import (
    IllegalTransition,
    LockTimeout,
    MessageClosed,
    RunRefused,
    StorageFailed,
    SubagentError,
    storing,
)
from subagent_server.run.files import Entry
from subagent_server.run.journal import RunJournal, Transcript, recorded_usage
from subagent_server.run.locks import exclusive
from subagent_server.run.paths import RunPaths, run_at
from subagent_server.run.processes import DeadlineWriter, now
from subagent_server.run.records import Message, RunMeta, RunRequest, RunResult, Usage, WorkerIdentity
from subagent_server.run.secrets import Masker
from subagent_server.run.states import MessageStatus
from subagent_server.run.stderr import failpoint
from subagent_server.run.store import RunStore, read_state
from subagent_server.run.transitions import RunEvent
from subagent_server.run.wake import SLOW_POLL_SECONDS, drain, open_fifo
from subagent_server.toolbox.run_context import Reply, RunOver
from subagent_server.verbs.inputs import masker_of
from subagent_server.verbs.questions import ask
from subagent_server.verbs.reconcile import subtree, tree_usage
from subagent_server.verbs.tree_limits import Budget, budgets_of, exhausted, refuse_spent, used_up

_BUDGET_POLL_SECONDS = 0.5
"""How long a model call waits before it looks again whether a budget has room for it."""


class WorkerRun:
    """Implements `toolbox.run_context.RunContext` for the worker process of a run.

    `store` and `paths` are for the worker's own modules. Everything written is masked first.
    """

    def __init__(self, directory: Path, slots: list[int], deadline: int | None = None) -> None:
        """Descriptors: `slots` are the locks that let this run work, `deadline` is the pipe to its shim."""
        self.paths = run_at(directory)
        self.store = RunStore(directory.parent, self.paths.root)
        self.masker = Masker()
        self.clock = WorkClock(self._wait_begins, self.report_deadline)
        self._deadline = DeadlineWriter(deadline)
        self.model_busy = False
        """Whether the API works on a request: a stop waits a little for the reply."""
        self.is_ending = False
        """Whether something has ended the work that is not in the state yet: a limit, or a signal."""
        self.retry_reason: str | None = None
        self.first_request = asyncio.Event()
        """Set when the first request of the model is on its way."""
        self._limits = Limits()
        self._prompt = ""
        self._secrets: list[str] = []
        self._slots = slots
        self._journal = RunJournal(self.paths)
        self._transcript = Transcript(self.paths)
        self._model_calls = ModelCalls(self.store, self.paths)
        self._acknowledging: set[asyncio.Task[None]] = set()
        self._sleeper: Sleeper | None = None
        self._hooks: str | None = None
        self._own_questions: set[str] = set()
        """The questions of the agent itself, each of which waits for its own answer."""
        self._asking = asyncio.Lock()
        """Held while one of them is written: its id is not known yet, and the next one has the next id."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.paths.run_id

    def limit(self, limits: Limits) -> None:
        """Keep to the limits of the agent. Called before anything that could block for ever."""
        self._limits = limits
        self.report_deadline()

    def use_package(self, package: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Take what came through memory: the prompt, and the secrets to mask from now on."""
        self._prompt, self._secrets = package["prompt"], package["secrets"]
        self.masker = masker_of(None, environment, self._secrets)

    def request(self) -> RunRequest:
        """Return the request, with the prompt as the starter wrote it: on disk its secrets are masked.

        Raises:
            UnreadableMeta: it cannot be read.
        """
        return self.store.read_request(self.run_id).model_copy(update={"prompt": self._prompt})

    def use_agent(self, agent: AgentDefinition, environment: Mapping[str, str]) -> None:
        """Mask the secrets of `agent`, too, and take the user's hooks. Called before any work."""
        self.masker = masker_of(agent, environment, self._secrets)
        self._hooks = environment.get(cleanup.VARIABLE)

    # -- the state

    def begin(self) -> bool:
        """Record that the worker lives. Returns False if the run was ended meanwhile.

        Raises:
            StorageFailed: the state cannot be written.
        """
        worker = WorkerIdentity(**asdict(processes.this_process()))
        try:
            self.apply(transitions.WorkerStarted(worker=worker))
        except IllegalTransition:
            return False
        failpoint("worker.started")
        return True

    def apply(
        self, event: RunEvent, result: RunResult | None = None, payload: bytes | None = None
    ) -> RunMeta:
        """Write an event into the state of the run, and with a terminal one its result and payload.

        Raises:
            SubagentError: IllegalTransition, MessageClosed, or the state cannot be written.
        """
        return self.store.update(self.run_id, event, now(), result=result, payload=payload)

    def meta(self) -> RunMeta:
        """Return the state of the run. Raises UnreadableMeta."""
        return read_state(self.paths)

    def checkpoint(self) -> None:
        """Raise RunOver if the run has ended, or is about to."""
        if self.is_ending or self.meta().status.is_terminal:
            raise RunOver

    # -- journal and transcript

    def record(self, kind: str, **facts: Any) -> None:
        """Append an event to the journal; a disk that refuses is a warning."""
        self._journal.append(kind, now(), self.masker.data(facts))
        failpoint("worker.recorded")

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        """Append a message to the transcript; a disk that refuses is a warning."""
        kept = message | ({"stopReason": stop_reason} if stop_reason else {})
        self._transcript.append(self.masker.message(kept))
        failpoint("worker.remembered")

    def adopt(self, messages: list[dict[str, Any]]) -> None:
        """Begin the transcript with the conversation of the run being continued."""
        self._transcript.begin(self.masker.message(message) for message in messages)

    # -- time

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, each change of the run wakes every `sleep`. Enter it inside the event loop."""
        self._sleeper = Sleeper(self.paths.wake(os.getpid()))
        try:
            yield
        finally:
            self._sleeper.close()
            self._sleeper = None

    async def sleep(self, seconds: float) -> None:
        """Return at the next change of the run, at the slow poll, or when the time is over."""
        if self._sleeper is not None:
            await self._sleeper.sleep(seconds)

    def wake(self) -> None:
        """Wake every sleeper."""
        if self._sleeper is not None:
            self._sleeper.wake_all()

    async def spare(self, seconds: float) -> None:
        """Pause inside a stretch of working time, whose clock stops: it is a busy API that is waited for.

        The run keeps its slots: another run would only find the API busy too.
        """
        with self.clock.pausing(time.monotonic() + seconds):
            await self.pause(seconds)

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the run ends meanwhile: then it raises RunOver."""
        deadline = time.monotonic() + seconds
        busy, self.model_busy = self.model_busy, False  # a stop has nothing to wait for
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                self.checkpoint()
                await self.sleep(min(remaining, SLOW_POLL_SECONDS))
            self.checkpoint()
        finally:
            self.model_busy = busy

    def working(self) -> AbstractContextManager[None]:
        """Count working time."""
        return self.clock.working()

    def waiting(self) -> AbstractContextManager[None]:
        """Suspend the stretch of working time that this is inside."""
        return self.clock.waiting()

    @property
    def waits_for_others(self) -> bool:
        """Whether a question of the run is open, or a run that it has started is live."""
        meta = self.meta()
        if meta.status.is_terminal or meta.pending:
            return bool(meta.pending)
        return any(not self._has_ended(child) for child in self.store.children_of(self.run_id))

    def _has_ended(self, run_id: str) -> bool:
        try:
            return self.store.read(run_id).status.is_terminal
        except SubagentError:
            return True  # a start that never was, or an unreadable run: nobody waits for it

    def session_opened(self, session_id: str) -> None:
        """Write the name of the program's conversation into the state. Raises SubagentError."""
        with suppress(IllegalTransition):  # ended from outside, which is noticed by itself
            self.apply(transitions.ProgressReported(external_session_id=session_id))

    def report_deadline(self) -> None:
        """Let the shim know when this process is to be ended if it no longer answers."""
        until = self.clock.waits_until
        if self.clock.running or until is None:
            until = time.monotonic() + self._limits.timeout_seconds - self.clock.elapsed
        self._deadline.write(until)

    def _wait_begins(self) -> None:
        """Release the slots, so that others work. They are not taken again."""
        self.report_deadline()
        for descriptor in self._slots:
            with suppress(OSError):
                locks.give_back(descriptor)
        self._slots.clear()

    # -- model calls

    @asynccontextmanager
    async def model_call(self, spent: Usage, extra: Decimal = Decimal(0)) -> AsyncIterator[None]:
        """Count working time, and let a stop wait for the reply.

        Raises:
            RunRefused: the money is spent.
            SubagentError: that an answer was read could not be written.
        """
        calls = self._model_calls
        while not (calls.unbounded or await asyncio.to_thread(calls.begin, spent, extra)):
            await self.pause(_BUDGET_POLL_SECONDS)
        self.model_busy = True
        try:
            with self.clock.working():
                yield
            self.retry_reason = None
        finally:
            self.model_busy = False
            calls.end()
        await self.acknowledged()

    async def check_budget(self, spent: Usage) -> None:
        """Look again whether the money is spent: an attempt that has failed may have cost some of it.

        Raises:
            RunRefused: `budget`.
        """
        if not self._model_calls.unbounded:
            await asyncio.to_thread(self._model_calls.check, spent)

    # -- questions

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        """Ask the parent and sleep until the answer, the expiry, or the end of the run.

        The agent continues with an answer before the acknowledgement: delivery never depends on the
        acknowledgement.
        """
        until = time.monotonic() + self._limits.ask_timeout_seconds
        message = await self._write_question(question, options)
        self.record_question(message)
        try:
            with self.clock.waiting(until):
                message = await self._closed(message, until)
        except asyncio.CancelledError:
            if not self.is_ending:  # nobody waits for its answer any more; an end of the run cancels it
                with suppress(SubagentError):  # the disk refuses: it is open until its time is over
                    await self.expire(message.message_id)
            raise
        self.record_end_of(message)
        if message.message_status is MessageStatus.EXPIRED:
            if (refusal := self.refusal_of_late(message)) is not None:
                raise refusal
            return Reply(message.message_id, None)
        # In a thread: it waits for a lock and a disk, and delivery does not depend on it.
        writing = asyncio.to_thread(self._acknowledge, message.message_id)
        self._acknowledging.add(asyncio.create_task(writing))
        return Reply(message.message_id, message.answer_content)

    async def _write_question(self, question: str, options: list[str] | None) -> Message:
        text, masked = self.masker.text(question), self.masker.data(options)
        seconds = self._limits.ask_timeout_seconds
        async with self._asking:
            try:
                meta = await asyncio.to_thread(
                    ask, self.store, self.run_id, text, masked, seconds, self._hooks
                )
            except IllegalTransition as error:
                raise RunOver from error
            message = meta.messages[-1]
            self._own_questions.add(message.message_id)
            return message

    async def _closed(self, message: Message, until: float) -> Message:
        """Return the question once it is answered or has expired, on the monotonic clock at `until`.

        The wall clock may have been set meanwhile. If it was set back, it would lengthen the wait; if it was
        set forward, the shim would judge this process late.
        """
        while True:
            meta = self.meta()
            current = meta.message(message.message_id) or message
            if meta.status.is_terminal:
                raise RunOver
            if current.message_status is not MessageStatus.PENDING:
                return current
            left = min(seconds_left(current), until - time.monotonic())
            if left <= 0:
                await self.expire(message.message_id)
            else:
                await self.sleep(min(left, SLOW_POLL_SECONDS))

    async def expire(self, message_id: str) -> None:
        """Record that a question has expired."""
        with suppress(IllegalTransition):  # answered or ended meanwhile: the next look finds which
            await asyncio.to_thread(self.apply, transitions.QuestionExpired(message_id=message_id))

    async def acknowledged(self) -> None:
        """Return when every answer that was read is acknowledged, unless the run has ended meanwhile.

        Raises:
            SubagentError: an acknowledgement could not be written.
        """
        while pending := [task for task in self._acknowledging if not task.done()]:
            await asyncio.wait(pending)
        done, self._acknowledging = self._acknowledging, set()
        for task in done:
            with suppress(IllegalTransition, MessageClosed):  # the end of the run has closed its questions
                task.result()

    def _acknowledge(self, message_id: str) -> None:
        message = self.meta().message(message_id)
        answer = None if message is None else message.answer_content
        masked = None if answer is None else self.masker.text(answer)
        self.apply(transitions.ReplyAcknowledged(message_id=message_id, masked=masked))

    def record_question(self, message: Message) -> None:
        """Record that a question was asked."""
        facts = {"options": message.options} if message.options else {}
        self.record("question", messageId=message.message_id, question=message.question_content, **facts)

    def record_end_of(self, message: Message) -> None:
        """Record the answer to a question, or that none came in time."""
        if message.message_status is MessageStatus.EXPIRED:
            self.record("no_reply", messageId=message.message_id)
        else:
            answer = {"answer": message.answer_content, "answeredBy": message.answered_by}
            self.record("reply", messageId=message.message_id, **answer)

    def questions_of_programs(self) -> list[Message]:
        """Return the questions that this process has not asked; none while it is just asking one itself."""
        messages = [] if self._asking.locked() else self.meta().messages
        return [message for message in messages if message.message_id not in self._own_questions]

    def refusal_of_late(self, message: Message) -> RunRefused | None:
        """Return why a question without an answer ends the run, or None if the agent continues without it."""
        if self._limits.on_ask_timeout != "fail":
            return None
        return RunRefused(
            "ask_timeout",
            f"Nobody answered {message.message_id} within {self._limits.ask_timeout_seconds:g} s.",
            "Answer sooner, raise `askTimeoutSeconds`, or set `onAskTimeout: continue`.",
        )


def seconds_left(message: Message) -> float:
    """Return how long an answer may still come."""
    return (message.expires_at - now()).total_seconds() if message.expires_at else float("inf")


# -- Sleeping until the run changes.


class Sleeper:
    """Wakes every waiter of the event loop at each poke, and all of them together at the slow poll."""

    def __init__(self, fifo: Entry) -> None:
        self._fifo = fifo
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._woken = asyncio.Event()
        self._descriptor: int | None = None
        with suppress(OSError):  # a file system without FIFOs (FAT, some of FUSE): the slow poll alone wakes
            self._descriptor = open_fifo(fifo)
            self._loop.add_reader(self._descriptor, self._poked, self._descriptor)

    async def sleep(self, seconds: float) -> None:
        """Return at the next poke, at the slow poll, or when the time is over, whatever comes first."""
        moment = self._loop.time()
        polls = (moment - self._began) // SLOW_POLL_SECONDS + 1
        until = min(moment + seconds, self._began + polls * SLOW_POLL_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._woken.wait()

    def wake_all(self) -> None:
        """Wake every waiter."""
        self._woken.set()
        self._woken = asyncio.Event()

    def close(self) -> None:
        """Remove the FIFO, and wake every waiter."""
        self.wake_all()
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        with suppress(OSError):
            self._fifo.unlink()

    def _poked(self, descriptor: int) -> None:
        drain(descriptor)
        self.wake_all()


# -- Model calls of runs with budgets: only as many at a time as the rest of the money has room for.
#
# The cost of a call is known only afterwards. So a tree whose runs all call at once could use up its budget
# several times before any run noticed. Each run that calls holds the lock of a file, which a kill releases
# too. While others call, another call is admitted only if all of them have room at the mean price of a call
# so far; a lone call is always admitted. Nothing else holds a budget while runs work.


class ModelCalls:
    """The model calls of a run, by its worker, one at a time."""

    def __init__(self, store: RunStore, run: RunPaths) -> None:
        self._store = store
        self._run = run
        self._gate: RunPaths | None = None
        self._budgets: list[Budget] | None = None
        self._lock: int | None = None
        self._spent = Usage()
        self._extra = Decimal(0)

    @property
    def unbounded(self) -> bool:
        """Whether the calls are known to have no budget: then they need not `begin`."""
        return self._budgets == []

    def begin(self, spent: Usage, extra: Decimal = Decimal(0)) -> bool:
        """Begin a call, or return False if calls of other runs may need the rest of a budget. Blocks.

        `spent` is the usage of this run so far; a full disk may have kept some of it out of the journal.
        `extra` is the possible cost of the call besides its tokens, such as its web searches.

        Raises:
            RunRefused: `budget`, if the money of the run, or of a run above it, is spent.
            UnreadableMeta: of this run.
        """
        if self._budgets is None or self._gate is None:
            meta = self._store.read(self._run.run_id)
            is_billed = not self._store.read_request(meta.run_id).scripted
            self._budgets = budgets_of(self._store, meta, of_flows=False) if is_billed else []
            self._gate = self._store.paths.run(meta.root_run_id)
        self._spent, self._extra = spent, extra
        if not self._budgets:
            return True
        if spent.turns and (spent.cost_usd is None or "costUsd" in spent.at_least):
            raise RunRefused(
                "budget",
                "The API did not say how many tokens a call took, so no budget can be kept.",
                "Limit the run by `maxTurns` and `timeoutSeconds` instead of `budgetUsd`.",
            )
        try:
            with exclusive(self._gate.calls_lock):
                if not all(self._has_room(budget) for budget in self._budgets):
                    return False
                with storing(self._run.call_lock.path):
                    self._lock = locks.open_lock(self._run.call_lock)
                locks.lock(self._lock)  # no other run takes it: a probe holds it for a moment at most
                return True
        except LockTimeout:
            return False
        except StorageFailed:  # a disk that refuses locks is no reason to end a run whose money is not spent
            refuse_spent(exhausted(self._store, self._budgets))
            for budget in self._budgets:
                refuse_spent(used_up(budget, spent.cost_usd or Decimal(0)))
            return True

    def check(self, spent: Usage) -> None:
        """Look again, within a call, whether the money is spent. Blocks. Raises RunRefused: `budget`."""
        self._spent = spent
        for budget in self._budgets or ():
            self._has_room(budget)

    def end(self) -> None:
        """End the call, whose cost is in the journal by now."""
        if self._lock is not None:
            locks.give_back(self._lock)
            self._lock = None

    def _has_room(self, budget: Budget) -> bool:
        """Whether another call fits into a budget together with the calls under way.

        Raises:
            RunRefused: `budget`, if the money is spent.
        """
        try:
            first = self._store.read(budget.run_id)
        except SubagentError:
            return True  # an unreadable run bounds nothing: its end has ended this run, or is about to
        if first.status.is_terminal:
            return False  # its numbers of live runs are old by now; its end ends this run too
        calling, used = self._now(first)
        cost = used.cost_usd or Decimal(0)
        refuse_spent(used_up(budget, cost))
        if calling == 0:
            return True
        turns = used.turns or 0
        return turns > 0 and cost + (calling + 1) * cost / turns + self._extra <= budget.usd

    def _now(self, first: RunMeta) -> tuple[int, Usage]:
        """Return how many runs of a tree call a model, and their usage together.

        An ended run may still call for some seconds, and its numbers of the runs below are old.
        """
        calling, walked = 0, Usage()
        for meta in subtree(self._store, first):
            run = self._store.paths.run(meta.run_id)
            calling += locks.is_held(run.call_lock)  # looked at first: its cost is recorded before it is over
            used = meta.usage.merged(recorded_usage(run))
            walked = walked.plus(used.merged(self._spent) if meta.run_id == self._run.run_id else used)
        return calling, walked.merged(tree_usage(self._store, first))


# -- Working time, which `timeoutSeconds` bounds. Waiting for a parent or for a busy API does not count.


class WorkClock:
    """Runs while at least one stretch of work is open. Stretches overlap; a wait suspends its stretch.

    A program of code mode is one stretch that may wait for many runs at once: then the count is below zero.
    """

    def __init__(
        self,
        on_idle: Callable[[], None],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_idle = on_idle
        self._on_change = on_change
        self._clock = clock
        self._waits: list[float] = []
        self._open = 0
        self._elapsed = 0.0
        self._since = 0.0

    @property
    def elapsed(self) -> float:
        """Working time so far, in seconds."""
        return self._elapsed + (self._clock() - self._since if self.running else 0.0)

    @property
    def running(self) -> bool:
        """Whether working time passes now."""
        return self._open > 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a stretch as work."""
        self._change(+1)
        try:
            yield
        finally:
            self._change(-1)

    @property
    def waits_until(self) -> float | None:
        """When the last of the waits that are open is over, on the clock; None if there is none."""
        return max(self._waits, default=None)

    def waiting(self, until: float = math.inf) -> AbstractContextManager[None]:
        """Suspend the stretch that this is inside; `on_idle` is called if no other stretch is open."""
        return self._suspended(until, self._on_idle)

    def pausing(self, until: float) -> AbstractContextManager[None]:
        """Do as `waiting`, with `on_change` instead of `on_idle`: the work continues by itself soon."""
        return self._suspended(until, self._on_change)

    @contextmanager
    def _suspended(self, until: float, on_suspended: Callable[[], None]) -> Iterator[None]:
        self._waits.append(until)
        self._change(-1)
        if not self.running:
            on_suspended()
        try:
            yield
        finally:
            self._waits.remove(until)
            self._change(+1)

    def _change(self, by: int) -> None:
        was_running = self.running
        self._open += by
        if self.running and not was_running:
            self._since = self._clock()
            self._on_change()
        elif was_running and not self.running:
            self._elapsed += self._clock() - self._since
