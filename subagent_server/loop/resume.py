"""Taking a conversation up again: from the runs that had it so far to the one that continues it.

1. The messages that are left become a conversation that the API takes (`repaired`). Roles alternate, a user
   begins, every tool call has its result at the beginning of the message behind it, and each result has its
   call. A gap that a kill, a full disk or a damaged file has left is filled with words about it. A reply
   that the API has paused is followed by its rest, without a word between.
2. A tool call without a result gets one (`DanglingCalls`), and none is made again. Whether a call had begun
   is known, because a run records the message that makes it and then its beginning before anything happens.
   So a call is finished (its result is passed on), never begun, or unknown.
3. A call that the API makes itself is kept with its result, or left out (`without_cut_calls`). Two kinds may
   lack a result: a call in a reply that the API has paused, which is answered where the reply continues; and
   a call together with calls of the agent's own tools, which is answered in the next reply. The API refuses
   any other call without a result, and a result without its call.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from subagent_server.loop.loop import result_block
from subagent_server.loop.request import THOUGHTS, Block, Message, joined_text, task_blocks
from subagent_server.loop.runner import Outcome, completed
from subagent_server.loop.web import SERVER_CALL, calls_without_result, is_server_result
from subagent_server.run.agent_definition import CODE_TOOL_NAME, RUN_AGENT_NAME
from subagent_server.run.history import PreviousCall, PreviousChild, PreviousRun
from subagent_server.run.records import Message as Question
from subagent_server.run.states import MessageStatus, Status, cut
from subagent_server.toolbox.basic import NO_ANSWER, AskParent, FinalAnswer, before_marker
from subagent_server.toolbox.run_context import RunContext

# -- the calls of the API itself

_LEFT_OUT = {"type": "text", "text": "(A search of the web was cut here.)"}


def without_cut_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation without calls of the API that were cut, and without results of lost ones."""
    open_calls: set[Any] = set()
    whole: list[Message] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            whole.append(message)
            continue
        content = _answering(message["content"], open_calls)
        waiting = {call["id"] for call in calls_without_result(content)}
        if not _may_wait(messages, number):
            content = [b for b in content if not (b["type"] == SERVER_CALL and b["id"] in waiting)]
            waiting = set()
        open_calls = waiting
        whole.append(
            message if content == message["content"] else {**message, "content": content or [_LEFT_OUT]}
        )
    return whole


def _answering(content: list[Block], open_calls: set[Any]) -> list[Block]:
    """Return the blocks of a reply, of the results only those whose call is open before them."""
    known = set(open_calls)
    kept: list[Block] = []
    for block in content:
        if block["type"] == SERVER_CALL:
            known.add(block["id"])
        elif is_server_result(block):
            if block["tool_use_id"] not in known:
                continue
            known.remove(block["tool_use_id"])
        kept.append(block)
    return kept


def _may_wait(messages: Sequence[Message], number: int) -> bool:
    """Whether this reply may have calls without results: it continues, or calls the agent's own tools."""
    after = messages[number + 1 : number + 2]
    return bool(calls_of(messages[number])) or not after or after[0]["role"] == "assistant"


# -- calls without results


NOT_BEGUN = "This call was never begun, because the run ended before. Make it again if you still want it."
UNKNOWN = (
    "It is not known what this call did: the run ended while it was under way, before its end was recorded. "
    "It may have taken effect, wholly or in part, and it was not repeated. Find out what it did before you "
    "decide whether to make it again."
)
NOT_STORED = (
    "The run ended before this answer was stored. Call final_answer again with the whole result when you are "
    "done."
)
CUT_PROGRAM = (
    "The run ended while this program was under way, and it was not run again. What it did besides its tool "
    "calls is not known. "
)
_RUNS_OF_PROGRAM = (
    "It had called agents, in runs {runs}: a program that makes the same calls gets their results, and pays "
    "for none again. "
)
_LOST_RESULT = "This call has ended {how}, but the run ended before its whole result was stored."
_UNANSWERED = "The run ended before an answer to this question came. Ask again if you still need to know."
_MOST_LOST_CALLS = 50
_LOST_CHARACTERS = 2_000
_LINE_CHARACTERS = 300


