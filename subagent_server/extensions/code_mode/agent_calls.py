"""The agents that a program calls: each call is an ordinary run, and what is paid is never paid again.

The record of a call is the directory of its run, whose request has the identity of the call. A program that
makes the same call again, in the same run or in one that continues it, gets the result on record.
"""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from subagent_server.extensions.code_mode.flow_record import FlowRecord
from subagent_server.extensions.code_mode.identity import (
    Fate,
    Identities,
    NoIdentity,
    call_digest,
    digest,
    fate_of,
)
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, RunRefused, SubagentError, choices
from subagent_server.run.files import Directory
from subagent_server.run.journal import recorded_usage
from subagent_server.run.processes import now
from subagent_server.run.records import FlowOptions, Message, RunMeta
from subagent_server.run.secrets import Masker
from subagent_server.run.states import Status, timestamp
from subagent_server.toolbox.run_context import RunContext
from subagent_server.verbs.access import run_as_caller
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.inputs import check_inputs, cwd_of_agent, cwd_of_child, directories_of
from subagent_server.verbs.merge_run import merge_run
from subagent_server.verbs.questions import reply
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.run_worktree import base_of_worktree
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import StartOrder, start, with_arguments
from subagent_server.verbs.tree_limits import BudgetSpent, TreeFull, agents_of
from subagent_server.verbs.views import AS_TOOLS, run_view
from subagent_server.verbs.wait_for_runs import Changes, Wait, wait_until

Reply = dict[str, Any]
T = TypeVar("T")
WARM_SECONDS = 5.0
"""The longest wait of equal prefixes for the first, which fills the prompt cache of the API."""
CACHE_SECONDS = 300.0
"""How long the API keeps a prompt that nobody uses."""
_LOOK_SECONDS = 0.2
_LONGEST_WAIT = 86_400.0
_MOST_PHASE = 200
_UNKNOWN_TOOL = "It is not known what this call did, because the run ended meanwhile; it was not repeated."


