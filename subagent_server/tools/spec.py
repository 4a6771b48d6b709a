"""One tool call, and the check of its arguments."""

import asyncio
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from subagent_server.run import store
from subagent_server.run.agent_definition import AgentDefinition, JsonSchema
from subagent_server.run.errors import BadArgument, UnknownAgent
from subagent_server.run.records import RunMeta
from subagent_server.run.schemas import NEWEST, embedded, validator_name
from subagent_server.verbs.access import Caller, ShownRuns
from subagent_server.verbs.check_agent import AgentChecker, says_refused
from subagent_server.verbs.reconcile import Observed, observe
from subagent_server.verbs.service import Service
from subagent_server.verbs.tree_limits import agents_of
from subagent_server.verbs.trust_check import TrustCheck, TrustFile
from subagent_server.verbs.views import NextCalls, RunView, run_view, view_for
from subagent_server.verbs.wait_for_runs import Changes, Wait, has_ended_or_asks, wait_until

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


# -- JSON Schemas of the arguments of tools. Short: every parent pays for what its model sees of them.


Schema = dict[str, Any]


def arguments(required: list[str], /, **properties: Schema) -> Schema:
    """Return the input schema of a tool. A property may have any name: those of flows do."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def text(description: str = "", **more: Any) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def count(most: int, default: int, use: str) -> Schema:
    """Return the schema of a count from 1. Words have its default: the schema that a model sees has none."""
    return {"type": "integer", "description": f"{use}. Default {default}", "minimum": 1, "maximum": most}


def wait(default: int, use: str = "Until it ends or asks") -> Schema:
    """Return the schema of `waitSeconds`. It has no upper bound: a wait that is too long is cut."""
    return {"type": "number", "description": f"{use}. Default {default}", "minimum": 0}


_NOT_SHOWN = frozenset({"additionalProperties", "minimum", "maximum", "maxLength", "maxItems"})


RUN_ID = text("Its id")
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}


Arguments = dict[str, Any]
MAX_FAULT_CHARACTERS = 300


@dataclass
class Call:
    """A tool call: its arguments, the longest wait in seconds, and the means of reporting the wait.

    `progress` gets the seconds waited so far and the ids of the awaited runs. `during_wait` is entered with
    these ids, and left when the wait is over. `client` is the client's name.
    """

    arguments: Arguments
    longest_wait: float
    progress: Callable[[float, Collection[str]], Awaitable[None]] | None = None
    during_wait: Callable[[Collection[str]], AbstractAsyncContextManager[None]] | None = None
    client: str | None = None
    http_url: str | None = None
    """The address under which the client reaches this server by HTTP, with a slash at its end."""
    has_gone: Callable[[], Awaitable[bool]] | None = None
    """Whether the client has gone, where a call survives that."""

    @property
    def next_calls(self) -> NextCalls:
        """The next calls of its answer, with waits up to the client's timeout."""
        return NextCalls(self.longest_wait)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument."""
        return self.arguments.get(name, default)

    def wait_seconds(self, default: float = 0) -> float:
        """Return how long to wait, within the timeout of the client."""
        return float(min(self.get("waitSeconds", default), self.longest_wait))

    def wait_note(self, default: float = 0) -> str | None:
        """Return the sentence in the answer about a wait cut short."""
        if self.get("waitSeconds", default) <= self.longest_wait:
            return None
        return (
            f"waitSeconds was cut to {self.longest_wait:g}: your client gives up on longer calls; call again."
        )

    def waiting_for(self, run_ids: Collection[str], seconds: float) -> AbstractAsyncContextManager[None]:
        """Return the context in which the call waits for these runs; a look of no `seconds` is no wait."""
        return nullcontext() if self.during_wait is None or seconds <= 0 else self.during_wait(run_ids)


def check_arguments(tool: str, arguments: Arguments, schema: Schema) -> None:
    """Refuse arguments that do not fit, naming the argument to fix; what hosts write is read as it is meant.

    Raises:
        BadArgument.
    """
    from jsonschema import Draft202012Validator  # a twelfth of a start, and no list of tools needs it
    from jsonschema.exceptions import best_match

    take_as_meant(arguments, schema)
    for name, value in arguments.items():
        if isinstance(value, float) and math.isnan(value):  # it passes every bound of a schema
            raise BadArgument(f"{tool}: {name} is no number: fix the arguments, and call again.")
    error = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if error is not None:
        raise BadArgument(f"{tool}: {_fault(error)}, and call again.")


def take_as_meant(arguments: Arguments, schema: Schema) -> None:
    """Replace what models and hosts write by what it means.

    An optional argument that is null or an empty text is left out: some hosts fill in every argument, and
    those of OpenAI's strict mode have to. Another type that comes as a text is read (`"45"`, `"true"`), and
    50.0 is 50.
    """
    for name in [name for name, value in arguments.items() if value is None or value == ""]:
        if name in schema["properties"] and name not in schema["required"]:
            del arguments[name]
    for name, value in arguments.items():
        one: Schema = schema["properties"].get(name, {})
        wanted = {each.get("type") for each in one.get("anyOf", [one])}  # those of a flow may be choices
        for kind in wanted if wanted.isdisjoint({"string", None}) else ():
            value = _meant(value, kind) if isinstance(value, str) else value
        if isinstance(value, float) and wanted & {"number", "integer"} and value.is_integer():
            value = int(value)
        arguments[name] = value


def _meant(text: str, wanted: object) -> object:
    """Return what a text means where another type is wanted; else the text."""
    plain = text.strip()
    if wanted in ("number", "integer") and _NUMBER.fullmatch(plain):
        return float(plain)
    if wanted == "boolean" and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if wanted in ("array", "object") and plain[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            found = json.loads(plain)
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # no half characters in it
            return found
    return text


_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,6})?", re.ASCII)
"""The numbers that a float holds exactly enough to be taken for the text."""


def _fault(error: "ValidationError") -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "maxItems":  # the validator would quote the whole list
        size = len(cast("list[Any]", error.instance))
        return f"{where} has {size:,} of at most {error.validator_value:,} entries: leave some out"
    message = error.message
    if error.validator == "type":  # the validator writes None, True and 'x'
        written = json.dumps(error.instance, ensure_ascii=False)
        message = f"{written} is not of type {error.validator_value!r}"
    if len(message) > MAX_FAULT_CHARACTERS:
        message = message[:MAX_FAULT_CHARACTERS] + "…"
    return f"{where}: {message}: fix the arguments" if where else f"{message}: fix the arguments"


# -- The agents that a caller sees, kept until a file of theirs or the user's trust changes.


RECHECK_SECONDS = 10.0
"""Seconds for which a description may still announce a refusal that no longer applies."""


class VisibleAgents:
    """The agents that a caller may start, by name."""

    def __init__(self, agents: Sequence[AgentDefinition], service: Service) -> None:
        self.agents = tuple(agents)
        self._service = service
        self._checked_at = 0.0

    @cached_property
    def shown(self) -> tuple[AgentDefinition, ...]:
        """The agents as models may see them."""
        self._checked_at = time.monotonic()
        return tuple(map(AgentChecker(self._service).as_shown, self.agents))

    def is_outdated(self) -> bool:
        """Whether a call that would have been refused is not any more: a program was installed."""
        if "shown" not in self.__dict__ or time.monotonic() < self._checked_at + RECHECK_SECONDS:
            return False
        self._checked_at = time.monotonic()
        checker = AgentChecker(self._service)
        refused = (
            each for each in zip(self.agents, self.shown, strict=True) if says_refused(each[1].description)
        )
        return any(checker.as_shown(agent).description != shown.description for agent, shown in refused)

    @cached_property
    def by_tool(self) -> dict[str, AgentDefinition]:
        """The agents by the names of their tools."""
        return {agent.tool_name: agent for agent in self.agents}

    def named(self, name: str) -> AgentDefinition:
        """Return the agent of this name, or whose tool has this name.

        Raises:
            UnknownAgent: the sentence has the nearest names, or why a file of that name was refused.
        """
        for agent in self.agents:
            if agent.name == name:
                return agent
        if name in self.by_tool:
            return self.by_tool[name]
        names = [agent.name for agent in self.agents]
        raise UnknownAgent(name, names, self._service.registry.catalog().why_missing(name))

    def matching(self, query: str) -> list[AgentDefinition]:
        """Return the agents as models may see them that have a word of `query`, the best first; "" is all."""
        words = set(query.casefold().split())
        rated = [(_rating(agent, words), agent) for agent in self.shown]
        rated.sort(key=lambda each: -each[0])  # stable: equals stay in the order of their names
        return [agent for rating, agent in rated if rating or not words]


class AgentsOfCaller:
    """Finds the agents that a caller sees, anew only when something has changed."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._made_from: tuple[Sequence[AgentDefinition], TrustFile] | None = None
        self._visible: VisibleAgents | None = None

    def now(self) -> VisibleAgents:
        """Return the agents as their files and the trust are now: the same object if nothing has changed.

        Looks at the files: call it off the event loop.
        """
        agents, trusted = self._service.registry.agents(), TrustCheck(self._service).trusted
        if self._visible is None or self._made_from != (agents, trusted) or self._visible.is_outdated():
            self._visible = VisibleAgents(list(filter(self._is_visible, agents)), self._service)
            self._made_from = agents, trusted
        return self._visible

    def _is_visible(self, agent: AgentDefinition) -> bool:
        patterns = self._service.settings.agent_patterns
        if patterns and not any(fnmatchcase(agent.name, pattern) for pattern in patterns):
            return False
        return self._allowed is None or agent.name in self._allowed

    @cached_property
    def _allowed(self) -> set[str] | None:
        """The names of the agents that a run may start: its request never changes. None: all."""
        return None if self._caller.run_id is None else agents_of(self._service, self._caller.run_id)