class DanglingCalls:
    """The calls of one run that its conversation has no results for.

    `unknown` names the tools of the calls whose end is not known.
    """

    def __init__(self, previous: PreviousRun) -> None:
        self.unknown: list[str] = []
        self.left_open = False
        """Whether `answer` or `lost` met a call whose end is not recorded."""
        self._previous = previous
        self._questions = list(previous.questions)

    def answer(self, call: Block) -> Block:
        """Return the result block for a call without one."""
        text, is_error = self._result(call)
        return result_block(call["id"], _text(text), is_error=is_error)

    def lost(self, known: Iterable[str]) -> str | None:
        """Return a text on the calls in the journal whose messages are lost, or None."""
        ids = set(known)
        calls = [call for call in self._previous.calls.values() if call.call_id not in ids]
        if not calls:
            return None
        self.left_open = True
        lines = [self._lost_line(call) for call in calls[:_MOST_LOST_CALLS]]
        if len(calls) > _MOST_LOST_CALLS:
            lines.append(f"- and {len(calls) - _MOST_LOST_CALLS} more, of which the same is known.")
        return "\n".join(
            [
                "Messages of this conversation are lost. In them you made these calls; none was repeated:",
                *lines,
            ]
        )

    def _result(self, call: Block) -> tuple[str, bool]:
        if call["name"] == FinalAnswer.name:
            return NOT_STORED, True
        recorded = self._previous.calls.get(call["id"])
        if recorded is not None and recorded.finished:
            return self._result_of_finished(recorded)
        if call["name"] == AskParent.name and (recorded is not None or not self._previous.tells_all):
            return self._result_of_question(call, recorded)
        self.left_open = True
        if recorded is None and self._previous.tells_all:
            return NOT_BEGUN, True
        self.unknown.append(call["name"])
        if recorded is not None and recorded.name == CODE_TOOL_NAME:
            return CUT_PROGRAM + calls_of_program(recorded), True
        return UNKNOWN + self._started_by(call), True

    def _result_of_finished(self, call: PreviousCall) -> tuple[str, bool]:
        if call.whole:
            return call.text, call.is_error
        how = "with an error" if call.is_error else "without an error"
        kept = f" This is left of it:\n{call.text}" if call.text.strip() else ""
        return _LOST_RESULT.format(how=how) + kept, True

    def _result_of_question(self, call: Block, recorded: PreviousCall | None) -> tuple[str, bool]:
        message = self._question(call, recorded)
        if message is not None and message.answer_content is not None:
            return message.answer_content, False
        if message is not None and message.message_status is MessageStatus.EXPIRED:
            return NO_ANSWER, False
        self.left_open = True
        return _UNANSWERED, True

    def _question(self, call: Block, recorded: PreviousCall | None) -> Question | None:
        """Return the question of a call, each one only once: the latest with its words since it began."""
        began = recorded.began_at if recorded is not None else None
        for message in reversed(self._questions):
            is_late = began is None or message.question_timestamp >= began
            if is_late and message.question_content == call["input"].get("question"):
                self._questions.remove(message)
                return message
        return None

    def _started_by(self, call: Block) -> str:
        """Return a sentence on the run that a call has started; empty if it has started none."""
        for child in reversed(self._previous.children):
            if _starts(call, child) and child.prompt == call["input"].get("prompt"):
                return f" It had started run {child.run_id}, which is {child.status.value}."
        return ""

    def _lost_line(self, call: PreviousCall) -> str:
        arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
        head = f"- {call.name} {cut(arguments, _LOST_CHARACTERS)}: "
        if not call.finished:
            self.unknown.append(call.name)
            if call.name == CODE_TOOL_NAME:
                return f"{head}{CUT_PROGRAM}{calls_of_program(call)}"
            return head + "it is not known what it did; find out before you make it again."
        how = "ended with an error" if call.is_error else "ended without an error"
        return head + (f"{how}: {cut(call.text, _LOST_CHARACTERS)}" if call.text.strip() else f"{how}.")


def calls_of_program(program: PreviousCall) -> str:
    """Return what is known of the calls that a program had made, for the model."""
    runs = ", ".join(list(dict.fromkeys(program.runs))[:_MOST_LOST_CALLS])
    agents_called = _RUNS_OF_PROGRAM.format(runs=runs) if runs else ""
    if not program.made:
        return agents_called or "It had called no tool."
    lines = [f"{number}. {_line_of(made)}" for number, made in sorted(program.made.items())]
    more = len(lines) - _MOST_LOST_CALLS
    shown = [*lines[:_MOST_LOST_CALLS], *([f"... and {more} more calls"] if more > 0 else [])]
    return "\n".join([f"{agents_called}It had made these tool calls, and none was repeated:", *shown])


