"""The runner of every program: its process, the watch over it, and the check of its result."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import Failure, Usage
from subagent_server.host.schema_check import misfit
from subagent_server.runners.outcome import Outcome
from subagent_server.runners.programs.dialect import Dialect
from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.toolkit.agent_process import AgentProcess
from subagent_server.toolkit.run_context import RunContext

StartProcess = Callable[[], Awaitable[AgentProcess]]
"""Starts the program. Raises RunRefused with `config` if it cannot be started."""
Leave = Callable[[], Awaitable[None]]
"""Gives back what the start has opened around the program, once that has ended."""

_LOOK_SECONDS = 2.0
_INTERRUPT_SECONDS = 3.0
"""How long an interrupted program may take to end its turn and to say what it has cost."""
_EXIT_SECONDS = 2.0
_GRACE_SECONDS = 2.0


class ProgramRunner:
    """Implements `runners.runner.Runner` with a program that speaks a dialect."""

    def __init__(
        self,
        run: RunContext,
        agent: AgentDefinition,
        dialect: Dialect,
        events: ProgramEvents,
        start: StartProcess,
        leave: Leave,
        watching: AbstractAsyncContextManager[object],
    ) -> None:
        """`watching` is entered before the program starts, and left when it has ended."""
        self._enter = watching
        self._watching = AsyncExitStack()
        self._run = run
        self._agent = agent
        self._dialect = dialect
        self._events = events
        self._start = start
        self._leave = leave
        self._process: AgentProcess | None = None
        self._conversation: asyncio.Task[Outcome] | None = None

    @property
    def usage(self) -> Usage:
        """What the run has used so far, as far as the program tells it."""
        return self._events.usage

    async def work(self) -> Outcome:
        """Start the program and let it work to its end. Raises as `Runner.work` does."""
        self._run.checkpoint()
        with self._run.working():
            await self._watching.enter_async_context(self._enter)
            self._process = await self._start()
            self._events.progress()
            self._conversation = asyncio.create_task(self._dialect.converse(self._process))
            outcome = await self._checked(await self._conversed(self._conversation))
        self._remember(outcome)
        return outcome

    async def _conversed(self, conversation: "asyncio.Task[Outcome]") -> Outcome:
        """Return the end of the conversation, which is bounded in silence."""
        while not conversation.done():
            await asyncio.wait([conversation], timeout=self._until_next_look)
            if self._events.idle_seconds < _LOOK_SECONDS or conversation.done():
                continue
            if self._run.waits_for_others:
                with self._run.waiting():
                    await self._others_done(conversation)
            elif self._events.idle_seconds >= self._agent.limits.idle_timeout_seconds:
                raise self._stuck()
        return conversation.result()

    @property
    def _until_next_look(self) -> float:
        left = self._agent.limits.idle_timeout_seconds - self._events.idle_seconds
        return min(_LOOK_SECONDS, max(0.05, left))

    async def _others_done(self, conversation: "asyncio.Task[Outcome]") -> None:
        """Return when nothing is waited for, or the program gets on beside it."""
        while self._run.waits_for_others and not conversation.done():
            silent = self._events.idle_seconds
            await asyncio.wait([conversation], timeout=_LOOK_SECONDS)
            if self._events.idle_seconds < silent:
                return
        self._events.progress()

    def _stuck(self) -> RunRefused:
        said = self._events.last_words
        words = f" Its last words: {said}" if said else " It had said nothing."
        return RunRefused(
            "timeout",
            f"The program gave no sign of work for {self._agent.limits.idle_timeout_seconds:g} s.{words}",
            "It may wait for a terminal or a login: start it once by hand. Or raise `idleTimeoutSeconds`.",
        )

    async def _checked(self, outcome: Outcome) -> Outcome:
        """Return an outcome whose structured output fits the schema of the agent."""
        if outcome.failure is not None or self._agent.output_schema is None:
            return outcome
        if not outcome.has_output:
            outcome = _with_output(outcome)
        problem = "is not JSON"
        if outcome.has_output:
            found = await misfit(self._agent.output_schema, outcome.output)
            if found is None:
                return outcome
            problem = found
        failure = Failure(
            code="invalid_output",
            message=f"The program ended without the output that its agent promises: its result {problem}.",
            hint="Its text is kept in result.json; tell it in its prompt which form the result has.",
        )
        return replace(outcome, output=None, has_output=False, failure=failure)

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends: its work so far is paid for, and kept."""
        outcome = Outcome(self._events.text, failure=failure)
        self._remember(outcome)
        return outcome

    def _remember(self, outcome: Outcome) -> None:
        """Keep the end of the conversation, for a run that carries it on without the program's own record."""
        if outcome.text.strip():
            text = {"type": "text", "text": outcome.text}
            self._run.remember({"role": "assistant", "content": [text]})

    async def rest(self) -> None:
        """End the program: interrupt it, listen to its last words, then end its whole tree."""
        async with self._watching:
            if self._process is not None:
                await self._end(self._process)

    async def _end(self, process: AgentProcess) -> None:
        conversation = self._conversation
        if conversation is not None and not conversation.done():
            self._dialect.interrupt(process)
            await asyncio.wait([conversation], timeout=_INTERRUPT_SECONDS)
            await process.end(0, _GRACE_SECONDS)
            await asyncio.wait([conversation], timeout=_EXIT_SECONDS)
        else:
            await process.end(_EXIT_SECONDS, _GRACE_SECONDS)

    async def aclose(self) -> None:
        """Close the pipes, and give the conversation up if it still goes on."""
        if self._conversation is not None:
            self._conversation.cancel()
            with suppress(asyncio.CancelledError, Exception):  # how the run ended is known already
                await self._conversation
        try:
            if self._process is not None:
                await self._process.aclose()
        finally:
            await self._leave()


def _with_output(outcome: Outcome) -> Outcome:
    """Return an outcome with the JSON of its text: all of it, a fenced block in it, or its last line."""
    text = outcome.text.strip()
    fenced = text.rpartition("```json\n")[2].partition("```")[0]
    for candidate in (text, fenced, text.rpartition("\n")[2]):
        with suppress(ValueError, RecursionError):
            return replace(outcome, output=json.loads(candidate), has_output=True)
    return outcome
