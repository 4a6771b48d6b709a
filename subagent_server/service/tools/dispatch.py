"""The verbs as tool calls: check the arguments, call one verb, give what it says as JSON.

Both doors for models use it: the MCP server, and the loop of an agent that may start others.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sized
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument
from subagent_server.domain.states import MessageStatus, Status
from subagent_server.service.access import Caller
from subagent_server.service.ask import ask_as_child
from subagent_server.service.check_status import view_for
from subagent_server.service.context import Service
from subagent_server.service.continue_run import ContinueOrder, continue_run
from subagent_server.service.get_logs import get_logs
from subagent_server.service.list_runs import list_runs
from subagent_server.service.nesting import agents_of
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed, observe
from subagent_server.service.reply import reply
from subagent_server.service.start import StartOrder, start
from subagent_server.service.stop import stop
from subagent_server.service.tools import table
from subagent_server.service.trusting import Judge, NotTrusted
from subagent_server.service.update_status import update_status
from subagent_server.service.views import RunView, run_view
from subagent_server.service.wait_for_runs import Attention, Unfinished, Watchlist
from subagent_server.service.waiting import Changes, Wait, wait_until

Arguments = dict[str, Any]
Answer = dict[str, Any]
T = TypeVar("T")


@dataclass
class Call:
    """One tool call: its arguments, how long it may wait, in seconds, and whom to tell that it waits.

    `beside` is entered with the ids of the runs that it waits for, and left when the wait is over. `trace` is
    the trace context that the call came with.
    """

    arguments: Arguments
    longest_wait: float
    progress: Callable[[float], Awaitable[None]] | None = None
    beside: Callable[[Collection[str]], AbstractAsyncContextManager[None]] | None = None
    trace: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument."""
        return self.arguments.get(name, default)

    def wait_seconds(self, default: float = 0) -> float:
        """Return how long to wait, within what the client bears."""
        return min(float(self.get("waitSeconds", default)), self.longest_wait)

    def wait_note(self, default: float = 0) -> str | None:
        """Return what to say of a wait that was cut."""
        if float(self.get("waitSeconds", default)) <= self.longest_wait:
            return None
        return (
            f"waitSeconds was cut to {self.longest_wait:g}: your client gives up on longer calls; call again."
        )