def _line_of(made: PreviousCall) -> str:
    arguments = json.dumps(made.arguments, ensure_ascii=False, default=str)
    head = f"{made.name} {arguments[:_LINE_CHARACTERS]}"
    if not made.finished:
        return f"{head}: it is not known what it did; find out before you make it again."
    return f"{head}: {'failed' if made.is_error else 'done'}: {made.text[:_LINE_CHARACTERS]}"


def _starts(call: Block, child: PreviousChild) -> bool:
    """Whether a call is one that starts the agent of a child."""
    if call["name"] == RUN_AGENT_NAME:
        return call["input"].get("agent") in (child.agent_name, child.tool_name)
    return bool(call["name"] == child.tool_name)


# -- the repair


STOP_REASON = "stopReason"
"""Why the model ended a message: kept in a transcript, never sent."""

_ONLY_FROM_USERS = frozenset({"tool_result", "image", "document"})
_ONLY_FROM_MODELS = frozenset({"tool_use", SERVER_CALL, *THOUGHTS})
_PAUSED = "pause_turn"
_GAP = {"type": "text", "text": "(What was written here is lost. Continue.)"}


def repaired(
    messages: Iterable[Message],
    first: Sequence[Block],
    answer: Callable[[Block], Block],
    *,
    keep_thoughts: bool = True,
) -> list[Message]:
    """Return the whole conversation of which `messages` are left.

    `first` are the blocks of the task, for a conversation whose beginning is lost; `answer` makes the result
    block of a call without one. Without `keep_thoughts` they are left out: another model cannot take them.
    """
    repair = _Repair(first, answer, keep_thoughts)
    before: Message | None = None
    for message in messages:
        if message != before:  # a disk may report a refusal and keep the line all the same
            repair.add(message)
        before = message
    return repair.closed()


def calls_of(message: Message) -> list[Block]:
    """Return the tool calls of a message."""
    return [block for block in message["content"] if block["type"] == "tool_use"]


def is_paused(message: Message) -> bool:
    """Whether the API has paused a reply, to be continued without a word between."""
    paused = message.get("role") == "assistant" and message.get(STOP_REASON) == _PAUSED
    return paused and not calls_of(message)


