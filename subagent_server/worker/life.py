"""The life of one worker: begin, work under watch, and end in exactly one outcome."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import RunRefused, SubagentError
from subagent_server.domain.executed_files import is_lifted
from subagent_server.domain.records import Failure, RunMeta, Usage
from subagent_server.runners.outcome import Outcome
from subagent_server.toolkit.run_context import RunOver
from subagent_server.toolkit.telemetry import Tracer
from subagent_server.worker.delegate import Delegate
from subagent_server.worker.messages_runner import Assembled, Surroundings, assemble
from subagent_server.worker.own_run import OwnRun
from subagent_server.worker.run_context import SLOW_POLL_SECONDS, Door
from subagent_server.worker.subagent_listeners import others_heard
from subagent_server.worker.tracing import Tracing, end_span, open_tracing

T = TypeVar("T")

MODEL_GRACE_SECONDS = 8.0
"""How long a stop waits for a model call that is under way; the shim kills after 10."""
CLOSE_SECONDS = 3.0


@dataclass
class Life:
    """Everything of one worker."""

    own: OwnRun
    agent: AgentDefinition
    environment: dict[str, str]
    terminated: bool = False

    async def live(self) -> None:
        """Work, write how it ended, and clean up.

        Raises:
            SubagentError: not even the failure could be written; the shim tries once more.
        """
        self.own.open()
        door = Door(self.own, self.agent.limits)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
        assembled: list[Assembled] = []
        tracing = self._tracing(door)
        try:
            with tracing.run(self.environment) as span:
                async with others_heard(
                    self.own, door.record, self.environment, leads=bool(self.agent.agents)
                ):
                    outcome = await self._outcome(door, assembled, tracing.tracer)
                    with suppress(SubagentError):  # whatever ends the run, answers that were taken come first
                        await door.settled()
                meta = self._end(outcome, assembled[0].loop.usage if assembled else None)
                end_span(span, meta)
            if undelivered := await tracing.deliver():
                door.record("warning", message=undelivered)
            self.own.conclude(meta)
        finally:
            for each in assembled:
                await _close(each)
            self.own.close()

    def _tracing(self, door: Door) -> Tracing:
        def warn(message: str) -> None:
            door.record("warning", message=message)

        return open_tracing(self.own.run_id, self.agent, self.environment, self.own.masker, warn)

    def _terminate(self) -> None:
        self.terminated = True
        self.own.wake()

    async def _outcome(self, door: Door, assembled: list[Assembled], tracer: Tracer) -> Outcome | None:
        """Return how the agent ended, or None where somebody else ended the run. The one broad catch."""
        try:
            assembled.append(await self._watched(door, self._assembled(door, tracer)))
            outcome = await self._watched(door, assembled[0].work())
            await door.settled()
            return outcome
        except RunOver:
            return None
        except RunRefused as refusal:
            failure = Failure(code=refusal.failure_code, message=refusal.sentence, hint=refusal.hint)
        except SubagentError as error:
            failure = Failure(code=_code_of(error), message=error.sentence)
        except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is, the run ends with it
            self.own.tell_fault()
            failure = Failure(
                code="agent_error",
                message=f"The worker met a fault of its own: {type(error).__name__}: {error}"[:500],
                hint=f"{self.own.printed} in its directory holds the details; please report it.",
            )
        return assembled[0].loop.cut_short(failure) if assembled else Outcome("", failure=failure)

    async def _assembled(self, door: Door, tracer: Tracer) -> Assembled:
        delegate = self._delegate(door) if self.agent.agents else None
        around = Surroundings(self.environment, self._read_only(), delegate, tracer)
        with door.working():
            return await assemble(self.agent, self.own, door, around)

    def _delegate(self, door: Door) -> Delegate:
        service = self.own.lead(self.environment)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, service.launcher.reap)
        return Delegate(service, self.own.run_id, door.clock)

    def _read_only(self) -> list[Path]:
        """The runs, and the agents unless their author says so: no tool of a run may change these."""
        agents = [Path(n) for n in self.environment.get("SUBAGENT_AGENTS", "").split(os.pathsep) if n]
        return [self.own.root, *(path for path in agents if not self._may_write(path))]

    def _may_write(self, path: Path) -> bool:
        """Whether the author of the agent names this directory, below the run's own, in `sandboxWrite`."""
        here, real = Path.cwd(), Path(os.path.realpath(path))
        return real.is_relative_to(here) and is_lifted(real.relative_to(here).parts, self.agent.sandbox_write)

    async def _watched(self, door: Door, doing: Coroutine[Any, Any, T]) -> T:
        """Let something be done until it ends, the run is ended, or its time is over."""
        work = asyncio.create_task(doing)
        try:
            reason = await self._reason_to_end(door, work)
            if reason is not None and door.model_busy:
                await asyncio.wait([work], timeout=MODEL_GRACE_SECONDS)
        finally:
            if not work.done():
                work.cancel()
            await asyncio.wait([work], timeout=CLOSE_SECONDS)
        if reason is not None:
            if work.done() and not work.cancelled():
                work.exception()  # it has met the same end by itself: nobody else will ask
            raise reason()
        return work.result()

    async def _reason_to_end(self, door: Door, work: "asyncio.Task[T]") -> Callable[[], Exception] | None:
        """Watch beside the work; return why it has to end, or None when it has ended by itself."""
        limit = self.agent.limits.timeout_seconds
        work.add_done_callback(lambda _: self.own.wake())
        while not work.done():
            if self.own.has_dead_parent:
                await asyncio.to_thread(self.own.heed_parent)
            if door.is_over:
                return RunOver
            if self.terminated:
                return _told_to_end
            remaining = limit - door.clock.elapsed
            if remaining <= 0:
                return lambda: _out_of_time(limit)
            patience = min(SLOW_POLL_SECONDS, remaining) if door.clock.running else SLOW_POLL_SECONDS
            await self.own.sleep(patience)
        return None

    # -- the end

    def _end(self, outcome: Outcome | None, usage: Usage | None) -> RunMeta:
        """Write result and status; where somebody else was first, only what the run has cost."""
        if outcome is None:
            meta = self.own.meta()
        else:
            meta = self.own.end(outcome.to_result(), _summary(outcome), usage)
        if usage is not None and meta.usage != meta.usage.merged(usage):
            meta = self.own.settle(usage)
        self.own.end_children()
        return meta


async def _close(assembled: Assembled) -> None:
    """Let go of tools and connections, each with a bound: what stays behind the shim sweeps."""
    closing = [tool.aclose() for tool in assembled.loop.tools]
    closing += [assembled.servers.aclose()] if assembled.servers is not None else []
    tasks = [asyncio.ensure_future(each) for each in (*closing, assembled.loop.model.aclose())]
    _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
    for task in late:
        task.cancel()


def _summary(outcome: Outcome) -> str | None:
    """Return the first line of what the agent said, for lists."""
    if isinstance(outcome.output, dict) and isinstance(outcome.output.get("summary"), str):
        return str(outcome.output["summary"])[:300]
    line = outcome.text.strip().split("\n", 1)[0]
    return line[:300] or None


def _out_of_time(limit: float) -> RunRefused:
    return RunRefused(
        "timeout",
        f"The agent used all of its {limit:g} s of working time.",
        "Raise `timeoutSeconds` in the agent file, or give it a smaller task.",
    )


def _told_to_end() -> RunRefused:
    return RunRefused("crashed", "The worker was told to end by SIGTERM before it had a result.")


def _code_of(error: SubagentError) -> str:
    return "storage" if error.code in ("storage", "lock_timeout", "unreadable_meta") else "config"
