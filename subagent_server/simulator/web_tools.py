"""The tools that the API runs itself: their form in a request, and in its answers.

Each result carries a text that only the API can read, and that has to come back unchanged: here a hash of it.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from subagent_server.simulator.call_checks import joined_turns
from subagent_server.simulator.errors import ApiError, refuse
from subagent_server.simulator.parts import Citation, ScriptedFetch, ScriptedSearch
from subagent_server.simulator.request_view import RequestView, blocks_of

Json = dict[str, Any]

SERVER_CALL = "server_tool_use"
RESULTS = {"web_search_tool_result": "web_search", "web_fetch_tool_result": "web_fetch"}
_VERSIONS = {
    "web_search": ("20250305", "20260209", "20260318"),
    "web_fetch": ("20250910", "20260209", "20260309", "20260318"),
}
_COMMON = frozenset(
    {"type", "name", "max_uses", "allowed_domains", "blocked_domains", "allowed_callers", "cache_control"}
    | {"defer_loading", "strict", "response_inclusion"}
)
_KEYS = {
    "web_search": _COMMON | {"user_location"},
    "web_fetch": _COMMON | {"citations", "max_content_tokens", "use_cache", "url_sources"},
}
_INPUT = {"web_search": "query", "web_fetch": "url"}
_KIND = re.compile(r"(web_search|web_fetch)_(\d+)")
_URL = re.compile(r"https?://[^\s\"'<>)\]]+")


# -- what is offered


def check_web_tool(tool: Json, kind: str, place: str, *, able: bool) -> bool:
    """Return whether a tool is one of these; `able` says whether this API has them.

    Raises:
        ApiError: 400; the API would not take it.
    """
    found = _KIND.fullmatch(kind)
    if found is None:
        return False
    name, version = found.groups()
    if not able:
        raise refuse(place, f"the tool {name} is not supported by this endpoint")
    if version not in _VERSIONS[name]:
        raise refuse(f"{place}.type", f"{kind!r} is not a known tool type")
    if tool.get("name") != name:
        raise refuse(f"{place}.name", f"must be {name!r}")
    unknown = next((key for key in tool if key not in _KEYS[name]), None)
    if unknown is not None:
        raise refuse(f"{place}.{unknown}", "Extra inputs are not permitted")
    for key in ("max_uses", "max_content_tokens"):
        number = tool.get(key)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise refuse(f"{place}.{key}", "must be an integer of at least 1")
    if tool.get("allowed_domains") is not None and tool.get("blocked_domains") is not None:
        raise refuse(place, "only one of allowed_domains and blocked_domains may be given")
    for key in ("allowed_domains", "blocked_domains"):
        _check_domains(tool.get(key), f"{place}.{key}")
    return True


def _check_domains(domains: Any, place: str) -> None:
    if domains is None:
        return
    if not isinstance(domains, list) or not domains:
        raise refuse(place, "must be a list of at least one domain")
    for number, domain in enumerate(domains):
        if not isinstance(domain, str) or not domain or "://" in domain or " " in domain:
            raise refuse(f"{place}.{number}", "must be a domain without a scheme, such as example.com")


# -- what comes back in a request


def check_server_block(block: Json, place: str) -> None:
    """Check a call or result of such a tool: it has to come back as the API has sent it.

    Raises:
        ApiError: 400.
    """
    if block["type"] == SERVER_CALL:
        if not isinstance(block.get("id"), str) or not block["id"].startswith("srvtoolu_"):
            raise refuse(f"{place}.{SERVER_CALL}.id", "must match '^srvtoolu_[a-zA-Z0-9_]+$'")
        given, needed = block.get("input"), _INPUT.get(str(block.get("name")))
        if not isinstance(given, dict):
            raise refuse(f"{place}.{SERVER_CALL}.input", "must be an object")
        if needed is not None and not isinstance(given.get(needed), str):
            raise refuse(f"{place}.{SERVER_CALL}.input.{needed}", "Field required")
        return
    if not isinstance(block.get("tool_use_id"), str):
        raise refuse(f"{place}.{block['type']}.tool_use_id", "Field required")
    content = block.get("content")
    for result in _dicts(content):
        if result.get("encrypted_content") != _secret(result.get("url"), result.get("title")):
            raise refuse(place, "Invalid `encrypted_content` in `web_search_result`: pass it back as it came")


def check_citations(block: Json, role: str, place: str) -> None:
    """Check the citations of a text. Raises ApiError: 400."""
    citations = block.get("citations")
    if citations and role == "user":
        raise refuse(f"{place}.text.citations", "citations are not permitted in user messages")
    for citation in _dicts(citations):
        kind = citation.get("type")
        secret = _secret(citation.get("url"), citation.get("title"))
        if kind == "web_search_result_location" and citation.get("encrypted_index") != secret:
            raise refuse(place, "Invalid `encrypted_index` in a citation: pass it back as it came")


def check_server_calls(messages: list[Json]) -> None:
    """Check that each of these calls has its result.

    One beside calls of the client may wait for its result until the next answer, and one at the end of the
    conversation for the rest of its answer.

    Raises:
        ApiError: 400, naming the calls.
    """
    waiting: dict[str, str] = {}
    turns = joined_turns(messages)
    for number, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        for place, block in turn.blocks:
            if block["type"] == SERVER_CALL:
                waiting[block["id"]] = place
            elif block["type"] in RESULTS and waiting.pop(block["tool_use_id"], None) is None:
                raise refuse(place, f"unexpected `tool_use_id` in `{block['type']}`: {block['tool_use_id']}")
        own = {block["id"] for _, block in turn.blocks if block["type"] == SERVER_CALL}
        waiting = {call_id: place for call_id, place in waiting.items() if call_id in own}
        may_wait = number == len(turns) - 1 or any(block["type"] == "tool_use" for _, block in turn.blocks)
        if waiting and not may_wait:
            raise _unanswered(waiting)


def _unanswered(waiting: dict[str, str]) -> ApiError:
    place = next(iter(waiting.values()))
    return refuse(place, f"`{SERVER_CALL}` ids were found without their result: {', '.join(waiting)}")


def is_continuation(body: Json) -> bool:
    """Whether a conversation ends with an answer of these tools, to be carried on after `pause_turn`."""
    offered = any(_KIND.fullmatch(str(tool.get("type"))) for tool in body.get("tools") or [])
    last = blocks_of(body["messages"][-1]["content"])
    return offered and any(block.get("type") in (SERVER_CALL, *RESULTS) for block in last)


# -- what is answered


class Searcher:
    """Makes the calls and results of one answer, within the limits of the request."""

    def __init__(self, request: RequestView) -> None:
        self._request = request
        self._tools = {str(t.get("name")): t for t in request.body.get("tools") or [] if "type" in t}
        self._made: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()

    def resolved(self) -> Iterator[Json]:
        """Yield the results of calls that stood beside calls of the client in the answer before."""
        answers = [m for m in self._request.messages[-2:] if m["role"] == "assistant"]
        blocks = blocks_of(answers[-1]["content"]) if answers else []
        done = {block.get("tool_use_id") for block in blocks if block["type"] in RESULTS}
        for block in blocks:
            if block["type"] == SERVER_CALL and block["id"] not in done and block["name"] in _INPUT:
                value = block["input"][_INPUT[block["name"]]]
                made = (
                    ScriptedSearch(query=value) if block["name"] == "web_search" else ScriptedFetch(url=value)
                )
                yield self._result(block["id"], made)

    def blocks(self, call: ScriptedSearch | ScriptedFetch, call_id: str) -> list[Json]:
        """Return a call, and its result behind it unless that comes later."""
        given = {"query": call.query} if isinstance(call, ScriptedSearch) else {"url": call.url}
        use = {"type": SERVER_CALL, "id": call_id, "name": call.type, "input": given}
        if call.pending:
            return [use]
        silence = {"_seconds": call.seconds} if call.seconds else {}
        return [use, self._result(call_id, call) | silence]

    def _result(self, call_id: str, call: ScriptedSearch | ScriptedFetch) -> Json:
        self._made[call.type] += 1
        error = call.error or self._refusal(call)
        kind = f"{call.type}_tool_result"
        if error is not None:
            content: Any = {"type": f"{kind}_error", "error_code": error}
        else:
            self.counted[call.type] += 1
            content = _found(call) if isinstance(call, ScriptedSearch) else _fetched(call)
        return {"type": kind, "tool_use_id": call_id, "content": content}

    def _refusal(self, call: ScriptedSearch | ScriptedFetch) -> str | None:
        tool = self._tools.get(call.type, {})
        if self._made[call.type] > tool.get("max_uses", self._made[call.type]):
            return "max_uses_exceeded"
        if isinstance(call, ScriptedSearch):
            return None
        allowed, blocked = tool.get("allowed_domains"), tool.get("blocked_domains") or []
        if (allowed is not None and not _lies_in(call.url, allowed)) or _lies_in(call.url, blocked):
            return "url_not_allowed"
        return None if call.url in self._known_urls() else "url_not_in_prior_context"

    def _known_urls(self) -> set[str]:
        """Return the addresses that stand in user messages and in results."""
        known = {url.rstrip(".,;") for text in self._request.newest_texts() for url in _URL.findall(text)}
        for message in self._request.messages:
            for block in blocks_of(message["content"]):
                found = block.get("content") if block.get("type") in RESULTS else None
                known |= {
                    str(result.get("url")) for result in _dicts(found if isinstance(found, list) else [found])
                }
        return known


def _lies_in(url: str, domains: Sequence[str]) -> bool:
    parts = urlsplit(url)
    place = f"{parts.hostname or ''}{parts.path}"
    hosts = [place, *(place[n + 1 :] for n, c in enumerate(parts.hostname or "") if c == ".")]
    return any(host == d or host.startswith(f"{d.rstrip('/')}/") for host in hosts for d in domains)


def _found(call: ScriptedSearch) -> list[Json]:
    if call.results is None:
        title = f"About {call.query}"
        pages = [
            {"url": f"https://example.com/{re.sub('[^a-z0-9]+', '-', call.query.lower())}", "title": title}
        ]
    else:
        pages = [page.model_dump(exclude_none=True) for page in call.results]
    return [
        {"type": "web_search_result", "page_age": None, **page}
        | {"encrypted_content": _secret(page["url"], page["title"])}
        for page in pages
    ]


def _fetched(call: ScriptedFetch) -> Json:
    text = f"The page at {call.url}." if call.page is None else call.page
    source = {"type": "text", "media_type": "text/plain", "data": text}
    document = {"type": "document", "source": source, "title": call.title, "citations": {"enabled": False}}
    at = "2026-11-22T09:00:00Z"
    return {"type": "web_fetch_result", "url": call.url, "retrieved_at": at, "content": document}


def cited(citation: Citation) -> Json:
    """Return a citation as the API writes it."""
    secret = {"encrypted_index": _secret(citation.url, citation.title)}
    return {"type": "web_search_result_location", **citation.model_dump(exclude={"type"}), **secret}


def _dicts(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _secret(url: Any, title: Any) -> str:
    digest = hashlib.sha256(f"simulated page\0{url}\0{title}".encode("utf-8", "replace")).digest()
    return base64.b64encode(digest * 3).decode("ascii")
