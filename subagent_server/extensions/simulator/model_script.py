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

import json
import re
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from subagent_server.run.errors import CallerError
from subagent_server.run.schemas import compiled


class ScriptError(CallerError):
    """A script that cannot be used; the sentence has the file, the path in it, and what is allowed there."""

    code = "bad_script"


def _compiled(pattern: object) -> object:
    if not isinstance(pattern, str):
        return pattern
    try:
        return compiled(pattern, re.MULTILINE)
    except ValueError as error:
        raise ValueError(f"is no regular expression ({error})") from error


def _json_only(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"must be JSON, which it is not ({error})") from error
    return value


def listed(value: object) -> object:
    """Return `value` as a list: a script may have one value instead of a list."""
    return value if isinstance(value, list) or value is None else [value]


Regex = Annotated[re.Pattern[str], BeforeValidator(_compiled)]
"""A regular expression, searched anywhere in a text; `^` and `$` match at every line."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """The base of every part of a script: frozen, nothing converted, unknown keys refused by name."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, value: object) -> object:
        if isinstance(value, cls):
            return value
        if isinstance(value, Part):
            value = {name: getattr(value, name) for name in value.model_fields_set}
        if not isinstance(value, dict):
            raise ValueError(f"must be a mapping with the keys {', '.join(cls.model_fields)}")
        unknown = next((key for key in value if key not in cls.model_fields), None)
        if unknown is not None:
            near = get_close_matches(str(unknown), cls.model_fields, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"has no key {unknown!r}{hint}: allowed are {', '.join(cls.model_fields)}")
        return value


class TextPart(Part):
    """A block of text."""

    type: Literal["text"] = "text"
    text: str


class Thinking(Part):
    """A block of thinking; its signature is computed."""

    type: Literal["thinking"] = "thinking"
    thinking: str


class RedactedThinking(Part):
    """A block of thinking that nobody can read."""

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: str


class ToolUse(Part):
    """One call of a tool. Without `id` it gets one that is the same at every retry."""

    type: Literal["tool_use"] = "tool_use"
    name: Annotated[str, Field(min_length=1)]
    input: Annotated[dict[str, Any], AfterValidator(_json_only)] = Field(default_factory=dict)
    id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$")] | None = None


class RawBlock(Part):
    """A block that is sent as it is, also one that the API would never send.

    `seconds` are those of silence, but for pings, before it.
    """

    type: Literal["raw"] = "raw"
    raw: Annotated[dict[str, Any], AfterValidator(_json_only)]
    seconds: Seconds = 0.0


Block = TextPart | Thinking | RedactedThinking | ToolUse | RawBlock

_TYPE_BY_KEY = {
    "thinking": "thinking",
    "data": "redacted_thinking",
    "name": "tool_use",
    "raw": "raw",
}


def _block_type(value: object) -> str:
    """Return which block `value` is: by its `type`, else by the one key that only that block has."""
    if not isinstance(value, dict):
        return str(getattr(value, "type", "text"))
    return str(value.get("type") or next((_TYPE_BY_KEY[key] for key in value if key in _TYPE_BY_KEY), "text"))


AnyBlock = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[Thinking, Tag("thinking")]
    | Annotated[RedactedThinking, Tag("redacted_thinking")]
    | Annotated[ToolUse, Tag("tool_use")]
    | Annotated[RawBlock, Tag("raw")],
    Discriminator(
        _block_type,
        custom_error_type="unknown_type",
        custom_error_message="must have the type text, thinking, redacted_thinking, tool_use or raw",
    ),
]


