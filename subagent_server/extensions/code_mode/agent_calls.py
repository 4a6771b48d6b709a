"""The agents that a program calls: each call is an ordinary run, and no call is paid twice.

The record of a call is the directory of its run, whose request has the identity of the call. A program that
makes the same call again, in the same run or in one that continues it, gets the result on record.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

from subagent_server.extensions.code_mode.execution import Later, Reply
from subagent_server.extensions.code_mode.flow_record import FlowRecord
from subagent_server.extensions.code_mode.identity import Fate, Identities, call_digest, digest, fate_of
from subagent_server.extensions.code_mode.python_text import function_name
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import (
    BadArgument,
    RunRefused,
    SubagentError,
    UnknownRun,
    UnreadableMeta,
    choices,
)
from subagent_server.run.files import Directory
from subagent_server.run.journal import recorded_usage
from subagent_server.run.processes import now
from subagent_server.run.records import FlowOptions, Message, RunMeta, first_problem
from subagent_server.run.secrets import Masker
from subagent_server.run.states import (
    MAX_OPEN_QUESTIONS,
    Status,
    cut,
    is_run_id,
    timestamp,
)
from subagent_server.toolbox.run_context import RunContext, RunOver
from subagent_server.verbs.access import run_as_caller
from subagent_server.verbs.check_agent import AgentChecker
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.inputs import check_inputs, cwd_of_agent, cwd_of_child, directories_of
from subagent_server.verbs.merge_run import merge_run
from subagent_server.verbs.questions import forwarded_question, reply
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.run_worktree import base_of_worktree
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import StartOrder, check_texts, start_agent, with_arguments
from subagent_server.verbs.tree_limits import BudgetSpent, TreeFull, agents_of, check_may_start
from subagent_server.verbs.views import AS_TOOLS, run_view
from subagent_server.verbs.wait_for_runs import Changes, Wait, wait_until

_Value = TypeVar("_Value")
_PROGRAM = "001"
"""The number of the one program that a run of a flow has."""
WARM_SECONDS = 5.0
"""The longest wait of equal prefixes for the first, which fills the prompt cache of the API."""
_LOOK_SECONDS = 0.2
_ROOM_SECONDS = 1.0
"""How often a call looks whether its tree has room for another run."""
MOST_PLANNED = 128 << 20
"""How many characters all calls of one program may take: they are kept outside of its box."""
_MOST_QUESTIONS = MAX_OPEN_QUESTIONS - 1
"""How many questions of a program and its agents are open at once; `ask_parent` of code mode has one more."""
_MOST_PHASE = 200
_MOST_LOGGED = 4_000
_MOST_LOG = 8 << 20
"""Characters of all lines that a program logs."""
_checked = validate_call(config=ConfigDict(strict=True))
"""What a program sends is data: it may write anything."""
_CUT_TOOL = (
    "It is not known what this call did, because the run ended meanwhile, and it was not repeated: look what "
    "is there. `subagent continue --retry-failed` makes it again."
)
_WOULD_BE_NEW: Reply = {"error": "This call would be new.", "failed": "dry_run", "view": {}}


class _Failed(Exception):
    """A call has failed: `answer` is what the program gets."""

    def __init__(self, answer: Reply) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True)
class _Planned:
    """A call with its identity, as it was when the program described it."""

    order: StartOrder
    agent: AgentDefinition
    identity: str
    fresh: bool
    phase: str | None


class AgentCalls:
    """Answers what one program asks about agents."""

    def __init__(self, service: Service, run: RunContext, record: Directory, masker: Masker) -> None:
        """Blocking: it reads what is on record."""
        self._service = service
        self._store = service.store
        self._run = run
        self._caller = run_as_caller(self._store, run.run_id)
        request = self._store.read_request(run.run_id)
        self._is_flow = request.runner == "flow"
        self._options = request.flow or FlowOptions()
        allowed = agents_of(service, run.run_id)
        self._by_function = {
            function_name(agent): agent for agent in service.registry.agents() if agent.name in allowed
        }
        chain = [*self._caller.carries_on, run.run_id]
        before = [self._store.paths.run(each).code.below(_PROGRAM) for each in chain]
        self._record = FlowRecord(record, masker, before if self._is_flow else ())
        self._known = self._runs_on_record(chain)
        self._calls: list[_Planned] = []
        self._room = MOST_PLANNED
        self._log_room = _MOST_LOG
        self._runs: set[str] = set()
        self._forwarded: set[tuple[str, str]] = set()
        self._troubles: dict[str, Exception] = {}
        self._definitions: dict[str, AgentDefinition] = {}
        self._identities = Identities()
        self._phase: str | None = None
        self._changes = Changes(self._store)
        self._warm: dict[str, asyncio.Event] = {}
        self._asking = asyncio.Semaphore(_MOST_QUESTIONS)
        self._planning = asyncio.Lock()
        self._merging = asyncio.Lock()
        self._starting: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        of_calls = (self.plan, self.start, self.result, self.answer, self.status, self.stop)
        others = (self.merge, self.ask, self.log, self.phase, self.now, self.random)
        self._functions: dict[str, Callable[..., Awaitable[Any]]] = {
            each.__name__: _checked(each) for each in (*of_calls, *others)
        }

    @property
    def names(self) -> list[str]:
        """The names of the agents as functions."""
        return list(self._by_function)

    async def reply(self, function: str, arguments: dict[str, Any]) -> Reply | Later:
        """Answer one record of the program; a result of a run is read when it can be sent.

        Raises:
            RunOver, RunRefused: the run ends.
        """
        self._run.checkpoint()
        if function not in self._functions:
            return {"error": f"There is no function {function[:80]!r} here."}
        return await self._replied(lambda: self._functions[function](**arguments))

    async def _replied(self, work: Callable[[], Awaitable[Any]]) -> Reply | Later:
        try:
            value = await work()
        except _Failed as failed:
            return failed.answer
        except BudgetSpent as error:
            return {"error": error.sentence, "failed": "budget", "view": {}}
        except RunRefused:
            raise
        except SubagentError as error:
            return {"error": error.sentence}
        except ValidationError as error:
            return {"error": first_problem(error)}
        if isinstance(value, Observed):
            return lambda: self._replied(lambda: asyncio.to_thread(self._outcome, value))
        return {"value": value}

    async def aclose(self) -> None:
        """End what waits; the runs continue until the run that has started them ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._changes.close()

    # -- a call: what it is, what becomes of it, how it ends

    async def plan(self, agent: str, arguments: dict[str, Any]) -> int:
        """Check a call and compute its identity; return its number."""
        self._room -= len(str(arguments))
        if self._room < 0:
            raise BadArgument(
                f"The calls of agents of one program may take {MOST_PLANNED >> 20} MiB in all: name large "
                "texts to them as files in `inputs`."
            )
        async with self._planning:  # equal calls are numbered in their order
            self._calls.append(await asyncio.to_thread(self._planned, agent, **arguments))
            return len(self._calls) - 1

    @_checked
    def _planned(
        self,
        function: str,
        /,
        *,
        inputs: list[str] | None = None,
        label: str | None = None,
        cwd: str | None = None,
        key: str | None = None,
        fresh: bool = False,
        **own: Any,
    ) -> _Planned:
        if function not in self._by_function:
            known = choices("agents", function, self.names)
            raise BadArgument(f"This run may not start {function[:80]}: {known}.")
        agent = self._definition(self._by_function[function].name)
        is_flow = agent.runner == "flow"
        prompt = "" if is_flow else own.pop("prompt", "")
        if not is_flow and not (isinstance(prompt, str) and prompt.strip()):
            raise BadArgument(
                f"agents.{function}() needs a prompt: a text that says what the agent shall do."
            )
        order = StartOrder(agent.name, prompt, inputs or [], cwd, label, arguments=own or None)
        order = with_arguments(agent, order)
        check_texts(order)
        directories = directories_of(self._service, self._store.read(self._run.run_id))
        directory = cwd_of_agent(self._service, agent) or cwd_of_child(self._service, cwd, directories)
        files = [file.data for file in check_inputs(order.inputs, directory, directories)]
        base = None
        if agent.isolation == "worktree":
            # today's HEAD is the base of a new call alone: a call on record has the base that it had
            plain = digest("base", call_digest(agent, order.prompt, files, cwd, None))
            name = f"base {self._identities.of(plain, key)}"
            if self._record.line(name, own=fresh or agent.name in self._options.fresh) is None:
                self._record.write(name, value=base_of_worktree(self._service, agent, directory))
            base = (self._record.line(name) or {}).get("value")
        identity = self._identities.of(call_digest(agent, order.prompt, files, cwd, base), key)
        order = replace(order, call_id=identity, base=base, flow=self._options if is_flow else None)
        return _Planned(order, agent, identity, fresh, self._phase)

    def _definition(self, name: str) -> AgentDefinition:
        """Return an agent as it is now. A thousand calls share one definition, until its file changes."""
        found = self._service.registry.get(name)  # lists have no prompts
        if self._definitions.get(name) != found:
            self._definitions[name] = found
        return self._definitions[name]

    async def start(self, call: int) -> str:
        """Return the run id of a call: the run on record, one that continues that, or a new one."""
        if not 0 <= call < len(self._calls):
            raise BadArgument("There is no such call.")
        planned = self._calls[call]
        is_first = planned.identity not in self._starting
        async with self._starting.setdefault(planned.identity, asyncio.Lock()):  # of equal keys, one starts
            fate, previous = await self._fate(planned)
            if previous is not None and fate in (Fate.RECORDED, Fate.RUNNING):
                run_id = previous.run_id
            elif self._options.dry_run:
                await asyncio.to_thread(check_may_start, self._service, self._caller, planned.agent)
                if is_first:  # equal keys would share its run
                    refusal = await asyncio.to_thread(self._refusal, planned)
                    self._journal(planned, fate, None if previous is None else previous.run_id, refusal)
                raise _Failed(_WOULD_BE_NEW)
            else:
                run_id = await self._begun(planned, previous if fate is Fate.RESUMED else None)
            self._known[planned.identity] = run_id
            self._runs.add(run_id)
            self._journal(planned, fate, run_id)
            return run_id

    async def _fate(self, planned: _Planned) -> tuple[Fate, RunMeta | None]:
        """Return what becomes of a call, and the run that is on record for it."""
        known = self._known.get(planned.identity)
        if known is None or planned.fresh:
            return Fate.NEW, None
        meta = (await self._look(known)).meta
        is_ours = meta.parent_run_id == self._run.run_id
        if not meta.status.is_terminal and not is_ours and not self._options.dry_run:
            # its parent has ended, so it is stopped too: what it has done so far is kept, and continued
            await asyncio.to_thread(lambda: stop(self._service, known, "its flow is continued", self._caller))
            meta = await self._until(known, lambda run: run.meta if run.meta.status.is_terminal else None)
        has_begun = meta.started_at is not None
        if planned.agent.runner == "messages":
            has_begun = await asyncio.to_thread(self._store.paths.run(known).transcript.exists)
        is_over = meta.status.is_terminal or not is_ours
        if is_over and not has_begun and meta.continues_run_id is not None:
            return Fate.RESUMED, meta  # the turns of the run that it was to continue are paid
        code = meta.error.code if meta.error is not None else None
        retry = self._options.retry_failed and not is_ours  # of equal keys, one starts anew
        if planned.agent.runner == "flow" and has_begun and meta.status.is_terminal:
            # it has a record of its own: it pays for nothing twice, and what was cut below it continues
            program = (await asyncio.to_thread(self._store.read_request, known)).agent.get("programHash")
            if program != planned.agent.program_hash or meta.status is not Status.COMPLETED:
                return Fate.RESUMED, meta
        return fate_of(meta.status, code, has_begun=has_begun, is_ours=is_ours, retry_failed=retry), meta

    async def _begun(self, planned: _Planned, previous: RunMeta | None) -> str:
        """Start or continue a run. Runs with equal prefixes wait for the first of them."""
        prefix = call_digest(planned.agent, "", (), None, None)
        is_first = prefix not in self._warm
        filled = self._warm.setdefault(prefix, asyncio.Event())
        if planned.agent.runner == "messages" and not is_first:
            with self._run.waiting():
                await filled.wait()
        try:
            run_id = await self._started(planned, previous)
        except BaseException:
            filled.set()
            raise
        if is_first:
            self._in_background(self._fill(filled, run_id))
        return run_id

    async def _fill(self, filled: asyncio.Event, run_id: str) -> None:
        """Let the other runs start when the first one has had its first answer, or enough time for it."""
        run = self._store.paths.run(run_id)

        def has_answered() -> bool | None:
            return recorded_usage(run) is not None or self._store.read(run_id).status.is_terminal or None

        wait = Wait(WARM_SECONDS, frozenset({run_id}), poll_seconds=_LOOK_SECONDS)
        try:
            await wait_until(self._changes, has_answered, wait)
        finally:
            filled.set()

    async def _started(self, planned: _Planned, previous: RunMeta | None) -> str:
        """Start a run, or continue one, as soon as the tree has room for it."""
        new = planned.order

        def started() -> str:
            if previous is None:
                return start_agent(self._service, planned.agent, new, self._caller).run_id
            again = ContinueOrder(
                previous.run_id,
                label=new.label,
                call_id=new.call_id,
                flow=new.flow,
                agent=planned.agent,
            )
            return continue_run(self._service, again, self._caller).run_id

        with self._run.waiting():
            while True:
                self._run.checkpoint()
                try:
                    return await asyncio.to_thread(started)
                except TreeFull:
                    await asyncio.sleep(_ROOM_SECONDS)

    async def result(self, runId: str, asks: bool) -> Reply | Observed:
        """Return a run when it has ended, or, if the program `asks` for it, its question."""

        def news(run: Observed) -> Observed | Message | None:
            if runId in self._troubles:
                raise self._troubles[runId]
            if run.meta.status.is_terminal:
                return run
            return next(
                (each for each in run.meta.pending if (runId, each.message_id) not in self._forwarded), None
            )

        with self._run.waiting():
            while True:
                found: Observed | Message = await self._until(self._ours(runId), news)
                if not isinstance(found, Message):
                    return found
                if asks:
                    options = {"options": found.options, "messageId": found.message_id}
                    return {"question": found.question_content, **options}
                self._forward(runId, found)

    def _outcome(self, observed: Observed) -> Reply:
        """Return the result of a run that has ended. Raises _Failed."""
        meta = observed.meta
        result = self._store.read_result(meta.run_id)
        if meta.status is Status.COMPLETED:
            if result is not None and result.has_output:
                return {"value": result.output}
            return {"text": result.text if result is not None else meta.summary or ""}
        view = run_view(self._store, observed, AS_TOOLS, self._caller).to_wire()
        code = meta.error.code if meta.error is not None else meta.status.value
        why = meta.error.message if meta.error is not None else meta.summary or "no reason was given"
        words = f"Run {meta.run_id} of {meta.agent_name} ended with {code}: {why}"
        raise _Failed({"error": words, "failed": code, "view": view})

    async def answer(self, runId: str, messageId: str, answer: str | None) -> None:
        """Answer a question of a run; None leaves it to whoever answers this run."""
        message = (await self._look(self._ours(runId))).meta.message(messageId)
        if message is None:
            raise BadArgument("There is no such question.")
        if answer is None:
            self._forward(runId, message)
        else:
            await asyncio.to_thread(self._answered, runId, messageId, answer)

    def _answered(self, run_id: str, message_id: str, answer: str) -> None:
        try:
            reply(self._service, run_id, answer, message_id, caller=self._caller)
        except SubagentError:  # else somebody has answered meanwhile, or the run has ended
            if message_id in _pending(observe(self._store, run_id).meta):
                raise

    def _forward(self, run_id: str, message: Message) -> None:
        """Ask whoever answers this run what a child asks, and pass the answer on, unless it has one first."""
        if (run_id, message.message_id) in self._forwarded:
            return
        self._forwarded.add((run_id, message.message_id))

        async def forwarded() -> None:
            try:
                meta = (await self._look(run_id)).meta
                answer = await self._asked(forwarded_question(meta, message), message.options)
                if answer is not None:
                    await asyncio.to_thread(self._answered, run_id, message.message_id, answer)
            except (SubagentError, RunOver) as error:
                self._troubles[run_id] = error

        async def withdrawn() -> None:
            with suppress(SubagentError):
                await self._until(run_id, lambda run: message.message_id not in _pending(run.meta) or None)
            asking.cancel()

        asking = self._in_background(forwarded())
        self._in_background(withdrawn())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def status(self, runId: str) -> str:
        """Return the status of a run."""
        return (await self._look(self._ours(runId))).meta.status.value

    async def stop(self, runId: str) -> None:
        """Stop a run."""
        run_id = self._ours(runId)
        await asyncio.to_thread(lambda: stop(self._service, run_id, "its program stopped it", self._caller))

    def _ours(self, run_id: str) -> str:
        """Return the id of a run that a call of this program has."""
        if run_id not in self._runs:
            raise BadArgument("No call of this program has such a run.")
        return run_id

    async def _look(self, run_id: str) -> Observed:
        return await asyncio.to_thread(observe, self._store, run_id)

    async def _until(self, run_id: str, look: Callable[[Observed], _Value | None]) -> _Value:
        """Return the first value of `look` at a run that is not None."""
        wait = Wait(math.inf, frozenset({run_id}))
        found = await wait_until(self._changes, lambda: look(observe(self._store, run_id)), wait)
        assert found is not None  # the wait has no end
        return found

    # -- further records

    async def tool_reply(
        self, function: str, arguments: dict[str, Any], call: Callable[[], Awaitable[Reply]]
    ) -> Reply:
        """Return the reply of a tool that changes something: the one on record, else the result of `call`."""
        try:
            return await self._recorded("tool", [function, arguments], call)
        except _Failed as failed:
            return failed.answer

    async def _recorded(
        self, kind: str, about: Sequence[Any], make: Callable[[], Awaitable[_Value]]
    ) -> _Value:
        """Return a value on record, or make and record it; a call of a `tool` is never made a second time."""
        if not self._is_flow:
            return await make()
        name = f"{kind} {self._identities.of(digest(kind, *about))}"
        line, retry = await asyncio.to_thread(self._record.line, name), self._options.retry_failed
        if line is not None and not (retry and _is_failure(line)):
            if "value" not in line:
                raise _Failed({"error": _CUT_TOOL})
            recorded: _Value = line["value"]
            return recorded
        if self._options.dry_run and kind in ("ask", "tool", "merge"):
            raise _Failed(_WOULD_BE_NEW)
        if kind == "tool":
            await asyncio.to_thread(self._record.write, name)
        made = await make()
        await asyncio.to_thread(self._record.write, name, value=made)
        return made

    async def ask(self, question: str, options: list[str] | None = None) -> str | None:
        """Ask whoever answers this run."""
        return await self._recorded("ask", [question, options], lambda: self._asked(question, options))

    async def _asked(self, question: str, options: list[str] | None) -> str | None:
        async with self._asking:
            return (await self._run.ask(question, options)).answer

    async def merge(self, runId: str) -> str:
        """Merge what a run has changed in its worktree, and report it."""

        def merged() -> str:
            return merge_run(self._service, runId, caller=self._caller).sentence

        async with self._merging:  # side by side, one would move the working copy of the other
            return await self._recorded("merge", [runId], lambda: asyncio.to_thread(merged))

    async def now(self) -> str:
        """Return the moment of the first time."""
        return await self._recorded("now", [], lambda: asyncio.to_thread(lambda: timestamp(now())))

    async def random(self) -> float:
        """Return the number of the first time."""
        return await self._recorded("random", [], lambda: asyncio.to_thread(random.random))

    async def log(self, text: str) -> None:
        """Write a line of the log, as long as there is room."""
        text = cut(text, _MOST_LOGGED)
        if len(text) <= self._log_room:
            self._log_room -= len(text)
            self._run.record("text", text=text)
        elif self._log_room:
            self._log_room = 0
            self._run.record("warning", message="The program logs so much that the rest is not written down.")

    async def phase(self, name: str) -> None:
        """Name the calls that follow."""
        self._phase = name[:_MOST_PHASE]
        self._run.record("phase", name=self._phase)

    # -- on disk

    def _runs_on_record(self, chain: Sequence[str]) -> dict[str, str]:
        """Return the newest run of each identity, of this run and of those that it continues.

        Runs of agents that shall be asked anew count as not there, so equal keys share the one that is made.

        Raises:
            RunRefused: one of them cannot be read. What it has cost would be paid once more.
        """
        found: dict[str, str] = {}
        for flow in chain:
            for child in self._children_of(flow):
                try:
                    meta, identity = self._store.read(child), self._store.read_request(child).call_id
                except UnknownRun:  # its start never was, or it was removed
                    continue
                except UnreadableMeta as error:
                    hint = f"`subagent rm {child}` removes it; its call is then made anew."
                    raise RunRefused("storage", error.sentence, hint) from error
                if identity is not None and meta.agent_name not in self._options.fresh:
                    found[identity] = child
        return found

    def _children_of(self, flow: str) -> list[str]:
        folder = self._store.paths.run(flow).children
        try:
            self._store.read(flow)  # else nobody knows which run it continues, with calls of its own
            return sorted(filter(is_run_id, folder.names()))
        except (FileNotFoundError, UnknownRun):
            return []
        except UnreadableMeta as error:
            raise RunRefused("storage", error.sentence) from error
        except OSError as error:
            why = error.strerror or str(error)
            raise RunRefused("storage", f"{folder.path} cannot be read ({why}).") from error

    def _refusal(self, planned: _Planned) -> str | None:
        """Return why a start would refuse a call."""
        elsewhere = planned.order.cwd is not None
        checked = AgentChecker(self._service).check(planned.agent, elsewhere=elsewhere)
        return checked.sentences or None if checked.doubt is None else checked.doubt.sentence

    def _journal(self, planned: _Planned, fate: Fate, run_id: str | None, refusal: str | None = None) -> None:
        facts = {"label": planned.order.label, "phase": planned.phase, "calledRunId": run_id}
        facts["refusal"] = refusal
        known = {name: value for name, value in facts.items() if value is not None}
        self._run.record(
            "agent_call", callId=planned.identity[:16], agent=planned.agent.name, state=fate.value, **known
        )


def _pending(meta: RunMeta) -> set[str]:
    return {message.message_id for message in meta.pending}


def _is_failure(line: dict[str, Any]) -> bool:
    """Whether it is of a question without an answer, of a tool that failed, or of one that was cut."""
    value = line.get("value")
    return value is None or (isinstance(value, dict) and "error" in value)
