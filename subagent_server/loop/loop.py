"""Model, tools, model, tools, until there is a result or a limit: the whole of it fits a screen.

The state is one list of messages. A mistake of the model becomes a message that it reads: the calls of a turn
are made fit to be run (unique ids, none that was cut, not too many), and a fault of a call is its `problem`,
which the model reads instead of a result.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from subagent_server.loop.model import (
    CONTEXT_HINT,
    Model,
    ModelReply,
    ModelSettings,
    Prices,
    Retry,
    ToolCall,
    UsageMeter,
)
from subagent_server.loop.request import THOUGHTS, Block, Message
from subagent_server.loop.runner import EMPTY_REPLY, Outcome, completed
from subagent_server.loop.web import WebTools, record_server_use
from subagent_server.run.errors import CallerError, RunRefused, choices, shorten
from subagent_server.run.journal import count
from subagent_server.run.records import Failure, Usage
from subagent_server.run.stderr import lack_of_room
from subagent_server.toolbox.basic import AgentComplete, FinalAnswer, before_marker
from subagent_server.toolbox.outputs import KeptOutputs, is_too_long
from subagent_server.toolbox.run_context import Permissions, RunContext, is_asked, name_asked
from subagent_server.toolbox.tool import Tool, ToolResult

# -- the calls of a turn

MOST_CALLS = 1_000
"""How many calls of one turn are run; the others are refused."""
MOST_AT_ONCE = 64
"""How many calls of one turn run at the same time; the others wait for their turn."""

TURN_CHARACTERS = 600_000
"""How much text all results of a turn may have together: the model has to read it in one piece."""
RESULT_CHARACTERS = 60_000
"""More than any built-in tool returns, so that no result is cut twice."""
LEAST_CHARACTERS = 500

_CUT = "The reply was cut in the middle of this call, so it was not run: send it again, in smaller pieces."
_TOO_MANY = f"Not run: one turn may have {MOST_CALLS:,} calls. Make fewer at a time."


def normalise(reply: ModelReply, messages: Sequence[Message]) -> None:
    """Prepare `reply` for the conversation: unique ids, and a `problem` for each call that may not run."""
    _make_unique(reply, _ids(messages))
    last = reply.content[-1] if reply.content else {}
    if reply.stop_reason == "max_tokens" and last.get("type") == "tool_use":
        reply.calls[-1] = replace(reply.calls[-1], problem=_CUT)
    reply.calls[MOST_CALLS:] = [replace(call, problem=_TOO_MANY) for call in reply.calls[MOST_CALLS:]]


def room_of_each(calls: Sequence[ToolCall]) -> int:
    """Return how many characters each result of a turn may have."""
    return max(LEAST_CHARACTERS, min(RESULT_CHARACTERS, TURN_CHARACTERS // max(1, len(calls))))


def _ids(messages: Sequence[Message]) -> Counter[str]:
    return Counter(
        block["id"]
        for message in messages
        if message["role"] == "assistant" and isinstance(message["content"], list)
        for block in message["content"]
        if block.get("type") == "tool_use"
    )


def _without_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation as another model takes it; a message of thoughts alone is left out."""
    kept = [
        message | {"content": [block for block in message["content"] if block["type"] not in THOUGHTS]}
        for message in messages
    ]
    return [message for message in kept if message["content"]]


def _make_unique(reply: ModelReply, seen: Counter[str]) -> None:
    """Make the id of each call unique. Blocks and calls of a reply are in the same order."""
    blocks = [block for block in reply.content if block.get("type") == "tool_use"]
    for number, (block, call) in enumerate(zip(blocks, reply.calls, strict=True)):
        name = call.call_id
        while seen[name]:
            name = f"{call.call_id}_{seen[call.call_id] + 1}"
            seen[call.call_id] += 1
        seen[name] += 1
        if name != call.call_id:
            block["id"] = name
            reply.calls[number] = replace(call, call_id=name)


# -- the loop

_DEAD_ENDS = {
    "max_tokens": ("The reply was cut at the limit of `maxTokens`.", "Raise `maxTokens` in the agent file."),
    "refusal": ("The model refused to continue.", "Look at run.log, and word the task differently."),
    "model_context_window_exceeded": (
        "The conversation no longer fits the model's context window.",
        CONTEXT_HINT,
    ),
}

_LAST_WORDS = ("refusal", "model_context_window_exceeded")
"""After these nothing continues: the calls of such a reply are not run."""