class UsageOverride(Part):
    """Token counts that replace the estimates, and the uses of tools that the API runs itself."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    server_tool_use: dict[str, Count] | None = None


class Capture(Part):
    """What `${name}` stands for: group 1 of the newest match (all of it without groups), or `default`."""

    pattern: Regex
    default: str = ""


def _as_capture(value: object) -> object:
    return {"pattern": value} if isinstance(value, str | re.Pattern) else value


Captures = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Annotated[Capture, BeforeValidator(_as_capture)]
]


# -- the ways for an answer to go wrong


FAULT_KINDS = (
    "status",
    "cut_after",
    "stream_error",
    "malformed_tool_json",
    "hang",
    "stall_after",
    "garbage_after",
)

_COMPANIONS = {
    "retry_after": ("status",),
    "error_type": ("status",),
    "message": ("status", "stream_error"),
    "after": ("stream_error",),
    "pings": ("stall_after",),
}
"""Keys of a fault that mean something with some kinds only."""


def _malformed(value: object) -> object:
    return ("truncated" if value else None) if isinstance(value, bool) else value


def _times(value: object) -> object:
    return sys.maxsize if value == "always" else value


class Fault(Part):
    """One way to go wrong, for the first `times` requests of a turn; each is of exactly one kind.

    `status`: an HTTP error, with `retry_after` (seconds), `error_type` and `message`. `cut_after`: the
    connection is cut after so many events of the stream, 0 being before any byte. `stream_error`: an error
    event of this type `after` so many events. `malformed_tool_json`: `truncated` or `garbled` tool input.
    `hang`: no answer until the client goes away. `stall_after`: after so many events nothing more comes, but
    pings where `pings` gives the seconds between them. `garbage_after`: after so many events one that is no
    JSON, and the end.
    """

    status: Annotated[int, Field(ge=400, le=599)] | None = None
    retry_after: Seconds | None = None
    error_type: str | None = None
    message: str | None = None
    cut_after: Count | None = None
    stream_error: str | None = None
    after: Count = 1
    malformed_tool_json: Annotated[Literal["truncated", "garbled"] | None, BeforeValidator(_malformed)] = None
    hang: bool = False
    stall_after: Count | None = None
    garbage_after: Count | None = None
    pings: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    times: Annotated[Positive, BeforeValidator(_times)] = 1

    @model_validator(mode="after")
    def _one_kind(self) -> "Fault":
        present = self._kinds_set()
        if len(present) != 1:
            raise ValueError(f"must have exactly one of {', '.join(FAULT_KINDS)}, and has {len(present)}")
        for key, kinds in _COMPANIONS.items():
            if key in self.model_fields_set and present[0] not in kinds:
                raise ValueError(f"has {key!r}, which goes with {' or '.join(kinds)} only")
        return self

    @property
    def kind(self) -> str:
        """Which of `FAULT_KINDS` this is."""
        return self._kinds_set()[0]

    @property
    def limit(self) -> int | None:
        """The number of events after which this happens, if it breaks a stream."""
        if self.stream_error is not None:
            return self.after
        return next(
            (n for n in (self.cut_after, self.stall_after, self.garbage_after) if n is not None), None
        )

    def _kinds_set(self) -> list[str]:
        values = {kind: getattr(self, kind) for kind in FAULT_KINDS}
        return [kind for kind, value in values.items() if value is not None and value is not False]


class FaultLedger:
    """Remembers how many faults each turn of each conversation has had: the only state of the simulator."""

    def __init__(self) -> None:
        self._taken: Counter[Hashable] = Counter()

    def take(self, key: Hashable, faults: Iterable[Fault]) -> Fault | None:
        """Return the fault that is next for `key`, or None when all of `faults` are used up."""
        seen = self._taken[key]
        for fault in faults:
            if seen < fault.times:
                self._taken[key] += 1
                return fault
            seen -= fault.times
        return None


# -- the script


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
        """Return the blocks in the order of the answer: thinking, text, calls, or `content` as it is."""
        if self.content is not None:
            return list(self.content)
        thinking = [Thinking(thinking=self.thinking)] if self.thinking else []
        text = [TextPart(text=self.text)] if self.text else []
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
    """A whole script. `allow_prefill` accepts requests that end with an assistant message."""

    conversations: list[Conversation] = Field(default_factory=list)
    allow_prefill: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> "Script":
        if not (self.turns or self.rules or self.conversations):
            raise ValueError("says nothing: give turns, rules or conversations")
        return self


MAX_BYTES = 64 << 20
"""A script file larger than this is refused."""
NO_FURTHER_TURN = Turn(text="(the script has no further turn)")
"""What answers when the turns are used up and `after` is `end`."""


# -- from a file or a dict, with one sentence for whatever is wrong in it


class _Loader(yaml.SafeLoader):
    """YAML as JSON users expect it: dates stay text, and a key given twice is an error."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        double = next((key for key, count in keys.items() if count > 1 and key != "<<"), None)
        if double is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {double!r} appears twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def load_script(source: Script | Mapping[str, Any] | Path | str) -> Script:
    """Return the script that `source` holds: a file (`.json`, anything else is read as YAML) or its content.

    Raises:
        ScriptError: it cannot be read or is not a script; the sentence has the path and what is allowed.
    """
    if isinstance(source, Script):
        return source
    if isinstance(source, Mapping):
        return _checked(dict(source), "The script")
    return parse_script(_read(Path(source)), str(source))


def parse_script(text: str, name: str) -> Script:
    """Return the script in `text`, the content of a file `name`. Raises as `load_script` does."""
    return _checked(_parsed(text, Path(name)), name)


def script_text(path: Path) -> str:
    """Return the content of a script file, which is a script. Raises as `load_script` does."""
    text = _read(path)
    parse_script(text, str(path))
    return text


def as_turn(answer: Turn | Mapping[str, Any]) -> Turn:
    """Return the value of a respond function as a turn.

    Raises:
        ScriptError: it is not one.
    """
    if isinstance(answer, Turn):
        return answer
    try:
        return Turn.model_validate(answer)
    except ValidationError as error:
        raise ScriptError(_sentence("The answer of the respond function", error)) from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:  # a person may name a pipe, an evaluation file a device
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ScriptError(f"The script {path} is larger than {MAX_BYTES >> 20} MiB: make it smaller.")
        return data.decode("utf-8-sig")
    except OSError as error:
        why = error.strerror or str(error)
        raise ScriptError(
            f"The script {path} cannot be read ({why}): give the path of a YAML or JSON file."
        ) from error
    except UnicodeDecodeError as error:
        raise ScriptError(
            f"The script {path} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        ) from error


def _parsed(text: str, path: Path) -> Any:
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except json.JSONDecodeError as error:
        raise ScriptError(f"{path}, line {error.lineno}, is not JSON ({error.msg}): fix it there.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}," if mark else ""
        raise ScriptError(f"{path}{line} is not YAML ({error.problem}): fix it there.") from error
    except yaml.YAMLError as error:
        first = " ".join(str(error).split())
        raise ScriptError(f"{path} is not YAML ({first}): fix it there.") from error
    except (ValueError, RecursionError) as error:  # of numbers, and of what is nested thousands deep
        raise ScriptError(f"{path} holds what cannot be read ({error}): fix it there.") from error


def _checked(content: Any, source: str) -> Script:
    try:
        return Script.model_validate(content)
    except ValidationError as error:
        raise ScriptError(_sentence(source, error)) from error


def _sentence(source: str, error: ValidationError) -> str:
    """Return the first problem as one sentence, with its path, such as `turns.1.tool_use.0.name`."""
    problem = error.errors(include_url=False)[0]
    location = ".".join(map(str, problem["loc"]))
    where = f"{source}: {location}" if location else source
    return f"{where}: {problem['msg'].removeprefix('Value error, ')}."
