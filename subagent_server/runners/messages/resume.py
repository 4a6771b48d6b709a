"""Taking a conversation up again: from the runs that had it so far to the one that carries it on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from subagent_server.domain.past import PastRun
from subagent_server.domain.states import Status
from subagent_server.runners.messages.dangling_calls import DanglingCalls
from subagent_server.runners.messages.prompt import task_blocks
from subagent_server.runners.messages.repair import STOP_REASON, Block, Message, calls_of, is_paused, repaired
from subagent_server.runners.messages.server_calls import without_cut_calls
from subagent_server.runners.messages.texts import joined_text
from subagent_server.runners.outcome import Outcome
from subagent_server.toolkit.final_answer import FinalAnswer

_COMPLETE = frozenset({"end_turn", "stop_sequence"})
_CUT_SHORT = "Your last message was cut at the limit of its length. Go on where it was cut."
_NO_ANSWER_YET = "You have not given your result. Go on, and call final_answer when you are done."
_GO_ON = "The run ended here. Go on with your task."


@dataclass(frozen=True)
class Opening:
    """How a run that carries another on begins.

    `words` are the blocks of its own prompt and inputs; without any it goes on at the cut of the other.
    `model` is its model, `final` its structured answer if it has one; `may_delegate` says whether it may
    start agents.
    """

    words: Sequence[Block]
    model: str
    final: FinalAnswer | None = None
    may_delegate: bool = False


@dataclass(frozen=True)
class Resumed:
    """A conversation to go on with. `messages` are as the transcript keeps them.

    `text` was said last, `unknown` are the tools of calls whose end is not known. With an `outcome`
    the work was done already, and only its end had not been written.
    """

    messages: list[Message]
    text: str = ""
    unknown: list[str] = field(default_factory=list)
    outcome: Outcome | None = None


async def resume(past: Sequence[PastRun], opening: Opening) -> Resumed:
    """Return the conversation of `past`, oldest run first, carried on with `opening`.

    Only the first of them may have a transcript; the others were over before they had begun.
    """
    messages: list[Message] = list(past[0].messages)
    unknown: list[str] = []
    dangling = DanglingCalls(past[0])
    for number, run in enumerate(past):
        dangling = DanglingCalls(run)
        first = task_blocks(run.prompt, run.inputs)
        keep = run.model in (None, opening.model)
        messages = repaired(messages, first, dangling.answer, keep_thoughts=keep)
        if number > 0:
            _say(messages, first)
        _say(messages, _text(dangling.lost(_known(messages))))
        unknown += dangling.unknown
    given = await _given(messages, past[0], dangling, opening)
    if given is not None:
        return Resumed(without_cut_calls(messages), _last_text(messages), unknown, given)
    _say(messages, _text(_stopped_children(past, opening)))
    _say(messages, opening.words)
    if messages[-1]["role"] == "assistant" and not is_paused(messages[-1]):
        _say(messages, _text(_onward(messages[-1], opening)))
    messages = without_cut_calls(messages)
    return Resumed(messages, "" if opening.words else _last_text(messages), unknown)


async def _given(
    messages: list[Message], run: PastRun, dangling: DanglingCalls, opening: Opening
) -> Outcome | None:
    """Return the outcome that the conversation has reached already, if only the end of the run is missing.

    A final answer that was not stored is taken now. If it cannot be, the model has to give it again.
    """
    if run.status is Status.COMPLETED:
        return None
    if messages[-1]["role"] == "assistant":
        return _said(messages, opening)
    return await _answered(messages, dangling, opening)


def _said(messages: Sequence[Message], opening: Opening) -> Outcome | None:
    reply = messages[-1]
    is_result = reply.get(STOP_REASON) in _COMPLETE and opening.final is None and not opening.words
    return Outcome(_last_text(messages)) if is_result and _text_of(reply) else None


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
            results[number] = await _taken(opening.final, call)
        elif not result.get("is_error"):
            results[number] = dangling.answer(call)
    if opening.final is None or not opening.final.given:
        return None
    return Outcome(_last_text(messages), opening.final.answer, has_output=True)


async def _taken(final: FinalAnswer, call: Block) -> Block:
    result = await final.call(call["input"])
    block: Block = {"type": "tool_result", "tool_use_id": call["id"], "content": result.content}
    return block | ({"is_error": True} if result.is_error else {})


def _onward(reply: Message, opening: Opening) -> str:
    if reply.get(STOP_REASON) == "max_tokens":
        return _CUT_SHORT
    return _GO_ON if opening.final is None else _NO_ANSWER_YET


def _stopped_children(past: Sequence[PastRun], opening: Opening) -> str | None:
    """Return a text on the runs that were stopped with their parent, or None."""
    stopped = [child for run in past for child in run.children if child.status is Status.STOPPED]
    if not stopped or not opening.may_delegate:
        return None
    named = ", ".join(f"{child.run_id} ({child.agent_name})" for child in stopped)
    return f"Of the runs that you had started, these were stopped: {named}. continue_run carries one on."


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


def _known(messages: Sequence[Message]) -> list[str]:
    return [call["id"] for message in messages for call in calls_of(message)]


def _last_text(messages: Sequence[Message]) -> str:
    """Return the last text of the model since the last words of a user."""
    for number in range(len(messages) - 1, -1, -1):
        if text := _text_of(messages[number]):
            if messages[number]["role"] != "assistant":
                return ""
            return "\n\n".join([*_paused_texts(messages[:number]), text])
    return ""


def _paused_texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the replies at the end of `messages` that the API has paused."""
    texts: list[str] = []
    for message in reversed(messages):
        if not is_paused(message):
            break
        texts.insert(0, _text_of(message))
    return [text for text in texts if text]


def _text_of(message: Message) -> str:
    """Return the text of a message as the loop puts it together."""
    return joined_text(message["content"])