def _rating(agent: AgentDefinition, words: set[str]) -> int:
    name, description = agent.name.casefold(), agent.description.casefold()
    whole = {name, *re.findall(r"[^\W_]+", name)}  # of names with a `77`, one with the word `77` is first
    return sum(3 * (word in name) + 2 * (word in whole) + (word in description) for word in words)


# -- What the tool calls of a caller share: the service, the runs shown so far, the way of waiting.


T = TypeVar("T")


@dataclass
class ToolContext:
    """The calls of a caller. `waiting` counts the calls now waiting for runs."""

    service: Service
    changes: Changes
    caller: Caller
    agents: AgentsOfCaller
    shown: ShownRuns = field(default_factory=ShownRuns)
    asked: set[tuple[str, str]] = field(default_factory=set)
    """The questions asked here, by run and message: a program without a token is an asker by them alone."""
    waiting: int = 0

    def own_run_id(self, call: Call) -> str:
        """Return the run that a child speaks for: the named run, else its own.

        Raises:
            BadArgument.
        """
        run_id = call.get("runId") or self.caller.run_id
        if run_id is None:
            raise BadArgument(
                "runId is missing: give the id of your own run, as your first message names it."
            )
        return str(run_id)

    async def waited(self, check: Callable[[], T | None], wait: Wait) -> T | None:
        """Wait, and count as waiting: a server that leaves does not let waits finish."""
        self.waiting += 1
        try:
            return await wait_until(self.changes, check, wait)
        finally:
            self.waiting -= 1

    async def started(self, start: Callable[[], RunMeta]) -> RunMeta:
        """Start a run, and note that its end is news until the caller is shown it."""

        async def noted() -> RunMeta:
            meta = await asyncio.to_thread(start)
            self.shown.note(meta.run_id)
            if not self.caller.is_child:
                await asyncio.to_thread(store.mark_unseen, self.service.store.paths.run(meta.run_id))
            return meta

        return await asyncio.shield(noted())  # the thread starts it, though its call is cancelled meanwhile

    async def view_after_start(self, start: Callable[[], RunMeta], call: Call) -> RunView:
        """Start a run, and return its view once it has ended or asks, or the wait is over."""
        run_id = (await self.started(start)).run_id
        observed = await asyncio.to_thread(observe, self.service.store, run_id, self.caller)
        return await self.view_after_wait(observed, call)

    def is_asker(self, run_id: str, message_id: str) -> bool:
        """Whether the caller has asked this question: as the run itself, or through these tools."""
        return self.caller.run_id == run_id or (run_id, message_id) in self.asked

    async def view_after_wait(self, observed: Observed, call: Call, message_id: str | None = None) -> RunView:
        """Return the view of a run, with the named question, when it has ended, asks, or the wait is over."""
        run_id, seconds = observed.meta.run_id, call.wait_seconds()
        async with call.waiting_for([run_id], seconds):
            wait = Wait(seconds, progress=call.progress)
            observed = await self._when(observed, lambda run: has_ended_or_asks(run.meta), wait)
        view = await asyncio.to_thread(
            view_for, self.service, observed, call.next_calls, message_id, self.caller
        )
        await self.note(view, call)
        return view if has_ended_or_asks(observed.meta) else with_note(view, call.wait_note())

    def view(self, observed: Observed, call: Call) -> RunView:
        """Return the view of a run as it is. Reads files: call it off the event loop."""
        return run_view(self.service.store, observed, call.next_calls, self.caller)

    async def note(self, view: RunView | RunMeta, call: Call) -> None:
        """Note that the caller was shown a run. If it has gone without reading that, the run stays news."""
        if call.has_gone is not None and await call.has_gone():
            return
        self.shown.note(view.run_id, view.revision, ended=view.status.is_terminal)
        if view.status.is_terminal and not self.caller.is_child:
            await asyncio.to_thread(store.mark_seen, self.service.store.paths.run(view.run_id))

    async def view_after_answer(
        self, observed: Observed, message_id: str, call: Call, default: float
    ) -> RunView:
        """Return a child's view of its question: answered, expired, or still open."""

        def is_closed(run: Observed) -> bool:
            return not run.meta.is_pending(message_id) or run.meta.status.is_terminal

        wait = Wait(call.wait_seconds(default), progress=call.progress)
        observed = await self._when(observed, is_closed, wait)
        view = await asyncio.to_thread(
            view_for, self.service, observed, call.next_calls, message_id, self.caller, is_asker=True
        )
        return view if is_closed(observed) else with_note(view, call.wait_note(default))

    async def _when(self, observed: Observed, is_enough: Callable[[Observed], bool], wait: Wait) -> Observed:
        """Return a run as soon as the wanted condition holds, or as it is when the time is over."""
        if wait.seconds <= 0 or is_enough(observed):
            return observed
        run_id, latest = observed.meta.run_id, observed

        def look() -> Observed | None:
            nonlocal latest
            latest = observe(self.service.store, run_id)
            return latest if is_enough(latest) else None

        await self.waited(look, replace(wait, run_ids=frozenset({run_id})))
        return latest


