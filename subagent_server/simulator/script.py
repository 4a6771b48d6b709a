"""The form of a script: a YAML or JSON file, or a dict, that plays the model's part.

    turns:                       # answered in order: the number of assistant messages picks the turn
      - thinking: Let me look.
        text: I list the files first.
        tool_use: [{name: bash, input: {command: ls}}]
      - capture: {file: '(\\w+\\.py)'}   # searched in tool results and user messages, newest first
        text: The program is ${file}.
        fault: {status: 529, times: 2}  # the first two requests for this turn fail
    rules:                       # looked at before `turns`; the first whose `when` holds answers
      - when: {tool_error: true}
        text: That failed, so I stop here.
    conversations:               # several scripts in one file: the first whose `when` holds is used,
      - when: {prompt: '^Review'}       # else the `turns` and `rules` of the top level
        turns: [{text: Looks good.}]
    after: end                   # or repeat_last

Keys of a turn: `text`, `thinking` and `tool_use` (a list of `name`, `input`, `id?`), or `content`, a list of
blocks in their order; `stop_reason`, `stop_sequence`, `keep_ids`, `usage`; `latency` and `chunk_delay` in
seconds and `chunk_size` in characters; `capture`; `fault`, one or a list; in `turns` also `repeat`, in
`rules` `when`.
docs/simulator.md describes each.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from subagent_server.simulator.faults import Fault
from subagent_server.simulator.parts import (
    AnyBlock,
    Block,
    Captures,
    Count,
    Part,
    Positive,
    Regex,
    Seconds,
    Text,
    Thinking,
    ToolUse,
    UsageOverride,
    listed,
)

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
]


class Turn(Part):
    """One answer of the model."""

    text: str | None = None
    thinking: str | None = None
    tool_use: Annotated[list[ToolUse], BeforeValidator(listed)] = Field(default_factory=list)
    content: list[AnyBlock] | None = None
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    keep_ids: bool = False
    usage: UsageOverride = UsageOverride()
    latency: Seconds = 0.0
    chunk_delay: Seconds = 0.0
    chunk_size: Positive | None = None
    capture: Captures = Field(default_factory=dict)
    fault: Annotated[list[Fault], BeforeValidator(listed)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _content_or_parts(self) -> "Turn":
        if self.content is not None and self.model_fields_set & {"text", "thinking", "tool_use"}:
            raise ValueError("has content and also text, thinking or tool_use: put all of them into content")
        return self

    def blocks(self) -> list[Block]:
        """Return the blocks in the order of the answer: thinking, text, calls, or `content` as it stands."""
        if self.content is not None:
            return list(self.content)
        thinking = [Thinking(thinking=self.thinking)] if self.thinking else []
        text = [Text(text=self.text)] if self.text else []
        return [*thinking, *text, *self.tool_use]


class OrderedTurn(Turn):
    """A turn of the list `turns`; with `repeat` it answers that many turns, one after the other."""

    repeat: Positive = 1


class When(Part):
    """The conditions for a conversation to use its script. Every key that is given must hold."""

    prompt: Regex | None = None
    system: Regex | None = None
    model: Regex | None = None
    tool: str | None = None


class RuleWhen(When):
    """The conditions for a rule to answer a request. Every key that is given must hold."""

    turn: Count | None = None
    last: Regex | None = None
    tool_error: bool | None = None


class Rule(Turn):
    """A turn that answers whatever request its `when` describes."""

    when: RuleWhen


class Dialogue(Part):
    """Turns in order, rules that go before them, and the turn after the last one."""

    turns: list[OrderedTurn] = Field(default_factory=list)
    rules: list[Rule] = Field(default_factory=list)
    after: Literal["repeat_last", "end"] = "end"


class Conversation(Dialogue):
    """The script of one kind of conversation."""

    when: When


class Script(Dialogue):
    """A whole script. `allow_prefill` accepts requests that end with an assistant message.

    `cache_minimum` is the smallest prefix that is cached, in tokens, instead of what the model has.
    `context_window` is what the model takes, in tokens; without it, anything. `context_editing`: whether the
    model has context management. `web_tools`: whether the API searches and fetches itself.
    """

    conversations: list[Conversation] = Field(default_factory=list)
    allow_prefill: bool = False
    cache_minimum: Count | None = None
    context_window: Positive | None = None
    context_editing: bool = True
    web_tools: bool = True

    @model_validator(mode="after")
    def _says_something(self) -> "Script":
        if not (self.turns or self.rules or self.conversations):
            raise ValueError("says nothing: give turns, rules or conversations")
        return self


NO_FURTHER_TURN = Turn(text="(the script has no further turn)")
"""What answers when the turns are used up and `after` is `end`."""
