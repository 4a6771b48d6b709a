"""The small pieces that a script is made of: content blocks, captures, token counts."""

import json
import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)


def _compiled(pattern: object) -> object:
    if not isinstance(pattern, str):
        return pattern
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"is no regular expression ({error})") from error


def _json_only(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"must be JSON, which it is not ({error})") from error
    return value


def listed(value: object) -> object:
    """Return `value` as a list: a script may give one value in the place of a list."""
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


class Citation(Part):
    """A page that a text cites."""

    url: str
    title: str = ""
    cited_text: str = ""


class Text(Part):
    """A block of text."""

    type: Literal["text"] = "text"
    text: str
    citations: list[Citation] = Field(default_factory=list)


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


class FoundPage(Part):
    """One result of a search."""

    url: str
    title: str = ""
    page_age: str | None = None


class ServerCall(Part):
    """A call that the API makes itself, with its result behind it.

    With `pending` the result stands at the start of the next answer; `seconds` are those of silence, but for
    pings, before the result. `error` is the code of a call that fails.
    """

    id: Annotated[str, Field(pattern=r"^srvtoolu_[a-zA-Z0-9_]+$")] | None = None
    error: str | None = None
    pending: bool = False
    seconds: Seconds = 0.0


class ScriptedSearch(ServerCall):
    """A web search. Without `results` there is one, made of the query."""

    type: Literal["web_search"] = "web_search"
    query: str
    results: list[FoundPage] | None = None


class ScriptedFetch(ServerCall):
    """The fetch of a page."""

    type: Literal["web_fetch"] = "web_fetch"
    url: str
    title: str = ""
    page: str | None = None


class RawBlock(Part):
    """A block that is sent as it stands, also one that the API would never send."""

    type: Literal["raw"] = "raw"
    raw: Annotated[dict[str, Any], AfterValidator(_json_only)]


Block = Text | Thinking | RedactedThinking | ToolUse | ScriptedSearch | ScriptedFetch | RawBlock

_TYPE_BY_KEY = {
    "thinking": "thinking",
    "data": "redacted_thinking",
    "name": "tool_use",
    "query": "web_search",
    "url": "web_fetch",
    "raw": "raw",
}


def _block_type(value: object) -> str:
    """Return which block `value` is: by its `type`, else by the one key that only that block has."""
    if not isinstance(value, dict):
        return str(getattr(value, "type", "text"))
    return str(value.get("type") or next((_TYPE_BY_KEY[key] for key in value if key in _TYPE_BY_KEY), "text"))


AnyBlock = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Thinking, Tag("thinking")]
    | Annotated[RedactedThinking, Tag("redacted_thinking")]
    | Annotated[ToolUse, Tag("tool_use")]
    | Annotated[ScriptedSearch, Tag("web_search")]
    | Annotated[ScriptedFetch, Tag("web_fetch")]
    | Annotated[RawBlock, Tag("raw")],
    Discriminator(_block_type),
]


class UsageOverride(Part):
    """Token counts that replace the estimates."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class Capture(Part):
    """What `${name}` stands for: group 1 of the newest match (all of it without groups), or `default`."""

    pattern: Regex
    default: str = ""


def _as_capture(value: object) -> object:
    return {"pattern": value} if isinstance(value, str | re.Pattern) else value


Captures = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Annotated[Capture, BeforeValidator(_as_capture)]
]