class Desk:
    """Calls the tools for one caller. `names` are the generic tools that are open to it."""

    def __init__(self, service: Service, changes: Changes, caller: Caller, names: tuple[str, ...]) -> None:
        self.names = names
        self.busy = 0
        """How many calls are being worked on, waits not counted: an end of input lets them finish."""
        self._service = service
        self._changes = changes
        self._caller = caller
        self._unfinished = Unfinished()
        self._verbs: dict[str, Callable[[Call], Awaitable[Answer]]] = {
            "check_status": self._check_status,
            "wait_for_runs": self._wait_for_runs,
            "list_runs": self._list_runs,
            "get_logs": self._get_logs,
            "reply_subagent": self._reply,
            "stop_run": self._stop,
            "continue_run": self._continue,
            "ask_parent": self._ask,
            "update_status": self._update_status,
        }

    def agents(self) -> list[AgentDefinition]:
        """Return the agents that the caller may start, by name."""
        allowed = agents_of(self._service, self._caller)
        return [agent for agent in self._service.shelf.agents() if agent.name in allowed]

    def shown(self) -> list[AgentDefinition]:
        """Return the agents that the caller may start, as models may see them.

        Of one that is not trusted nothing but the name is told: a description is the text of a stranger, and
        a schema may come from any file that this user can read.
        """
        judge = Judge(self._service)
        return [_without_words(agent, judge.doubt(agent)) for agent in self.agents()]

    async def call(self, name: str, call: Call) -> Answer:
        """Call a tool and return its answer.

        Raises:
            SubagentError: the sentence says what is wrong and what to do.
        """
        self.busy += 1
        try:
            if name in self.names:
                _check(name, call.arguments, table.INPUTS[name])
                return await self._verbs[name](call)
            agent = await asyncio.to_thread(self._agent, name)
            _check(name, call.arguments, table.RUN_AGENT_CHECKED)
            return await self._run(agent, call)
        finally:
            self.busy -= 1

    def _agent(self, tool: str) -> AgentDefinition:
        agents = self.agents()
        for agent in agents:
            if agent.tool_name == tool:
                return agent
        names = ", ".join([*(agent.tool_name for agent in agents), *self.names])
        raise BadArgument(f"There is no tool {tool[:80]!r}: the tools here are {names}.")

    # -- the verbs

    async def _run(self, agent: AgentDefinition, call: Call) -> Answer:
        order = StartOrder(
            agent=agent.name,
            prompt=call.arguments["prompt"],
            inputs=call.get("inputs", []),
            cwd=call.get("cwd"),
            label=call.get("label"),
            trace=call.trace,
        )
        meta = await asyncio.to_thread(start, self._service, order, self._caller)
        self._unfinished.shown(meta.run_id, ended=False)
        return (await self._after_start(meta.run_id, call)).to_wire()

    async def _check_status(self, call: Call) -> Answer:
        asked = call.get("messageId")
        observed = await asyncio.to_thread(open_run, self._service, call.arguments["runId"], self._caller)
        if asked is None:
            return (await self._after_wait(observed, call)).to_wire()
        return (await self._after_answer(observed, asked, call, 0)).to_wire()

    async def _wait_for_runs(self, call: Call) -> Answer:
        watch = await asyncio.to_thread(
            Watchlist,
            self._service,
            call.get("runIds"),
            call.get("cursor"),
            self._caller,
            self._unfinished.run_ids,
        )
        wait = Wait(call.wait_seconds(45), frozenset(watch.run_ids), call.progress)
        wait_for = call.get("waitFor", "any")
        async with _beside(call, watch.run_ids):
            found: Attention | None = await self._waited(lambda: watch.look(wait_for), wait)
        attention = found if found is not None else await asyncio.to_thread(watch.now)
        for run_id in attention.working:
            self._unfinished.shown(run_id, ended=False)
        for view in attention.runs:
            self._unfinished.shown(view.run_id, ended=view.status.is_terminal)
        wire = attention.model_copy(update={"wait_note": call.wait_note(45)}).model_dump(
            mode="json", exclude_none=True, exclude={"runs"}
        )
        return {"runs": [view.to_wire() for view in attention.runs], **wire}

    async def _list_runs(self, call: Call) -> Answer:
        def listed() -> Answer:
            status = Status(call.arguments["status"]) if "status" in call.arguments else None
            rows = list_runs(
                self._service,
                status=status,
                agent=call.get("agent"),
                limit=call.get("limit", 20),
                caller=self._caller,
            )
            return {"runs": [row.to_wire() for row in rows]}

        return await asyncio.to_thread(listed)

    async def _get_logs(self, call: Call) -> Answer:
        page = await asyncio.to_thread(
            get_logs,
            self._service,
            call.arguments["runId"],
            call.get("stream", "log"),
            call.get("cursor"),
            call.get("lines", 50),
            self._caller,
        )
        return page.model_dump(mode="json", exclude_none=True)

    async def _reply(self, call: Call) -> Answer:
        run_id = call.arguments["runId"]

        def replied() -> Observed:
            return reply(
                self._service, run_id, call.arguments["answer"], call.get("messageId"), caller=self._caller
            )

        view = await self._after_wait(await asyncio.to_thread(replied), call)
        return {"success": True, "message": "The answer is recorded.", "updatedMetadata": view.to_wire()}

    async def _stop(self, call: Call) -> Answer:
        def stopped() -> Answer:
            observed = stop(self._service, call.arguments["runId"], call.get("reason"), self._caller)
            self._unfinished.shown(observed.meta.run_id, ended=observed.meta.status.is_terminal)
            return run_view(self._service.store, observed).to_wire()

        return await asyncio.to_thread(stopped)

    async def _continue(self, call: Call) -> Answer:
        order = ContinueOrder(
            call.arguments["runId"],
            call.get("prompt"),
            call.get("inputs", []),
            stored_agent=call.get("storedAgent", False),
            trace=call.trace,
        )
        meta = await asyncio.to_thread(continue_run, self._service, order, self._caller)
        self._unfinished.shown(meta.run_id, ended=False)
        return (await self._after_start(meta.run_id, call)).to_wire()

    async def _ask(self, call: Call) -> Answer:
        run_id = self._own(call)
        observed = await asyncio.to_thread(
            ask_as_child, self._service, run_id, call.arguments["question"], call.get("options"), self._caller
        )
        message_id = observed.meta.messages[-1].message_id
        view = await self._after_answer(observed, message_id, call, 45)
        asked = next((m for m in view.messages or [] if m.message_id == message_id), None)
        answer: Answer = {"messageId": message_id, "instructions": view.instructions}
        if asked is not None and asked.answer is not None:
            answer["answer"] = asked.answer
        return answer

    async def _update_status(self, call: Call) -> Answer:
        run_id = self._own(call)

        def updated() -> Answer:
            observed = update_status(
                self._service,
                run_id,
                call.arguments["status"],
                call.get("summary"),
                call.get("payload"),
                self._caller,
            )
            return run_view(self._service.store, observed).to_wire()

        return await asyncio.to_thread(updated)

    def _own(self, call: Call) -> str:
        run_id = call.get("runId") or self._caller.run_id
        if run_id is None:
            raise BadArgument(
                "runId is missing: give the id of your own run, as your first message names it."
            )
        return str(run_id)

    # -- waiting

    async def _waited(self, check: Callable[[], T | None], wait: Wait) -> T | None:
        """Wait without counting as busy: an end of input ends the wait at once."""
        self.busy -= 1
        try:
            return await wait_until(self._changes, check, wait)
        finally:
            self.busy += 1

    async def _after_start(self, run_id: str, call: Call) -> RunView:
        observed = await asyncio.to_thread(open_run, self._service, run_id, self._caller)
        return await self._after_wait(observed, call)

    async def _after_wait(self, observed: Observed, call: Call) -> RunView:
        """Return the view of a run when it has ended, asks, or the wait is over."""
        run_id, seconds = observed.meta.run_id, call.wait_seconds()
        if seconds > 0:
            async with _beside(call, [run_id]):
                observed = await self._when(observed, _is_settled, Wait(seconds, None, call.progress))
        view = await asyncio.to_thread(view_for, self._service, observed, None, self._caller)
        self._unfinished.shown(run_id, ended=view.status.is_terminal)
        return _noted(view, call.wait_note())

    async def _after_answer(self, observed: Observed, message_id: str, call: Call, default: float) -> RunView:
        """Return what a child sees of its question: its answer, its expiry, or that it is still open."""

        def is_closed(run: Observed) -> bool:
            message = run.meta.message(message_id)
            pending = message is not None and message.message_status is MessageStatus.PENDING
            return not pending or run.meta.status.is_terminal

        wait = Wait(call.wait_seconds(default), None, call.progress)
        observed = await self._when(observed, is_closed, wait)
        view = await asyncio.to_thread(view_for, self._service, observed, message_id, self._caller)
        return _noted(view, call.wait_note(default))

    async def _when(self, observed: Observed, is_enough: Callable[[Observed], bool], wait: Wait) -> Observed:
        """Return a run as soon as it is as wanted, or as it is when the time is over."""
        if wait.seconds <= 0 or is_enough(observed):
            return observed
        run_id, latest = observed.meta.run_id, observed

        def look() -> Observed | None:
            nonlocal latest
            latest = observe(self._service.store, run_id)
            return latest if is_enough(latest) else None

        await self._waited(look, replace(wait, run_ids=frozenset({run_id})))
        return latest