def sendable(messages: Iterable[Message]) -> list[Message]:
    """Return the messages as the API takes them, without the fields that are only for the transcript."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


class _Repair:
    """The conversation so far, always valid but for calls of its last message that have no results yet."""

    def __init__(self, first: Sequence[Block], answer: Callable[[Block], Block], keep_thoughts: bool) -> None:
        self._first = first
        self._answer = answer
        self._dropped = frozenset() if keep_thoughts else THOUGHTS
        self._seen: set[str] = set()
        self._whole: list[Message] = []

    def add(self, message: Message) -> None:
        """Add the usable part of a message."""
        if message.get("role") == "assistant":
            self._add_reply(message)
        elif message.get("role") == "user":
            self._add_words(message)

    def closed(self) -> list[Message]:
        """Return the conversation with every call answered."""
        if not self._whole:
            self._begin()
        if self._last_calls():
            self._whole.append({"role": "user", "content": self._results([])})
        return self._whole

    def _add_reply(self, message: Message) -> None:
        goes_on = bool(self._whole) and is_paused(self._whole[-1])
        content = [b for b in self._usable(message, _ONLY_FROM_USERS) if self._is_new(b)]
        while content and content[-1]["type"] in THOUGHTS:
            content.pop()  # a message may not end with a thought
        if not content:
            return
        if not self._whole:
            self._begin()
        if self._whole[-1]["role"] == "assistant" and not goes_on:
            gap = self._results([]) if self._last_calls() else [_GAP]
            self._whole.append({"role": "user", "content": gap})
        kept = {STOP_REASON: message[STOP_REASON]} if isinstance(message.get(STOP_REASON), str) else {}
        self._whole.append({"role": "assistant", "content": content, **kept})

    def _add_words(self, message: Message) -> None:
        content = [b for b in self._usable(message, _ONLY_FROM_MODELS) if not is_server_result(b)]
        answers = [block for block in content if block["type"] == "tool_result"]
        words = [block for block in content if block["type"] != "tool_result"]
        if self._whole and self._whole[-1]["role"] == "user":
            self._whole[-1]["content"] += words
            return
        results = self._results(answers) if self._last_calls() else []
        if results or words:
            self._whole.append({"role": "user", "content": [*results, *words]})

    def _results(self, results: list[Block]) -> list[Block]:
        by_id = {block["tool_use_id"]: block for block in results}
        return [by_id.get(call["id"]) or self._answer(call) for call in self._last_calls()]

    def _last_calls(self) -> list[Block]:
        if not self._whole or self._whole[-1]["role"] != "assistant":
            return []
        return calls_of(self._whole[-1])

    def _begin(self) -> None:
        self._whole.append({"role": "user", "content": list(self._first) or [_GAP]})

    def _usable(self, message: Message, foreign: frozenset[str]) -> list[Block]:
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = content if isinstance(content, list) else []
        return [b for b in blocks if _is_sound(b) and b["type"] not in foreign | self._dropped]

    def _is_new(self, block: Block) -> bool:
        """Whether a call is seen for the first time: ids are unique in a conversation."""
        if block["type"] != "tool_use":
            return True
        is_new = block["id"] not in self._seen
        self._seen.add(block["id"])
        return is_new


def _is_sound(block: Any) -> bool:
    """Whether a block has the fields of its kind; blocks of new kinds pass."""
    if not isinstance(block, dict):
        return False
    match block.get("type"):
        case "text":
            return isinstance(block.get("text"), str) and bool(block["text"].strip())
        case "tool_use" | "server_tool_use":
            texts = (block.get("id"), block.get("name"))
            return all(isinstance(t, str) and t for t in texts) and isinstance(block.get("input"), dict)
        case "tool_result":
            return isinstance(block.get("tool_use_id"), str)
        case kind:
            return isinstance(kind, str) and (
                not is_server_result(block) or isinstance(block.get("tool_use_id"), str)
            )


# -- the conversation

_COMPLETE = frozenset({"end_turn", "stop_sequence"})
_CUT_SHORT = "Your last message was cut at the limit of its length. Continue where it was cut."
_NO_ANSWER_YET = "You have not given your result. Continue, and call final_answer when you are done."
_GO_ON = "The run ended here. Continue your task."


@dataclass(frozen=True)
class Opening:
    """How a run that continues another begins.

    `words` are the blocks of its own prompt and inputs; without any it continues at the cut of the other.
    `model` is its model, `final` its structured answer if it has one; `may_delegate` is True if it may
    start agents, `by_contract` if it works by a contract.
    """

    words: Sequence[Block]
    model: str
    final: FinalAnswer | None = None
    may_delegate: bool = False
    by_contract: bool = False


@dataclass(frozen=True)
class Resumed:
    """A conversation to continue. `messages` are as the transcript keeps them.

    `text` is the model's last text; `unknown` are the tools of calls whose end is not known. With an
    `outcome` the work was done already, and only its end had not been written.
    """

    messages: list[Message]
    text: str = ""
    unknown: list[str] = field(default_factory=list)
    outcome: Outcome | None = None


async def resume(previous: Sequence[PreviousRun], opening: Opening) -> Resumed:
    """Return the conversation of `previous`, oldest run first, continued with `opening`.

    Only the first of them may have a transcript; the others were over before they had begun.
    """
    messages: list[Message] = list(previous[0].messages)
    unknown: list[str] = []
    dangling = DanglingCalls(previous[0])
    for number, run in enumerate(previous):
        dangling = DanglingCalls(run)
        first = task_blocks(run.prompt, run.inputs)
        keep = run.model in (None, opening.model)
        messages = repaired(messages, first, dangling.answer, keep_thoughts=keep)
        if number > 0:
            _say(messages, first)
        known = (call["id"] for message in messages for call in calls_of(message))
        _say(messages, _text(dangling.lost(known)))
        unknown += dangling.unknown
    outcome = await _reached_outcome(messages, previous[0], dangling, opening)
    if outcome is not None:
        return Resumed(without_cut_calls(messages), _last_text(messages), unknown, outcome)
    _say(messages, _text(_stopped_children(previous, opening)))
    _say(messages, opening.words)
    if messages[-1]["role"] == "assistant" and not is_paused(messages[-1]):
        _say(messages, _text(_onward(messages[-1], opening)))
    messages = without_cut_calls(messages)
    return Resumed(messages, "" if opening.words else _last_text(messages), unknown)


async def _reached_outcome(
    messages: list[Message], run: PreviousRun, dangling: DanglingCalls, opening: Opening
) -> Outcome | None:
    """Return the outcome that the conversation has reached already, if only the end of the run is missing.

    A final answer that was not stored is taken now. If it cannot be, the model has to answer again.
    """
    if run.status is Status.COMPLETED:
        return None
    if messages[-1]["role"] == "assistant":
        reply = messages[-1]
        is_result = reply.get(STOP_REASON) in _COMPLETE and opening.final is None and not opening.words
        if not is_result or not joined_text(reply["content"]):
            return None
        text = _last_text(messages)
        return completed(before_marker(text)) if opening.by_contract else Outcome(text)
    return await _answered(messages, dangling, opening)


async def _answered(messages: list[Message], dangling: DanglingCalls, opening: Opening) -> Outcome | None:
    if len(messages) < 2 or messages[-2]["role"] != "assistant":
        return None
    calls, results = calls_of(messages[-2]), messages[-1]["content"]
    answers = {call["id"]: call for call in calls if call["name"] == FinalAnswer.name}
    if not answers:
        return None
    others_ended = len(results) == len(calls) and not dangling.left_open
    may_take = opening.final is not None and others_ended and not opening.words
    for number, result in enumerate(results):
        call = answers.get(result.get("tool_use_id", ""))
        if call is None:
            continue
        if may_take and opening.final is not None:
            taken = await opening.final.call(call["input"])
            results[number] = result_block(call["id"], taken.content, is_error=taken.is_error)
        elif not result.get("is_error"):
            results[number] = dangling.answer(call)
    if opening.final is None or not opening.final.has_answer:
        return None
    return Outcome(_last_text(messages), opening.final.answer, has_output=True)


def _onward(reply: Message, opening: Opening) -> str:
    if reply.get(STOP_REASON) == "max_tokens":
        return _CUT_SHORT
    return _GO_ON if opening.final is None else _NO_ANSWER_YET


def _stopped_children(previous: Sequence[PreviousRun], opening: Opening) -> str | None:
    """Return a text on the runs that were stopped with their parent, or None."""
    stopped = [child for run in previous for child in run.children if child.status is Status.STOPPED]
    if not stopped or not opening.may_delegate:
        return None
    named = ", ".join(f"{child.run_id} ({child.agent_name})" for child in stopped)
    return f"Of the runs that you had started, these were stopped: {named}. continue_run continues one."


def _say(messages: list[Message], blocks: Sequence[Block]) -> None:
    """Add blocks of a user: to the last message if it is a user's."""
    if not blocks:
        return
    if messages[-1]["role"] == "user":
        messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], *blocks]}
    else:
        messages.append({"role": "user", "content": list(blocks)})


