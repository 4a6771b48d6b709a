"""Results for the tool calls whose results a conversation lacks. No such call is made again.

Whether a call had begun is known, because a run records the message that makes it and then its beginning
before anything happens. So a call is finished (its result is given), never begun, or unknown.
"""

import json
from collections.abc import Iterable
from typing import Any

from subagent_server.domain.code_mode import CODE_TOOL_NAME
from subagent_server.domain.definitions import RUN_AGENT_NAME
from subagent_server.domain.past import PastCall, PastChild, PastProgramCall, PastRun
from subagent_server.domain.records import Message
from subagent_server.domain.states import MessageStatus
from subagent_server.toolkit.ask_parent import NO_ANSWER, AskParent
from subagent_server.toolkit.final_answer import FinalAnswer

Block = dict[str, Any]

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
_LOST_RESULT = "This call has ended {how}, but the run ended before its whole result was stored."
_UNANSWERED = "The run ended before an answer to this question came. Ask again if you still need to know."
_MOST_LOST_CALLS = 50
_LOST_CHARACTERS = 2_000
_LINE_CHARACTERS = 300


class DanglingCalls:
    """The calls of one run that its conversation has no results for.

    `unknown` names the tools of the calls whose end is not known.
    """

    def __init__(self, past: PastRun) -> None:
        self.unknown: list[str] = []
        self.left_open = False
        """Whether `answer` or `lost` met a call whose end is not recorded."""
        self._past = past
        self._questions = list(past.questions)

    def answer(self, call: Block) -> Block:
        """Return the result block for a call without one."""
        text, is_error = self._result(call)
        block = {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": [{"type": "text", "text": text if text.strip() else "(empty)"}],
        }
        return block | ({"is_error": True} if is_error else {})

    def lost(self, known: Iterable[str]) -> str | None:
        """Return a text on the calls in the journal whose messages are lost, or None."""
        ids = set(known)
        calls = [call for call in self._past.calls.values() if call.call_id not in ids]
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
        recorded = self._past.calls.get(call["id"])
        if recorded is not None and recorded.finished:
            return self._result_of_finished(recorded)
        if call["name"] == AskParent.name and (recorded is not None or not self._past.tells_all):
            return self._result_of_question(call, recorded)
        self.left_open = True
        if recorded is None and self._past.tells_all:
            return NOT_BEGUN, True
        self.unknown.append(call["name"])
        if recorded is not None and recorded.name == CODE_TOOL_NAME:
            return CUT_PROGRAM + calls_of_program(recorded), True
        return UNKNOWN + self._started_by(call), True

    def _result_of_finished(self, call: PastCall) -> tuple[str, bool]:
        if call.whole:
            return call.text, call.is_error
        how = "with an error" if call.is_error else "without an error"
        kept = f" This is left of it:\n{call.text}" if call.text.strip() else ""
        return _LOST_RESULT.format(how=how) + kept, True

    def _result_of_question(self, call: Block, recorded: PastCall | None) -> tuple[str, bool]:
        message = self._question(call, recorded)
        if message is not None and message.answer_content is not None:
            return message.answer_content, False
        if message is not None and message.message_status is MessageStatus.EXPIRED:
            return NO_ANSWER, False
        self.left_open = True
        return _UNANSWERED, True

    def _question(self, call: Block, recorded: PastCall | None) -> Message | None:
        """Return the question that the call asked, each only once: the latest of its words since it began."""
        began = recorded.began_at if recorded is not None else None
        for message in reversed(self._questions):
            is_late = began is None or message.question_timestamp >= began
            if is_late and message.question_content == call["input"].get("question"):
                self._questions.remove(message)
                return message
        return None

    def _started_by(self, call: Block) -> str:
        """Return which run a call has started, if it was such a call and has."""
        for child in reversed(self._past.children):
            if _starts(call, child) and child.prompt == call["input"].get("prompt"):
                return f" It had started run {child.run_id}, which is {child.status.value}."
        return ""

    def _lost_line(self, call: PastCall) -> str:
        arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
        head = f"- {call.name} {_shortened(arguments)}: "
        if not call.finished:
            self.unknown.append(call.name)
            if call.name == CODE_TOOL_NAME:
                return f"{head}{CUT_PROGRAM}{calls_of_program(call)}"
            return head + "it is not known what it did; find out before you make it again."
        how = "ended with an error" if call.is_error else "ended without an error"
        return head + (f"{how}: {_shortened(call.text)}" if call.text.strip() else f"{how}.")


def calls_of_program(program: PastCall) -> str:
    """Return what is known of the calls that a program had made, for the model."""
    if not program.made:
        return "It had called no tool."
    lines = [f"{number}. {_line_of(made)}" for number, made in sorted(program.made.items())]
    more = len(lines) - _MOST_LOST_CALLS
    shown = [*lines[:_MOST_LOST_CALLS], *([f"... and {more} more calls"] if more > 0 else [])]
    return "\n".join(["It had made these tool calls, and none was repeated:", *shown])


def _line_of(made: PastProgramCall) -> str:
    arguments = json.dumps(made.arguments, ensure_ascii=False, default=str)
    head = f"{made.function} {arguments[:_LINE_CHARACTERS]}"
    if not made.finished:
        return f"{head}: it is not known what it did; find out before you make it again."
    return f"{head}: {'failed' if made.is_error else 'done'}: {made.text[:_LINE_CHARACTERS]}"


def _starts(call: Block, child: PastChild) -> bool:
    """Whether a call is one that starts the agent of a child."""
    if call["name"] == RUN_AGENT_NAME:
        return call["input"].get("agent") in (child.agent_name, child.tool_name)
    return bool(call["name"] == child.tool_name)


def _shortened(text: str) -> str:
    return text if len(text) <= _LOST_CHARACTERS else text[:_LOST_CHARACTERS] + "…"
