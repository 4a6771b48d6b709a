"""The built-in loop with a scripted run around it: real calls over HTTP, no process of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from subagent_server.extensions.simulator import Simulator
from subagent_server.loop.loop import Loop
from subagent_server.loop.model import Model, ModelSettings, UsageMeter
from subagent_server.loop.runner import Outcome
from subagent_server.loop.web import WebTools
from subagent_server.run.errors import RunRefused
from subagent_server.run.files import Directory
from subagent_server.run.records import Failure, Usage
from subagent_server.toolbox.basic import FinalAnswer
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.run_context import Pace, Reply, RunOver
from subagent_server.toolbox.tool import Tool, ToolResult
from tests.helpers.pace import Alone
from tests.helpers.turns import Turn

BOUND = 100.0
"""How long a conversation may take, in seconds, on a machine that has much else to do."""


class ScriptedRun:
    """Implements `RunContext`: keeps its events and messages, and pauses without waiting."""

    run_id = "20261122-093015-417-k3f9qz"

    def __init__(self) -> None:
        self.journal: list[tuple[str, dict[str, Any]]] = []
        self.transcript: list[dict[str, Any]] = []
        self.pauses: list[float] = []
        self.spared: list[float] = []
        """Those of the pauses that are no working time."""
        self.retry_reason: str | None = None
        self.sent = 0
        self.budget_usd: Decimal | None = None
        self.over_at: Callable[[], bool] = lambda: False
        self.unasked: Exception | None = None
        """Why no question can be asked."""
        self.asked: list[tuple[str, list[str] | None]] = []
        self.answer: Callable[[str], str | None] = lambda _: "blue"

    def record(self, kind: str, **facts: Any) -> None:
        self.journal.append((kind, facts))

    def recorded(self, kind: str) -> list[dict[str, Any]]:
        """Return the facts of the events of one type."""
        return [facts for name, facts in self.journal if name == kind]

    def remember(self, message: dict[str, Any], stop_reason: str | None = None) -> None:
        self.transcript.append(message)

    def adopt(self, messages: list[dict[str, Any]]) -> None:
        self.transcript = list(messages)

    def checkpoint(self) -> None:
        if self.over_at():
            raise RunOver

    @contextmanager
    def working(self) -> Iterator[None]:
        yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        yield

    @property
    def waits_for_others(self) -> bool:
        return False

    def session_opened(self, session_id: str) -> None:
        self.session = session_id

    @asynccontextmanager
    async def model_call(self, spent: Usage, besides: Decimal = Decimal(0)) -> AsyncIterator[None]:
        await self.check_budget(spent)
        yield

    async def check_budget(self, spent: Usage) -> None:
        if self.budget_usd is not None and (spent.cost_usd or 0) >= self.budget_usd:
            raise RunRefused("budget", f"The budget of {self.budget_usd} is spent.")

    def request_sent(self) -> None:
        self.sent += 1

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def spare(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.spared.append(seconds)

    async def ask(self, question: str, options: list[str] | None) -> Reply:
        if self.unasked is not None:
            raise self.unasked
        self.asked.append((question, options))
        return Reply("q1", self.answer(question))


class ScriptedTool:
    """A tool that the test gives its work."""

    def __init__(
        self, name: str, work: Callable[[dict[str, Any]], Awaitable[str]], *, sequential: bool = False
    ) -> None:
        self.name = name
        self.sequential = sequential
        self._work = work

    def definition(self) -> dict[str, Any]:
        return {"name": self.name, "description": "A tool.", "input_schema": {"type": "object"}}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult.of_text(await self._work(arguments))

    async def aclose(self) -> None:
        """Nothing is held."""


async def echo(arguments: dict[str, Any]) -> str:
    """Return the arguments in words."""
    return f"got {arguments}"


class Played:
    """One conversation that was carried to its end."""

    def __init__(
        self,
        *turns: Turn,
        tools: Sequence[Tool] = (),
        schema: dict[str, Any] | None = None,
        max_turns: int = 10,
        base_url: str | None = None,
        script: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        meter: UsageMeter | None = None,
        outputs: Path | None = None,
        pace: Pace | None = None,
        budget_usd: Decimal | None = None,
        web: WebTools | None = None,
    ) -> None:
        self.pace = pace or Alone()
        self.web = web or WebTools()
        self.run = ScriptedRun()
        self.run.budget_usd = budget_usd
        self.settings = settings or {}
        self.meter = meter or UsageMeter()
        self.outputs = KeptOutputs(None if outputs is None else Directory(outputs))
        self.final = FinalAnswer(schema) if schema is not None else None
        self.tools = [*tools, *([self.final] if self.final else [])]
        self.max_turns = max_turns
        with Simulator({"turns": list(turns), **(script or {})}) as simulator:
            self.outcome = asyncio.run(self._carried_on(base_url or simulator.base_url))
            self.requests = simulator.requests

    @property
    def bodies(self) -> list[Any]:
        """What the model was sent, call by call."""
        return [request.body for request in self.requests]

    @property
    def failure(self) -> Failure:
        """Why it failed."""
        assert self.outcome.failure is not None, self.outcome.text
        return self.outcome.failure

    async def _carried_on(self, base_url: str) -> Outcome:
        facts = {"model": "claude-test", "api_key": "key", "base_url": base_url} | self.settings
        model = Model(ModelSettings(**facts), self.pace, self.run.request_sent)
        system = [{"type": "text", "text": "You are tested."}]
        self.loop = Loop(
            self.run, model, system, self.tools, self.max_turns, self.final, self.meter, self.outputs
        )
        self.loop.web = self.web
        first = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
        try:
            async with asyncio.timeout(BOUND):
                return await self.loop.work([first])
        except RunRefused as refusal:
            failure = Failure(code=refusal.failure_code, message=refusal.sentence, hint=refusal.hint)
            return self.loop.cut_short(failure)
        finally:
            await model.aclose()