def with_note(view: RunView, note: str | None) -> RunView:
    """Return a view with a note if its wait was cut."""
    return view if note is None else view.model_copy(update={"wait_note": note})


# -- The description of a tool: a `ToolSpec` holds everything needed by any door.


Answer = dict[str, Any]
LIST = "result"
"""The only key of an answer that is a list: structured content has to be an object."""
Handler = Callable[[ToolContext, Call], Awaitable[Answer]]
ToolRole = Literal["parent", "child"]
"""`parent`: a caller that may start runs; `child`: a run that may start none."""


@dataclass(frozen=True)
class ToolHints:
    """What clients show of a tool or decide by; None leaves it to the protocol's default."""

    read_only: bool = False
    destructive: bool | None = False
    idempotent: bool | None = False
    open_world: bool = False


@dataclass(frozen=True, eq=False)
class ToolSpec:
    """A tool: its texts, the schemas of its arguments and of its answer, its roles, and its handler."""

    name: str
    title: str
    description: str
    arguments: Schema
    """What the arguments of a call must fit."""
    answer: Callable[[], Schema] | None
    """Returns the schema of the answer when somebody lists the tools; None if the tool shows none."""
    handler: Handler
    roles: frozenset[ToolRole] = frozenset({"parent"})
    hints: ToolHints = ToolHints()
    in_sight: bool = False
    """Whether a client that hides tools shall show this one: a view may name it as the next call."""

    @property
    def shown_arguments(self) -> Schema:
        """The schema of the arguments as a model sees it: every parent pays for each byte.

        Bounds are checked at the call, whose refusal names them.
        """
        properties = {
            name: {k: v for k, v in each.items() if k not in _NOT_SHOWN or isinstance(v, dict)}  # a type
            for name, each in self.arguments["properties"].items()
        }
        shown = {key: value for key, value in self.arguments.items() if key not in _NOT_SHOWN and value != []}
        return shown | {"properties": properties}

    @property
    def model_bytes(self) -> int:
        """How much a model reads of this tool: its name, its description and the schema of its arguments."""
        seen = {"name": self.name, "description": self.description, "input_schema": self.shown_arguments}
        return len(json.dumps(seen, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


# -- JSON Schemas of the answers of tools.


def answer(required: list[str], **properties: Schema) -> Schema:
    """Return the schema of an answer that is no record."""
    return {"type": "object", "properties": properties, "required": required}


_READ_OTHERWISE = re.compile(
    r'"(?:pattern|id)": "|"patternProperties": |"multipleOf": [\d-]|"nullable": [tf]|"enum": \[]'
    r'|"\$ref": "https?://json-schema.org/'
)
"""A client of JavaScript that cannot compile one schema loses the whole list; some clients divide floats."""


def output_answer(schema: JsonSchema) -> Schema:
    """Return the schema of a view whose `output` has a schema. `check_status` has that of the whole view.

    Clients read it as one of 2020-12, so an output with a schema of an older draft has none there; nor has
    one with a rule that they may judge in another way.
    """
    is_common = validator_name(schema) == NEWEST and not _READ_OTHERWISE.search(json.dumps(schema))
    output = embedded(schema, "#/properties/output") if is_common else {}
    return {"type": "object", "properties": {"runId": {"type": "string"}, "output": output}}


# -- Pages of a list, by cursors that name the list they are of.


_CURSOR = re.compile(r"([0-9a-f]{16})-([0-9]{1,9})", re.ASCII)


def page_of(items: Sequence[T], digest: str, size: int, cursor: str | None) -> tuple[Sequence[T], str | None]:
    """Return the page that a cursor names, or the first, and the cursor of the next page if there is one.

    `digest` is that of the whole list.

    Raises:
        BadArgument: the cursor is not of this list, which may have changed since.
    """
    start = 0
    if cursor is not None:
        found = _CURSOR.fullmatch(cursor)
        if found is None or found[1] != digest or int(found[2]) >= len(items):
            raise BadArgument(
                "The cursor is not of this list, or the list has changed: begin without a cursor."
            )
        start = int(found[2])
    end = start + size
    return items[start:end], f"{digest}-{end}" if end < len(items) else None


def digest_of(texts: Sequence[str]) -> str:
    """Return a short text that differs for different lists."""
    digest = blake2b(digest_size=8)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()