def _without_words(agent: AgentDefinition, doubt: NotTrusted | None) -> AgentDefinition:
    if doubt is None:
        return agent
    description = f"A call is refused, because {doubt.remark}"
    return agent.model_copy(update={"description": description, "output_schema": None})


def _is_settled(run: Observed) -> bool:
    """Whether a wait for a run is over for its parent: it has ended, or a question is open."""
    return run.meta.status.is_terminal or run.meta.pending_questions > 0


def _beside(call: Call, run_ids: Collection[str]) -> AbstractAsyncContextManager[None]:
    return nullcontext() if call.beside is None else call.beside(run_ids)


def _noted(view: RunView, note: str | None) -> RunView:
    return view if note is None else view.model_copy(update={"wait_note": note})


def _check(tool: str, arguments: Arguments, schema: table.Schema) -> None:
    """Refuse arguments that do not fit, naming the one to mend.

    Raises:
        BadArgument.
    """
    for name, value in arguments.items():
        if isinstance(value, float) and math.isnan(value):  # it passes every bound of a schema
            raise BadArgument(f"{tool}: {name} is no number: mend the arguments, and call again.")
    error = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if error is not None:
        raise BadArgument(f"{tool}: {_told(error)}, and call again.")


_SIZES = {
    "maxLength": ("characters", "shorten it, or put the material into a file that it names"),
    "maxItems": ("entries", "leave some out"),
}
"""What is told of an excess; the validator would quote the whole of it."""


def _told(error: ValidationError) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator in _SIZES:
        unit, instead = _SIZES[str(error.validator)]
        size = len(cast(Sized, error.instance))
        return f"{where} has {size:,} of at most {error.validator_value:,} {unit}: {instead}"
    message = error.message if len(error.message) <= 300 else error.message[:300] + "…"
    return f"{where}: {message}: mend the arguments" if where else f"{message}: mend the arguments"