def _text(text: str | None) -> list[Block]:
    return [{"type": "text", "text": text}] if text and text.strip() else []


def _last_text(messages: Sequence[Message]) -> str:
    """Return the last text of the model since the last words of a user."""
    for number in range(len(messages) - 1, -1, -1):
        if text := joined_text(messages[number]["content"]):
            if messages[number]["role"] != "assistant":
                return ""
            # replies that the API has paused are the beginning of the next one
            paused = list(takewhile(is_paused, reversed(messages[:number])))
            texts = [joined_text(message["content"]) for message in reversed(paused)]
            return "\n\n".join([*filter(None, texts), text])
    return ""


def start_conversation(run: RunContext, opening: Opening) -> Resumed:
    """Return the start of a new conversation, written to the transcript of `run`."""
    first = {"role": "user", "content": list(opening.words)}
    run.remember(first)
    return Resumed([first])


async def resume_conversation(run: RunContext, previous: Sequence[PreviousRun], opening: Opening) -> Resumed:
    """Return the conversation of `previous`, oldest run first, as the API takes it.

    The transcript of `run` has it whole from its first moment, so that it can be continued without those
    before it.
    """
    resumed = await resume(previous, opening)
    run.adopt(resumed.messages)
    if resumed.unknown:
        message = (
            f"It is not known what these calls of run {previous[-1].run_id} did, because it ended in the "
            f"middle of them: {', '.join(resumed.unknown)}. The model is told, and repeats none by itself."
        )
        run.record("warning", message=message)
    return replace(resumed, messages=sendable(resumed.messages))