@dataclass
class Loop:
    """One agent at work. `usage` and `text_so_far` are true at every moment, also when it is cancelled."""

    run: RunContext
    model: Model
    system: list[Block]
    tools: Sequence[Tool]
    max_turns: int
    final: FinalAnswer | None = None
    meter: UsageMeter = field(default_factory=UsageMeter)
    outputs: KeptOutputs = field(default_factory=KeptOutputs)
    text: str = ""
    web: WebTools = field(default_factory=WebTools)
    ask: Sequence[str] = ()
    """The tools that need a permission each time, as the agent file names them."""
    other_models: list[tuple[ModelSettings, Prices | None]] = field(default_factory=list)
    """Those that are still to be tried if `model` fails."""
    warnings: list[str] = field(default_factory=list)
    """What people should know of how the run worked."""
    _before_pause: str = ""
    _last_text: str = ""
    """The text of the last reply, with its text from before the API paused it."""

    def __post_init__(self) -> None:
        self._permissions = Permissions(self.run)
        self._definitions = [tool.definition() for tool in self.tools]

    @property
    def usage(self) -> Usage:
        """The usage of the run so far."""
        return self.meter.usage

    @property
    def text_so_far(self) -> str:
        """The last complete text, then the partial text of an interrupted reply."""
        return "\n\n".join(text for text in (self.text, self.model.partial_text) if text)

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends: its work so far is paid for, and kept."""
        is_final = self.final is not None and self.final.has_answer
        output = self.final.answer if self.final is not None and is_final else None
        outcome = Outcome(self.text_so_far, output, has_output=is_final, failure=failure)
        if (completion := self._completion) is not None and completion.has_answer:
            outcome = replace(outcome, summary=completion.summary, payload=completion.payload)
        return self._sourced(outcome)

    async def work(self, messages: list[Message]) -> Outcome:
        """Carry the conversation on to its end.

        Raises:
            RunOver: the run was ended from outside.
            RunRefused: it cannot continue, for the reason its code names.
        """
        return self._sourced(await self._carried_on(messages))

    async def _carried_on(self, messages: list[Message]) -> Outcome:
        if messages[-1]["role"] == "assistant":  # the API has paused this reply, and the next one ends it
            self._before_pause = self.text
        while True:
            if self.meter.turns >= self.max_turns:
                refusal = self.final.last_refusal if self.final is not None else ""
                without = f" without a valid final_answer{refusal}" if refusal else ""
                raise RunRefused(
                    "max_turns",
                    f"The agent used all of its {count(self.max_turns, 'turn')}{without}.",
                    "Raise `maxTurns` (agent file or option), or give it a smaller task.",
                )
            reply = await self._turn(messages)
            if reply.stop_reason in _LAST_WORDS or not (reply.calls or reply.stop_reason == "pause_turn"):
                return self._ended(reply)
            if reply.calls:
                results = await self._use_tools(reply.calls)
                self._say(messages, {"role": "user", "content": [*results, *self.web.notices()]})
            if self.final is not None and self.final.has_answer:
                return Outcome(self.text, self.final.answer, has_output=True)
            if (completion := self._completion) is not None and completion.has_answer:
                return completed(completion.summary, completion.payload)

    @property
    def _completion(self) -> AgentComplete | None:
        """The tool that ends the work of an agent by contract."""
        return next((tool for tool in self.tools if isinstance(tool, AgentComplete)), None)

    async def _turn(self, messages: list[Message]) -> ModelReply:
        self.run.checkpoint()
        definitions = [*self._definitions, *self.web.definitions(messages)]
        prices, searches = self.meter.prices, self.web.searches_left
        for_searches = prices.web_search * searches if prices is not None and searches else Decimal(0)
        async with self.run.model_call(self.usage, for_searches):
            self.run.record("turn", turn=self.meter.turns + 1)
            reply = await self._reply(messages, definitions)
            normalise(reply, messages)
            self.model.context.record_edits(reply.edits, self.run.record)
            self.meter.count_turn(len(reply.calls))
            self._record_usage()
        for thought in reply.thoughts:
            self.run.record("thought", text=thought)
        record_server_use(reply.content, self.run.record)
        self.web.take(reply.content)
        self._last_text = "\n\n".join(text for text in (self._before_pause, reply.text) if text)
        self.text = self._last_text or self.text
        if reply.text:
            self.run.record("text", text=reply.text)
        if content := reply.sendable():
            self._say(messages, {"role": "assistant", "content": content}, reply.stop_reason)
        # The text of a reply that the API has paused is kept: the next reply belongs to it.
        is_paused = reply.stop_reason == "pause_turn" and not reply.calls
        self._before_pause = self._last_text if is_paused else ""
        if is_paused:
            self.web.check_pause()
        return reply

    async def _reply(self, messages: list[Message], definitions: list[Block]) -> ModelReply:
        """Return the reply of the model; if it fails, that of the next model, which the run then keeps."""
        while True:
            try:
                return await self.model.reply(
                    self.system, messages, definitions, self._before_retry, self.meter.charge
                )
            except RunRefused as refusal:
                if refusal.failure_code != "model_error" or not self.other_models:
                    raise
                self._record_usage()  # the cost of the model that failed
                settings, self.meter.prices = self.other_models.pop(0)
                warning = f"The next model, {settings.model}, is tried: {refusal.sentence}"
                self.run.record("warning", message=warning, model=settings.model)
                self.model.use(settings)
                messages[:] = _without_thoughts(messages)

    def _sourced(self, outcome: Outcome) -> Outcome:
        return replace(outcome, sources=self.web.sources, warnings=self.warnings)

    def _record_usage(self) -> None:
        self.run.record("usage", **self.usage.to_wire())

    async def _before_retry(self, retry: Retry) -> None:
        self.run.retry_reason = retry.reason
        self._record_usage()  # a reply that broke off has cost something, and the next may too
        await self.run.check_budget(self.usage)
        self.run.record("warning", message=f"{retry.reason}; trying again in {retry.seconds:.1f} s")
        await (self.run.spare if (retry.busy or retry.asked) else self.run.pause)(retry.seconds)

    def _say(self, messages: list[Message], message: Message, stop_reason: str | None = None) -> None:
        messages.append(message)
        self.run.remember(message, stop_reason)

    def _ended(self, reply: ModelReply) -> Outcome:
        """Return the outcome of the run when the model has stopped calling tools."""
        if reply.stop_reason in _DEAD_ENDS:
            message, hint = _DEAD_ENDS[reply.stop_reason]
            return Outcome(self.text, failure=Failure(code="model_error", message=message, hint=hint))
        if self.final is not None:
            failure = Failure(
                code="invalid_output",
                message=f"The agent ended without a valid final_answer{self.final.last_refusal}.",
                hint="Its text is kept in result.json; tell it in its prompt to call final_answer.",
            )
            return Outcome(self.text, failure=failure)
        if not self.text:
            hint = "Look at run.log; continued with a prompt that asks for the result, it may give one."
            failure = Failure(code="agent_error", message="The agent ended without an answer.", hint=hint)
            return Outcome("", failure=failure)
        if not self._last_text:
            self.warnings.append(EMPTY_REPLY)
            self.run.record("warning", message=EMPTY_REPLY)
        if self._completion is not None:
            return completed(before_marker(self.text))
        return Outcome(self.text)

    # -- tools

    async def _use_tools(self, calls: Sequence[ToolCall]) -> list[Block]:
        """Run the calls of one turn at the same time, the sequential ones among them in their order."""
        by_name = {tool.name: tool for tool in self.tools}
        ordered = [c for c in calls if c.name in by_name and by_name[c.name].sequential]
        in_a_row = {call.call_id for call in ordered}
        results: dict[str, ToolResult] = {}
        slots, room = asyncio.Semaphore(MOST_AT_ONCE), room_of_each(calls)

        async def in_order() -> None:
            for call in ordered:
                results[call.call_id] = await self._use(call, by_name.get(call.name), room)

        async def alone(call: ToolCall) -> None:
            async with slots:
                results[call.call_id] = await self._use(call, by_name.get(call.name), room)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(in_order())
                for call in calls:
                    if call.call_id not in in_a_row:
                        group.create_task(alone(call))
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        return [
            result_block(call.call_id, (result := results[call.call_id]).content, is_error=result.is_error)
            for call in calls
        ]

    async def _use(self, call: ToolCall, tool: Tool | None, room: int) -> ToolResult:
        self.run.checkpoint()
        # A call begins when it is allowed: a continuation supposes that a call that has begun had an effect.
        refusal = await self._refusal(call, tool)
        self.run.record("tool_call", toolCallId=call.call_id, toolName=call.name, arguments=call.arguments)
        began = time.monotonic()
        if refusal is not None:
            result = ToolResult.failure(refusal)
        else:
            assert tool is not None
            with self.run.working():
                result = await self._called(tool, call.arguments, room)
        self.run.record(
            "tool_result",
            toolCallId=call.call_id,
            toolName=call.name,
            isError=result.is_error,
            text=result.text,
            seconds=round(time.monotonic() - began, 3),
            **({"exitCode": result.exit_code} if result.exit_code else {}),
            **({} if result.is_text else {"cut": True}),
        )
        return result

    async def _refusal(self, call: ToolCall, tool: Tool | None) -> str | None:
        """Return why a call is not run, or None if it is; the parent or a person is asked if need be."""
        if call.problem is not None:
            return call.problem
        if tool is None:
            known = choices("tools", call.name, sorted(tool.name for tool in self.tools))
            return f"There is no tool {shorten(call.name)}: {known}."
        if not is_asked(self.ask, tool, call.arguments):
            return None
        permission = await self._permissions.ask(name_asked(tool.name, call.arguments), call.arguments)
        return None if permission.allowed else permission.reason

    async def _called(self, tool: Tool, arguments: dict[str, Any], room: int) -> ToolResult:
        """Return the result of a tool, cut to its room. A machine without room is an error for the model."""
        try:
            result = await tool.call(arguments)
            if is_too_long(result, room):
                result = await asyncio.to_thread(self.outputs.shortened, result, room)
        except CallerError as error:
            return ToolResult.failure(error.sentence)
        except Exception as error:
            lack = lack_of_room(error)
            if lack is None:
                raise
            return ToolResult.failure(f"The call could not be carried out. {lack}")
        return result


def result_block(call_id: str, content: Sequence[Block], *, is_error: bool) -> Block:
    """Return the block of a result, without blank texts, which the API refuses: without any, `(empty)`."""
    kept = [b for b in content if b.get("type") != "text" or b["text"].strip()]
    kept = kept or [{"type": "text", "text": "(empty)"}]
    block: Block = {"type": "tool_result", "tool_use_id": call_id, "content": kept}
    return block | ({"is_error": True} if is_error else {})


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one cause to report: the tasks of a turn that fail together fail for the same reason."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
