"""The web tools of a run, which the Messages API itself runs: listed, counted over the run, and noted.

Their calls, results and pages are data of others: a field may be missing, of any type, or of any length.

The API bounds the uses of one request (`max_uses`). The limit of an agent file is that of the whole run. The
definitions stay the same at every request, because another list of tools costs the prompt cache; a tool whose
uses are gone is left out from then on, and the model is notified.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from subagent_server.loop.request import Block, Message
from subagent_server.run.agent_definition import WebSelection
from subagent_server.run.errors import RunRefused
from subagent_server.run.records import WebSource
from subagent_server.run.states import cut

# -- the calls in a reply

SERVER_CALL = "server_tool_use"
_RESULT_END = "_tool_result"
_MOST_SHOWN = 50
_MOST_CHARACTERS = 500
_CITED, _READ, _FOUND = range(3)


def is_server_result(block: Block) -> bool:
    """Whether a block is a result that the API has put into a reply."""
    kind = block.get("type")
    return isinstance(kind, str) and kind.endswith(_RESULT_END) and kind != "tool_result"


def calls_without_result(content: Sequence[Block]) -> list[Block]:
    """Return the calls of a message of the model that the API has not answered in it."""
    answered = {str(block.get("tool_use_id")) for block in content if is_server_result(block)}
    return [b for b in content if b.get("type") == SERVER_CALL and str(b.get("id")) not in answered]


def pending_calls(messages: Sequence[Message]) -> list[Block]:
    """Return the calls of the last reply that the API makes when it has the results of the others."""
    replies = [message for message in messages[-2:] if message["role"] == "assistant"]
    return calls_without_result(replies[-1]["content"]) if replies else []


def record_server_use(content: Sequence[Block], record: Callable[..., None]) -> None:
    """Append an event for each call that the API has made itself, and for each result."""
    names: dict[str, str] = {}
    for block in content:
        if block.get("type") == SERVER_CALL:
            name = _short(block.get("name"))
            names[str(block.get("id"))] = name
            record(
                "tool_call",
                toolCallId=_short(block.get("id")),
                toolName=name,
                arguments=_arguments(block.get("input")),
                server=True,
            )
        elif is_server_result(block):
            text, is_error = _shown(block.get("content"))
            record(
                "tool_result",
                toolCallId=_short(block.get("tool_use_id")),
                toolName=names.get(str(block.get("tool_use_id")))
                or str(block["type"]).removesuffix(_RESULT_END),
                isError=is_error,
                text=text,
                server=True,
            )


def sources_of(content: Sequence[Block]) -> Iterator[tuple[int, WebSource]]:
    """Yield the pages that a reply names: cited (0), read (1) or found (2)."""
    for block in content:
        for citation in _dicts(block.get("citations")):
            yield from _source(_CITED, citation.get("url"), citation.get("title"))
        if not is_server_result(block):
            continue
        inside = block.get("content")
        for result in _dicts(inside):
            yield from _source(_FOUND, result.get("url"), result.get("title"))
        if isinstance(inside, dict) and inside.get("url"):
            yield from _source(_READ, inside.get("url"), _title(inside))


def _source(rank: int, url: Any, title: Any) -> Iterator[tuple[int, WebSource]]:
    if isinstance(url, str) and url and len(url) <= 4 * _MOST_CHARACTERS:
        yield rank, WebSource(url=url, title=_short(title) if isinstance(title, str) and title else None)


def _title(fetched: Block) -> Any:
    document = fetched.get("content")
    return document.get("title") if isinstance(document, dict) else None


def _shown(inside: Any) -> tuple[str, bool]:
    """Return a result as the journal has it: titles and addresses, or the code of an error."""
    if isinstance(inside, dict) and "error_code" in inside:
        return f"error: {_short(inside['error_code'])}", True
    if isinstance(inside, dict):
        title = _title(inside)
        return " ".join(_short(part) for part in (title, inside.get("url")) if part), False
    results = _dicts(inside)
    lines = [
        " ".join(_short(r[key]) for key in ("title", "url") if r.get(key)) for r in results[:_MOST_SHOWN]
    ]
    if len(results) > _MOST_SHOWN:
        lines.append(f"and {len(results) - _MOST_SHOWN} more")
    return "\n".join(lines), False


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, dict):
        return {}
    return {
        _short(key): value if isinstance(value, int | float) else _short(value)
        for key, value in arguments.items()
    }


def _dicts(value: Any) -> list[Block]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _short(value: Any) -> str:
    return "" if value is None else cut(str(value), _MOST_CHARACTERS)


# -- the tools

MOST_SOURCES = 100
_WORDS = {"web_search": "web searches", "web_fetch": "fetches of web pages"}
_REFUSALS = (400, 403, 404, 422)
_TOOL_INDEX = re.compile(r"tools\.(\d+)\b")
_KEYS = {"web_search": "webSearch.maxUses", "web_fetch": "webFetch.maxUses"}


_TYPES = {"web_search": "web_search_20250305", "web_fetch": "web_fetch_20250910"}
"""The versions that every model has: without filtering of results by programs of the model."""


@dataclass
class WebTools:
    """The definitions of the web tools of a run by their names, and how often each may be used."""

    tools: Sequence[Block] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    _found: dict[str, tuple[int, WebSource]] = field(default_factory=dict)
    _announced: set[str] = field(default_factory=set)
    _has_gone_on: bool = False

    def definitions(self, messages: Sequence[Message]) -> list[Block]:
        """Return the entries of `tools` for the next request.

        A reply that the API has not finished continues with the tools that it began with.
        """
        if messages and messages[-1]["role"] == "assistant":
            return list(self.tools)
        going_on = {str(call.get("name")) for call in pending_calls(messages)}
        return [t for t in self.tools if t["name"] in going_on or t["name"] not in self._spent]

    def take(self, content: Sequence[Block]) -> None:
        """Count the uses in a reply, and keep the pages that it names."""
        self.used.update(str(b.get("name")) for b in content if b.get("type") == SERVER_CALL)
        for rank, source in sources_of(content):
            known = self._found.get(source.url)
            if known is None and len(self._found) >= 10 * MOST_SOURCES:
                continue
            if known is None or rank < known[0]:
                self._found[source.url] = (rank, source)

    def notices(self) -> list[Block]:
        """Return the notices for the model of limits that its uses have reached, each once."""
        new = [name for name in self._spent if name not in self._announced]
        self._announced.update(new)
        return [{"type": "text", "text": self._notice(name)} for name in new]

    def check_pause(self) -> None:
        """Called when the API pauses a reply. With the uses gone it continues once, to come to an end.

        Raises:
            RunRefused: `budget`, it was paused again.
        """
        if not self._spent:
            return
        if self._has_gone_on:
            name = self._spent[0]
            raise RunRefused(
                "budget",
                f"The agent has used {self.used[name]} {_WORDS[name]} of {self.limits[name]}, and goes on.",
                f"Raise `{_KEYS[name]}` in the agent file, or give it a smaller task.",
            )
        self._has_gone_on = True

    @property
    def searches_left(self) -> int:
        """How many searches the next request may make."""
        if not any(tool["name"] == "web_search" for tool in self.tools):
            return 0
        return max(0, self.limits["web_search"] - self.used["web_search"])

    @property
    def sources(self) -> list[WebSource]:
        """The pages that the replies have cited, then those that were read, then those that were found."""
        ranked = sorted(self._found.values(), key=lambda found: found[0])
        return [source for _, source in ranked[:MOST_SOURCES]]

    @property
    def _spent(self) -> list[str]:
        return [name for name, limit in self.limits.items() if self.used[name] >= limit]

    def _notice(self, name: str) -> str:
        return (
            f"This run may make {self.limits[name]} {_WORDS[name]}, and all are used: continue without "
            f"{name}, with what you have found."
        )


def make_web_tools(selection: WebSelection) -> WebTools:
    """Return the web tools of a run. The bound of uses of the run bounds each of its requests too."""
    bounds = {"web_search": selection.search, "web_fetch": selection.fetch}
    wanted = {name: bound for name, bound in bounds.items() if bound is not None}
    tools = [
        {"type": _TYPES[name], "name": name, **bound.model_dump(by_alias=False, exclude_none=True)}
        for name, bound in wanted.items()
    ]
    return WebTools(tools, {name: bound.max_uses for name, bound in wanted.items()})


def refuses_web_tools(status: int, message: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an API with this answer refuses the web tools among the `tools` of a request."""
    is_web = ["type" in tool and tool["name"] in _WORDS for tool in tools]
    if status not in _REFUSALS or not any(is_web) or message.startswith("messages."):
        return False
    found = _TOOL_INDEX.search(message)
    if found is not None:
        return int(found[1]) < len(is_web) and is_web[int(found[1])]
    words = re.sub(r"[_-]", " ", message.lower())
    return any(name.replace("_", " ") in words for name in _WORDS) or "server tool" in words
