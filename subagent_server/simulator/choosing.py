"""Which turn of a script answers a request: decided by the request alone, so retries need no memory."""

from dataclasses import dataclass

from subagent_server.simulator.request_view import RequestView
from subagent_server.simulator.script import NO_FURTHER_TURN, Dialogue, RuleWhen, Script, Turn, When


@dataclass(frozen=True)
class Choice:
    """A turn and its place in the script, such as `conversations[0].turns[2]`."""

    turn: Turn
    place: str


def choose(script: Script, request: RequestView) -> Choice:
    """Return the turn for `request`: of the first conversation that fits, else of the top level."""
    for number, conversation in enumerate(script.conversations):
        if matches(conversation.when, request):
            return _choose_in(conversation, request, f"conversations[{number}].")
    return _choose_in(script, request, "")


def matches(when: When, request: RequestView) -> bool:
    """Whether every key that `when` gives holds for `request`; an empty `when` always does."""
    patterns = [(when.prompt, request.prompt), (when.system, request.system), (when.model, request.model)]
    if isinstance(when, RuleWhen):
        if when.turn is not None and when.turn != request.turn:
            return False
        if when.tool_error is not None and when.tool_error != request.has_tool_error:
            return False
        patterns.append((when.last, request.last))
    if when.tool is not None and when.tool not in request.tools:
        return False
    return all(pattern is None or pattern.search(text) for pattern, text in patterns)


def _choose_in(dialogue: Dialogue, request: RequestView, prefix: str) -> Choice:
    for number, rule in enumerate(dialogue.rules):
        if matches(rule.when, request):
            return Choice(rule, f"{prefix}rules[{number}]")
    to_skip = request.turn
    for number, turn in enumerate(dialogue.turns):
        if to_skip < turn.repeat:
            return Choice(turn, f"{prefix}turns[{number}]")
        to_skip -= turn.repeat
    if dialogue.turns and dialogue.after == "repeat_last":
        return Choice(dialogue.turns[-1], f"{prefix}turns[{len(dialogue.turns) - 1}]")
    return Choice(NO_FURTHER_TURN, f"{prefix}after")