class _Given(BaseModel):
    """A call as a program describes it. It is data: the program may write anything."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    agent: str
    prompt: str = ""
    arguments: dict[str, Any] | None = None
    inputs: list[str] = Field(default_factory=list)
    label: str | None = None
    cwd: str | None = None
    key: str | None = None
    fresh: bool = False


@dataclass
class _Planned:
    """A call with its identity; `run_id` is its run when that is known."""

    given: _Given
    agent: AgentDefinition
    identity: str
    base: str | None
    phase: str | None
    run_id: str | None = None
    shown: set[str] = field(default_factory=set)


WOULD_BE_NEW: Reply = {"error": "This call would be new.", "failed": "dry_run", "view": {}}


class DryRun(Exception):
    """A call that would start something in a dry run."""


class AgentCalls:
    """Answers what one program asks about agents."""

    def __init__(
        self,
        service: Service,
        run: RunContext,
        record: Directory,
        masker: Masker,
    ) -> None:
        """Blocking: it reads what is on record."""
        self._service = service
        self._store = service.store
        self._run = run
        self._caller = run_as_caller(self._store, run.run_id)
        request = self._store.read_request(run.run_id)
        self.is_flow = request.agent.get("runner") == "flow"
        self.options = request.flow or FlowOptions()
        self.agents = agents_of(service, run.run_id)
        self._chain = [*sorted(self._caller.carries_on), run.run_id]
        before = [self._store.paths.run(each) for each in self._chain if self.is_flow]
        self.record = FlowRecord(record, masker, before)
        self._known = self._runs_on_record()
        self._calls: list[_Planned] = []
        self._identities = Identities()
        self._phase: str | None = None
        self._changes = Changes(self._store)
        self._ended = asyncio.Event()
        self._warm: dict[str, tuple[asyncio.Event, float]] = {}
        self._asking = asyncio.Lock()
        self._planning = asyncio.Lock()
        self._starting: dict[str, asyncio.Lock] = {}
        self._forwarding: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[..., Awaitable[Any]]] = {
            "plan": self._plan,
            "start": self._start,
            "result": self._result,
            "answer": self._answer,
            "status": self._status,
            "stop": self._stop,
            "merge": self._merge,
            "ask": self._ask,
            "log": self._log,
            "phase": self._set_phase,
            "now": self._now,
            "random": self._random,
        }

    def table(self) -> list[tuple[str, list[str] | None]]:
        """Return the names of the agents as functions, with the parameters of flows. Blocking."""
        found: list[tuple[str, list[str] | None]] = []
        for agent in self._service.registry.agents():
            if agent.name in self.agents:
                schema: Any = agent.input_schema
                parameters = list(schema["properties"]) if isinstance(schema, dict) else None
                found.append((agent.tool_name.removeprefix("run_"), parameters))
        return found

    async def answer(self, function: str, arguments: dict[str, Any]) -> Reply:
        """Answer one record of the program.

        Raises:
            RunOver, RunRefused: the run ends.
        """
        self._run.checkpoint()
        try:
            if (handler := self._handlers.get(function)) is None:
                return {"error": f"There is no function {function[:80]!r} here."}
            found = await handler(**arguments)
        except _Failed as failed:
            return failed.reply
        except DryRun:
            return WOULD_BE_NEW
        except BudgetSpent as error:
            return {"error": error.sentence, "failed": "budget", "view": {}}
        except SubagentError as error:
            if isinstance(error, RunRefused):
                raise
            return {"error": error.sentence}
        except (NoIdentity, TypeError, ValidationError) as error:
            return {"error": f"{function}: {_first_words(error)}"}
        return {"value": found}

    async def aclose(self) -> None:
        """End what waits; the runs go on, until the run that has started them ends."""
        for task in self._forwarding:
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)
        self._changes.close()

    # -- a call: what it is, what becomes of it, how it ends

    async def _plan(self, **order: Any) -> int:
        given = _Given.model_validate(order)
        async with self._planning:  # equal calls are numbered in their order
            self._calls.append(await asyncio.to_thread(self._planned, given))
            return len(self._calls) - 1

    def _planned(self, given: _Given) -> _Planned:
        names = {
            agent.tool_name.removeprefix("run_"): agent.name for agent in self._service.registry.agents()
        }
        name = names.get(given.agent, given.agent)
        if name not in self.agents:
            raise BadArgument(
                f"This run may not start {given.agent[:80]}: {choices('agents', name, sorted(self.agents))}."
            )
        agent = self._service.registry.get(name)
        order = with_arguments(agent, StartOrder(name, given.prompt, arguments=given.arguments))
        if not order.prompt.strip():
            raise BadArgument(f"agents.{given.agent}() needs a prompt: say what the agent shall do.")
        directories = directories_of(self._service, self._store.read(self._run.run_id))
        cwd = cwd_of_agent(self._service, agent) or cwd_of_child(self._service, given.cwd, directories)
        inputs = [file.data for file in check_inputs(given.inputs, cwd, directories)]
        base = None
        if agent.isolation == "worktree":
            # today's HEAD is the base of a new call alone: a call on record has the base that it had
            plain = digest("base", call_digest(agent, order.prompt, inputs, given.cwd, None))
            name_of_base = f"base {self._identities.of(plain, given.key)}"
            if name_of_base in self.record:
                base = self.record[name_of_base]
            else:
                base = base_of_worktree(self._service, agent, cwd)
                self.record.keep(name_of_base, base)
        hashed = call_digest(agent, order.prompt, inputs, given.cwd, base)
        return _Planned(given, agent, self._identities.of(hashed, given.key), base, self._phase)

    async def _start(self, call: int) -> str:
        planned = self._calls[call]
        async with self._starting.setdefault(planned.identity, asyncio.Lock()):  # of equal keys, one starts
            if planned.run_id is None:
                await self._found_or_started(planned)
        return planned.run_id or ""

    async def _found_or_started(self, planned: _Planned) -> None:
        """Give a call its run: the one on record, one that carries that on, or a new one."""
        fate, previous = await self._fate(planned)
        if fate in (Fate.RECORDED, Fate.RUNNING) and previous is not None:
            run_id = previous.run_id
        elif self.options.dry_run:
            self._journal(planned, fate, previous.run_id if previous is not None else None)
            raise DryRun
        else:
            await asyncio.to_thread(self.record.sync)
            is_first = await self._prefix(planned.agent)
            run_id = await self._started(planned, previous if fate is Fate.RESUMED else None)
            if is_first is not None:
                task = asyncio.create_task(self._fill(is_first, run_id))
                self._forwarding.add(task)
                task.add_done_callback(self._forwarding.discard)
        planned.run_id = self._known[planned.identity] = run_id
        self._journal(planned, fate, run_id)

    async def _fate(self, planned: _Planned) -> tuple[Fate, RunMeta | None]:
        """Return what becomes of a call, and the run that is on record for it."""
        known = self._known.get(planned.identity)
        fresh = planned.given.fresh or planned.agent.name in self.options.fresh
        if known is None or fresh:
            return Fate.NEW, None
        meta = await asyncio.to_thread(lambda: observe(self._store, known).meta)
        is_ours = meta.parent_run_id == self._run.run_id
        if not meta.status.is_terminal and not is_ours and not self.options.dry_run:
            # its parent has ended, and so shall it: what it has done so far is kept, and goes on
            await asyncio.to_thread(lambda: stop(self._service, known, "its flow is continued", self._caller))
            meta = (await self._until(known, lambda run: run.meta.status.is_terminal)).meta
        run = self._store.paths.run(known)
        has_begun = meta.started_at is not None
        if planned.agent.runner == "messages":
            has_begun = await asyncio.to_thread(run.transcript.exists)
        code = meta.error.code if meta.error is not None else None
        fate = fate_of(
            meta.status, code, has_begun=has_begun, is_ours=is_ours, options=self.options, fresh=fresh
        )
        return fate, meta

    async def _started(self, planned: _Planned, previous: RunMeta | None) -> str:
        """Start a run, or carry one on, as soon as the tree has room for it."""
        given, service = planned.given, self._service
        order = StartOrder(
            agent=planned.agent.name,
            prompt=given.prompt,
            arguments=given.arguments,
            inputs=given.inputs,
            cwd=given.cwd,
            label=given.label,
            call_id=planned.identity,
            base=planned.base,
            flow=self.options if planned.agent.runner == "flow" else None,
        )

        def begun() -> str:
            if previous is None:
                return start(service, order, self._caller).run_id
            again = ContinueOrder(
                previous.run_id, label=given.label, call_id=planned.identity, flow=order.flow
            )
            return continue_run(service, again, self._caller).run_id

        with self._run.waiting():
            while True:
                self._run.checkpoint()
                try:
                    return await asyncio.to_thread(begun)
                except TreeFull:
                    self._ended.clear()
                    with suppress(TimeoutError):  # runs elsewhere in the tree end unheard
                        await asyncio.wait_for(self._ended.wait(), 1.0)

    async def _result(self, call: int, asks: bool) -> Reply:
        planned = self._calls[call]
        run_id = planned.run_id
        if run_id is None:
            raise BadArgument("The call was not started.")
        with self._run.waiting():
            while True:
                observed = await self._until(
                    run_id,
                    lambda run: run.meta.status.is_terminal or self._question(run, planned) is not None,
                )
                message = self._question(observed, planned)
                if observed.meta.status.is_terminal or message is None:
                    break
                planned.shown.add(message.message_id)
                if asks:
                    asked = {"messageId": message.message_id, "question": message.question_content}
                    return {"question": {**asked, "options": message.options}}
                task = asyncio.create_task(self._forward(planned, run_id, message))
                self._forwarding.add(task)
                task.add_done_callback(self._forwarding.discard)
        self._ended.set()
        return await asyncio.to_thread(self._outcome, observed, planned)

    def _outcome(self, observed: Observed, planned: _Planned) -> Reply:
        """Return the result of a run that has ended. Raises _Failed."""
        meta = observed.meta
        result = self._store.read_result(meta.run_id)
        if meta.status is Status.COMPLETED:
            if result is not None and result.has_output:
                return {"value": result.output}
            return {"text": result.text if result is not None else meta.summary or ""}
        view = run_view(self._store, observed, AS_TOOLS, self._caller).to_wire()
        code = meta.error.code if meta.error is not None else meta.status.value
        why = meta.error.message if meta.error is not None else meta.status.value
        words = f"Run {meta.run_id} of {planned.agent.name} ended with {code}: {why}"
        raise _Failed({"error": words, "failed": code, "view": view})

    async def _answer(self, call: int, messageId: str, answer: Any) -> None:
        run_id = self._calls[call].run_id or ""
        await asyncio.to_thread(
            lambda: reply(self._service, run_id, str(answer), messageId, caller=self._caller)
        )

    async def _status(self, call: int) -> str:
        run_id = self._calls[call].run_id or ""
        return (await asyncio.to_thread(lambda: observe(self._store, run_id))).meta.status.value

    async def _stop(self, call: int) -> None:
        run_id = self._calls[call].run_id or ""
        await asyncio.to_thread(lambda: stop(self._service, run_id, "its program stopped it", self._caller))

    def _question(self, observed: Observed, planned: _Planned) -> Message | None:
        return next((each for each in observed.meta.pending if each.message_id not in planned.shown), None)

    async def _forward(self, planned: _Planned, run_id: str, message: Message) -> None:
        """Ask whoever answers this run what a child asks, and give it the answer."""
        who = f"{planned.agent.name}{f' ({planned.given.label})' if planned.given.label else ''}"
        async with self._asking:
            answer = await self._run.ask(f"{who} asks: {message.question_content}", message.options)
        if answer.answer is not None:
            text = answer.answer
            with suppress(SubagentError):  # somebody else has answered, or it has ended
                await asyncio.to_thread(
                    lambda: reply(self._service, run_id, text, message.message_id, caller=self._caller)
                )

    async def _until(self, run_id: str, is_enough: Callable[[Observed], bool]) -> Observed:
        def look() -> Observed | None:
            observed = observe(self._store, run_id)
            return observed if is_enough(observed) else None

        while True:
            found = await wait_until(self._changes, look, Wait(_LONGEST_WAIT, frozenset({run_id})))
            if found is not None:
                return found

    # -- the prompt cache

    async def _prefix(self, agent: AgentDefinition) -> str | None:
        """Wait while another call fills the cache for a prefix; return that if this call is to fill it."""
        if agent.runner != "messages":
            return None
        prefix = call_digest(agent, "", (), None, None)
        event, used = self._warm.get(prefix, (None, 0.0))
        if event is None or (event.is_set() and time.monotonic() - used > CACHE_SECONDS):
            self._warm[prefix] = asyncio.Event(), time.monotonic()
            return prefix
        with self._run.waiting():
            await event.wait()
        self._warm[prefix] = event, time.monotonic()
        return None

    async def _fill(self, prefix: str, run_id: str) -> None:
        """Note when the first call has had its first answer, or enough time for it."""
        event, _ = self._warm[prefix]
        until = time.monotonic() + WARM_SECONDS
        run = self._store.paths.run(run_id)
        try:
            while time.monotonic() < until:
                usage, meta = await asyncio.to_thread(lambda: (recorded_usage(run), self._store.read(run_id)))
                if usage is not None or meta.status.is_terminal:
                    return
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            event.set()

    # -- what is recorded besides

    async def recorded(
        self,
        kind: str,
        about: Sequence[Any],
        make: Callable[[], Awaitable[T]],
        *,
        has_effect: bool = False,
        is_failed: Callable[[T], bool] = lambda _: False,
    ) -> T:
        """Return a value on record, or make and record it. With an effect it is never made a second time."""
        if not self.is_flow:
            return await make()
        name = f"{kind} {self._identities.of(digest(kind, *about))}"
        if name in self.record and not (self.options.retry_failed and is_failed(self.record[name])):
            value: T = self.record[name]
            return value
        if self.options.dry_run and kind in ("ask", "tool", "merge"):
            raise DryRun
        if has_effect:
            if self.record.was_begun(name) and not self.options.retry_failed:
                raise BadArgument(_UNKNOWN_TOOL)
            await asyncio.to_thread(self.record.begin, name)
        made = await make()
        is_lasting = kind not in ("now", "random")
        await asyncio.to_thread(functools.partial(self.record.keep, name, made, is_lasting=is_lasting))
        return made

    async def _ask(self, question: str, options: list[str] | None = None) -> str | None:
        async def asked() -> str | None:
            async with self._asking:
                return (await self._run.ask(question, options)).answer

        return await self.recorded("ask", [question, options], asked)

    async def _merge(self, runId: str) -> str:
        async def merged() -> str:
            done = await asyncio.to_thread(lambda: merge_run(self._service, runId, caller=self._caller))
            return done.sentence

        return await self.recorded("merge", [runId], merged)

    async def _now(self) -> str:
        async def moment() -> str:
            return timestamp(now())

        return await self.recorded("now", [], moment)

    async def _random(self) -> float:
        async def number() -> float:
            return random.random()

        return await self.recorded("random", [], number)

    async def _log(self, text: str) -> None:
        self._run.record("text", text=text)

    async def _set_phase(self, name: str) -> None:
        self._phase = name[:_MOST_PHASE]
        self._run.record("phase", name=self._phase)

    # -- on disk

    def _runs_on_record(self) -> dict[str, str]:
        """Return the newest run of each identity, of this run and of those that it continues."""
        found: dict[str, str] = {}
        for flow in self._chain:
            for child in sorted(self._store.children_of(flow)):
                with suppress(SubagentError):  # a start that never was, or a damaged run: it is asked anew
                    self._store.read(child)
                    if (identity := self._store.read_request(child).call_id) is not None:
                        found[identity] = child
        return found

    def _journal(self, planned: _Planned, fate: Fate, run_id: str | None) -> None:
        facts: dict[str, Any] = {"agent": planned.agent.name, "state": fate.value}
        more = {"label": planned.given.label, "phase": planned.phase, "calledRunId": run_id}
        facts |= {name: value for name, value in more.items() if value is not None}
        self._run.record("agent_call", callId=planned.identity[:16], **facts)


class _Failed(Exception):
    """A run of an agent has failed; `reply` is what the program gets."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


def _first_words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)[:300]


async def calls_of(service: Service, run: RunContext, record: Directory, masker: Masker) -> AgentCalls:
    """Return the calls of one program, with what is on record for it."""
    made = functools.partial(AgentCalls, service, run, record, masker)
    return await asyncio.to_thread(made)
