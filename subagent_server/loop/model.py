"""The Messages API: one streamed call, with the retries that every user expects and no others.

- A reply is put together here. The SDK's own helper parses the arguments of a tool anew with each piece and
  takes cut-off JSON for whole; here they are parsed once, at the end, and a text that does not parse becomes
  an error that the model can fix.
- The cost of a call comes from the list prices that the library `genai-prices` keeps (no network).
"""

import asyncio
import json
import math
import os
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anthropic
import genai_prices
import httpx2
from anthropic.types import RawMessageStopEvent, RawMessageStreamEvent
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, Provider

from subagent_server.loop.request import (
    Block,
    ContextEdits,
    Message,
    fitting,
    joined_text,
    marked,
    text_of,
    whole_characters,
)
from subagent_server.loop.web import refuses_web_tools
from subagent_server.run.errors import RunRefused
from subagent_server.run.processes import now
from subagent_server.run.records import Usage
from subagent_server.run.states import timestamp
from subagent_server.toolbox.http_body import UNPACKED, BoundedBody
from subagent_server.toolbox.run_context import LONGEST_WAIT_SECONDS, Pace

# -- a reply


_DEEPEST = 100
"""How many levels arguments may have: writing, masking and checking them recurses as deep."""


@dataclass(frozen=True)
class ToolCall:
    """A call the model made. `problem` is why it cannot be run, or None."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None


@dataclass
class ModelReply:
    """The reply so far; whole when `complete`."""

    content: list[Block] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    stop_reason: str | None = None
    model: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    edits: list[Block] = field(default_factory=list)
    """The tool results that the API has hidden from the model, as it reports them."""
    complete: bool = False

    @property
    def text(self) -> str:
        """All text of the reply."""
        return joined_text(self.content)

    @property
    def thoughts(self) -> list[str]:
        """The readable thoughts of the reply."""
        thoughts = (b.get("thinking") for b in self.content if b.get("type") == "thinking")
        return [thought for thought in thoughts if isinstance(thought, str) and thought]

    def sendable(self) -> list[Block]:
        """The content as it goes back to the model: the API refuses empty texts."""
        return [b for b in self.content if b.get("type") != "text" or text_of(b).strip()]


class ReplyBuilder:
    """Takes the events of one stream in their order.

    A text comes in pieces, as many as the API likes. They are joined when the reply is read: joining them at
    each piece would take the square of their number.
    """

    def __init__(self) -> None:
        self._reply = ModelReply()
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """By block and field, the text that the field has and the pieces that belong behind it."""

    @property
    def reply(self) -> ModelReply:
        """The reply so far."""
        for (index, name), pieces in self._pieces.items():
            if name != _ARGUMENTS and len(pieces) > 1:
                pieces[:] = ["".join(pieces)]
                self._reply.content[index][name] = pieces[0]
        return self._reply

    @property
    def complete(self) -> bool:
        """Whether the reply is whole."""
        return self._reply.complete

    @property
    def searches(self) -> bool:
        """Whether the API is at a call of its own tools: nothing else comes before the result."""
        content = self._reply.content
        return bool(content) and content[-1].get("type") == "server_tool_use"

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add one event. New kinds are skipped, as the API's versioning asks of clients."""
        match event.type:
            case "message_start":
                self._reply.model = event.message.model
                self._count(event.message.to_dict(warnings=False).get("usage"))
            case "content_block_start":
                if len(self._reply.content) == MOST_BLOCKS:
                    raise _too_long(f"{MOST_BLOCKS:,} blocks")
                if not isinstance(event.content_block.type, str):
                    raise TypeError("a block has no type")
                self._reply.content.append(dict(event.content_block.to_dict(warnings=False)))
            case "content_block_delta":
                self._grow(event.index, event.delta.to_dict(warnings=False))
            case "message_delta":
                self._reply.stop_reason = event.delta.stop_reason
                if not isinstance(self._reply.stop_reason, str | None):
                    raise TypeError("a reason to stop is not a text")
                facts = event.to_dict(warnings=False)
                self._count(facts.get("usage"))
                managed = facts.get("context_management")
                applied = managed.get("applied_edits") if isinstance(managed, dict) else None
                self._reply.edits = [edit for edit in applied or () if isinstance(edit, dict)]
            case "message_stop":
                self._reply.content = whole_characters(self.reply.content)
                self._take_calls()
                json.dumps(self._reply.content, allow_nan=False)  # it goes back to the API, which has no NaN
                self._reply.complete = True

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self._reply.content[index]
        for name in _GROWING:
            if name in delta:
                first = block.get(name, "")
                if not (isinstance(first, str) and isinstance(delta[name], str)):
                    raise TypeError(f"a piece of {name} is not a text")
                self._pieces.setdefault((index, name), [first]).append(delta[name])
        if "citation" in delta:
            block["citations"] = block.get("citations") or []
            block["citations"].append(delta["citation"])

    def _take_calls(self) -> None:
        """Parse the arguments of calls, in their order; those of a block that was never closed count too.

        The API runs its own tools (`server_tool_use`): their input goes back to it as it came.
        """
        for index, block in enumerate(self._reply.content):
            raw = whole_characters("".join(self._pieces.get((index, _ARGUMENTS), [])))
            is_call = block.get("type") == "tool_use"
            if not (is_call or raw):
                continue
            # gateways send the input whole, with the block: it is judged as the pieces of a stream are
            arguments, problem = _parsed(raw or json.dumps(block.get("input") or {}))
            block["input"] = whole_characters(arguments)
            if is_call:
                name = block["name"]
                if not (isinstance(block.get("id"), str) and block["id"]):  # the API would refuse it
                    block["id"] = "call"
                if not _TOOL_NAME.fullmatch(name):  # models invent such names, and the API refuses them
                    block["name"] = "unknown"
                self._reply.calls.append(ToolCall(block["id"], name, arguments, problem))

    def _count(self, usage: object) -> None:
        """Take the counts of an event; gateways send some without any."""
        counts: dict[str, Any] = {**usage} if isinstance(usage, dict) else {}
        for more in (counts.get("cache_creation"), counts.get("server_tool_use")):
            counts |= more if isinstance(more, dict) else {}
        counts = {
            key: value for key, value in counts.items() if isinstance(value, int | float) and value >= 0
        }
        if max(counts.values(), default=0) > _MOST_TOKENS:
            raise TypeError("a count of tokens is beyond all bounds")
        for key, n in counts.items():  # they are running totals, so a later one that is smaller is wrong
            self._reply.usage[key] = max(math.ceil(n), self._reply.usage.get(key, 0))


MOST_BYTES = 32 << 20
"""Of one answer. The API takes no more in a request, so the conversation could not hold a longer one."""
MOST_BLOCKS = 10_000
"""Of one reply: each takes a hundred times the memory of its shortest event."""
_MOST_TOKENS = 1 << 53
"""Of one call, so that sums of many stay numbers that every reader of JSON can hold."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ARGUMENTS = "partial_json"
_GROWING = ("text", "thinking", "signature", _ARGUMENTS)
"""The fields of a delta that extend the field of the same name in its block; the JSON of a call is apart."""


def _too_long(most: str) -> RunRefused:
    words = f"The answer of the API has more than {most}, so it was broken off."
    return RunRefused("model_error", words, "Check the address of the model: no model writes as much.")


def _parsed(raw: str) -> tuple[dict[str, Any], str | None]:
    try:
        value = json.loads(raw, parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        return {}, f"The arguments are not valid JSON ({error}): send them again, whole."
    except RecursionError:
        return {}, _TOO_DEEP
    if not isinstance(value, dict):
        return {}, "The arguments are no JSON object: send an object with the tool's fields."
    return ({}, _TOO_DEEP) if _is_deeper(value, _DEEPEST) else (value, None)


_TOO_DEEP = f"The arguments are nested more than {_DEEPEST} deep: send them flatter."


def _finite(text: str) -> float:
    """Return a number. Python reads `1e999` and `NaN`, and JSON cannot hold them."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that JSON can hold")
    return number


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inside)


# -- prices and usage


@dataclass(frozen=True)
class Prices:
    """The list prices of one model. Tiers count: each call is priced by itself, never a sum of calls."""

    _provider: Provider
    _model: ModelInfo

    @property
    def context_window(self) -> int | None:
        """How many tokens a request may have, if the list has it."""
        return self._model.context_window

    def cost(self, usage: Mapping[str, int]) -> Decimal:
        """Return the cost in USD of one call with this `usage`, as the Messages API counts it."""
        read = usage.get("cache_read_input_tokens", 0)
        written = usage.get("cache_creation_input_tokens", 0)
        tokens = genai_prices.Usage(
            input_tokens=usage.get("input_tokens", 0) + read + written,
            cache_read_tokens=read,
            cache_write_tokens=written,
            cache_write_1h_tokens=min(written, usage.get("ephemeral_1h_input_tokens", 0)),
            output_tokens=usage.get("output_tokens", 0),
            web_searches=usage.get("web_search_requests", 0),
        )
        return self._model.calc_price(tokens, self._provider).total_price

    @property
    def web_search(self) -> Decimal:
        """The cost in USD of one web search, without the tokens of its results."""
        return self.cost({"web_search_requests": 1}) - self.cost({})


def find_prices(model: str) -> Prices | None:
    """Return the prices of a model, or None if the list does not know it."""
    try:
        provider, known = get_snapshot().find_provider_model(model, None, "anthropic", None)
    except LookupError:
        return None
    return Prices(provider, known)


@dataclass
class UsageMeter:
    """Adds up tokens, turns and money. Without `prices` the cost is unknown."""

    prices: Prices | None = None
    usage: Usage = field(default_factory=Usage)
    _is_charged: bool = False
    """Whether the API has named the tokens of the turn under way."""

    @property
    def turns(self) -> int:
        """How many turns there have been."""
        return self.usage.turns or 0

    def charge(self, used: Mapping[str, int]) -> None:
        """Add the token counts of one call of the API; a reply that broke off costs too."""
        if not used:
            return
        self._is_charged = True
        self.usage = self.usage.plus(
            Usage(
                input_tokens=used.get("input_tokens", 0),
                output_tokens=used.get("output_tokens", 0),
                cache_read_tokens=used.get("cache_read_input_tokens", 0),
                cache_write_tokens=used.get("cache_creation_input_tokens", 0),
                web_searches=used.get("web_search_requests", 0),
                web_fetches=used.get("web_fetch_requests", 0),
                cost_usd=self.prices.cost(used).normalize() if self.prices else None,
            )
        )

    def count_turn(self, tool_calls: int) -> None:
        """Add a whole reply with its calls."""
        is_known = self._is_charged and self.usage.cost_usd is not None
        free = Decimal(0) if is_known else None  # the tokens are what costs
        self.usage = self.usage.plus(Usage(turns=1, tool_calls=tool_calls, cost_usd=free))
        self._is_charged = False


# -- the connection

_FIX_PROXIES = "Look at HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR."
_made: dict[tuple[str | None, ...], ssl.SSLContext] = {}


def http_client(on_sent: Callable[[], None], *, direct: bool) -> httpx2.AsyncClient:
    """Return a client with the defaults of the SDK and the TLS context of this process.

    `on_sent` is called whenever a request has been sent whole, before its reply is waited for. A `direct` one
    uses no proxy.

    Raises:
        RunRefused: `config`, if proxies or certificates of the environment cannot be used.
    """

    async def trace(name: str, info: Mapping[str, Any]) -> None:
        if name.endswith("send_request_body.complete"):  # httpcore puts the name of the HTTP version before
            on_sent()

    async def watch(request: httpx2.Request) -> None:
        request.extensions["trace"] = trace

    async def bound(response: httpx2.Response) -> None:
        response.stream = BoundedBody(response, MOST_BYTES, lambda: _too_long(f"{MOST_BYTES >> 20} MiB"))

    # the SDK's own asks for proxies whatever `trust_env` is
    client = partial(httpx2.AsyncClient, trust_env=False) if direct else anthropic.DefaultAsyncHttpxClient
    try:
        return client(
            verify=tls_context(),
            headers=UNPACKED,
            event_hooks={"request": [watch], "response": [bound]},
            follow_redirects=False,  # key and conversation would go to another host
        )
    except ModuleNotFoundError:  # as amid an upgrade; that of SOCKS is an ImportError
        raise
    except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
        why = str(error).rstrip(".")
        message = f"The environment names a proxy or certificates that cannot be used: {why}."
        raise RunRefused("config", message, _FIX_PROXIES) from error


def tls_context() -> ssl.SSLContext:
    """Return the context for these certificates; a fork has the context of its parent process."""
    named = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    if named not in _made:
        _made[named] = httpx2.create_ssl_context()
    return _made[named]


# -- the call

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
MAX_ATTEMPTS = 10
DEFAULT_MAX_TOKENS = 32_000
IDLE_SECONDS = 600.0
"""How long a stream may pause. Models think for minutes without a word, and pings prove nothing."""
CONNECT_SECONDS = 10.0
END_SECONDS = 1.0
"""How long a stream may last behind its reply."""

_SPARED = "other runs met a busy API, which this one spares too"
_BUSY = {429: "the API limits the rate", 529: "the API is overloaded"}
_TRANSIENT = {
    408: "the API waited too long for the request",
    500: "the API met a fault of its own",
    502: "the API could not be reached behind its gateway",
    503: "the API is not available",
    504: "the API took too long",
}
"""Faults that are tried again (SPEC section 6), without a word to the other runs."""
_STATUS_OF_TYPE = {"rate_limit_error": 429, "overloaded_error": 529, "api_error": 500, "timeout_error": 504}
"""The status of an error that comes in the middle of a stream, whose own status is 200."""


@dataclass(frozen=True)
class ModelSettings:
    """The model, its address, and the parameters of each request."""

    model: str
    api_key: str
    base_url: str | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    effort: str | None = None
    idle_seconds: float = IDLE_SECONDS
    context_window: int | None = None
    direct: bool = False
    """Whether a script in this process plays the API: a proxy does not reach it."""


@dataclass(frozen=True)
class Retry:
    """An attempt that waits: why, and for how many seconds.

    `busy`: the API has too much to do; `asked`: it named the seconds.
    """

    reason: str
    seconds: float
    busy: bool = False
    asked: bool = False


OnSpent = Callable[[Mapping[str, int]], None]
"""Gets the token counts of an attempt."""


class Model:
    """Calls the API. Network faults, 408, 429 and the faults of servers are retried; others end the run."""

    def __init__(
        self, settings: ModelSettings, pace: Pace, on_sent: Callable[[], None] = lambda: None
    ) -> None:
        """`on_sent` is called whenever a request has been sent. Raises RunRefused: `config`."""
        self.use(settings)
        self._pace = pace
        self._broken_off = ""
        self._streaming: ReplyBuilder | None = None
        client = http_client(on_sent, direct=settings.direct)
        try:
            self._client = anthropic.AsyncAnthropic(
                api_key=settings.api_key,
                base_url=settings.base_url,
                max_retries=0,  # retried here, where the run's log has each attempt
                timeout=httpx2.Timeout(settings.idle_seconds + 1, connect=CONNECT_SECONDS),
                http_client=client,
                open_telemetry=False,  # spans are made of the journal
            )
        except httpx2.InvalidURL as error:  # a host that no resolver can be asked for
            message = f"The address of the model cannot be used: {error}."
            raise RunRefused("config", message, "Look at `baseUrl` or ANTHROPIC_BASE_URL.") from error

    def use(self, settings: ModelSettings) -> None:
        """Call this model from now on, at the address and with the key of the first."""
        self._settings = settings
        self.context = ContextEdits(settings.model, settings.context_window)

    @property
    def partial_text(self) -> str:
        """The text of an incomplete reply: it is still coming, or the last attempt broke off."""
        return (self._streaming.reply.text if self._streaming is not None else "") or self._broken_off

    async def reply(
        self,
        system: list[Block],
        messages: list[Message],
        tools: list[Block],
        on_retry: Callable[[Retry], Awaitable[None]],
        on_spent: OnSpent = lambda _: None,
    ) -> ModelReply:
        """Return the model's next turn. `on_retry` gets each failed attempt and does the waiting.

        `on_spent` gets the token counts of each attempt as far as the API sent them, also of a failed one.

        Raises:
            RunRefused: `model_error` with the words of the API, or that it stayed out of reach.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            while (seconds := self._pace.hold()) > 0:
                await on_retry(Retry(_SPARED, seconds, busy=True))
            try:
                reply = await self._attempt(self._request(system, messages, tools), on_spent)
                self._broken_off = ""
                return reply
            except (anthropic.APIError, httpx2.RequestError, _CutStream) as error:
                retry = self._without_edits(error) or _retry(error, attempt)
                if retry is None:
                    raise _refusal(error, tools) from error
                if retry.busy:  # the runs that call the same API agree on the wait
                    seconds = self._pace.busy(retry.seconds, asked=retry.asked)
                    retry = replace(retry, seconds=seconds)
                if attempt == MAX_ATTEMPTS:
                    raise self._gave_up(retry) from error
                await on_retry(retry)
        raise AssertionError("the last attempt returns or raises")

    def _without_edits(self, error: Exception) -> Retry | None:
        """Return a retry without context edits, if the API has none for the model."""
        if not isinstance(error, anthropic.BadRequestError) or not self.context.give_up(_message_of(error)):
            return None
        return Retry("the API clears no old tool results for this model, so a long run may end early", 0)

    def _gave_up(self, retry: Retry) -> RunRefused:
        api = urlsplit(str(self._client.base_url)).hostname or "the API"
        message = f"{MAX_ATTEMPTS} attempts at {api} failed: {retry.reason}"
        if not retry.busy:
            hint = "Check ANTHROPIC_BASE_URL, HTTPS_PROXY, SSL_CERT_FILE and the network, then continue it."
            return RunRefused("model_error", f"{message}.", hint)
        moment = timestamp(now() + timedelta(seconds=retry.seconds))
        return RunRefused("model_error", f"{message}; it may be called again at {moment}.", _BUSY_HINT)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _request(self, system: list[Block], messages: list[Message], tools: list[Block]) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._settings.model,
            "max_tokens": self._settings.max_tokens,
            **marked(system, tools, fitting(messages)),
            **self.context.options(),
        }
        if self._settings.effort:
            request["output_config"] = {"effort": self._settings.effort}
        return request

    async def _attempt(self, request: dict[str, Any], on_spent: OnSpent) -> ModelReply:
        builder = ReplyBuilder()
        self._streaming = builder
        try:
            async with await self._client.messages.create(**request, stream=True) as stream:
                await _check_is_stream(stream.response)
                async for event in self._events(stream, builder):
                    try:
                        builder.take(event)
                    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
                        words = f"the stream held an event that makes no sense ({event.type})"
                        raise _CutStream(words) from error
        finally:
            self._streaming = None
            self._broken_off = builder.reply.text or self._broken_off
            on_spent(builder.reply.usage)
        return builder.reply

    async def _events(
        self, stream: "anthropic.AsyncStream[RawMessageStreamEvent]", builder: ReplyBuilder
    ) -> AsyncIterator[RawMessageStreamEvent]:
        """Yield the events of a reply as long as the stream moves; the SDK leaves the pings out.

        While the API searches, nothing but pings comes: then only a connection without any is dead, which the
        client's own timeout of a read notices.
        """
        events = aiter(stream)
        fault: Exception
        while not builder.complete:
            try:
                async with asyncio.timeout(None if builder.searches else self._settings.idle_seconds):
                    event = await anext(events)
            except StopAsyncIteration:
                fault = _CutStream("the stream ended before the reply did")
            except (ValueError, RecursionError):  # of JSON, of UTF-8, or of too many digits
                fault = _CutStream("the stream held data that is not JSON in UTF-8")
            except TimeoutError:
                fault = _CutStream(f"the stream stood still for {self._settings.idle_seconds:g} s")
            except (anthropic.APIError, httpx2.RequestError) as error:
                fault = error
            else:
                yield event
                continue
            if builder.reply.stop_reason is None:
                raise fault
            # It is whole and paid for: only the sign of its end is missing, which some gateways never send.
            yield RawMessageStopEvent(type="message_stop")
        # The reply is whole, whatever comes now; and a connection that is read to its end is used again.
        with suppress(Exception):
            async with asyncio.timeout(END_SECONDS):
                await anext(events)


async def _check_is_stream(response: httpx2.Response) -> None:
    """Refuse an answer that is not a stream: a second attempt would get it again, and be paid again.

    Raises:
        RunRefused: `model_error`, with its begin.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/json", "text/html"):
        begin = (await response.aread())[:1000].decode("utf-8", "replace")
        message = f"The API answered with {kind} where a stream was asked for: {begin}"
        raise RunRefused("model_error", message, "Check `baseUrl` or ANTHROPIC_BASE_URL: it has to stream.")


class _CutStream(Exception):
    """A stream that ended in the middle, stalled, or made no sense."""


def _retry(error: Exception, attempt: int) -> Retry | None:
    """Return how to continue after `error`, or None if it is final."""
    delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)
    if isinstance(error, anthropic.APIStatusError):
        named = _STATUS_OF_TYPE.get(_field_of(error, "type"), 0)
        status = named if named in _BUSY or error.status_code < 400 else error.status_code
        reason = _BUSY.get(status) or _TRANSIENT.get(status)
        if reason is None:
            return None
        asked = _asked_delay(error)
        seconds = delay if asked is None else asked
        return Retry(f"{reason} ({status})", seconds, busy=status in _BUSY, asked=asked is not None)
    if isinstance(error, anthropic.APIResponseValidationError):
        return None
    return Retry(f"the connection to the API failed ({_cause(error)})", delay)


def _asked_delay(error: anthropic.APIStatusError) -> float | None:
    """Return the `retry-after` of the API, in seconds, bounded; None if it names no moment to come."""
    text = error.response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - now()).total_seconds()
        except (ValueError, TypeError, OverflowError):  # no date, or one without a time zone
            return None
    return min(LONGEST_WAIT_SECONDS, seconds) if seconds > 0 else None  # NaN is not


def _field_of(error: Exception, name: str) -> str:
    """Return what the API calls an error: its `type`, such as `overloaded_error`, or its `message`."""
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    return str(inner.get(name) or "") if isinstance(inner, dict) else ""


def _message_of(error: Exception) -> str:
    return (_field_of(error, "message") or str(error))[:1000]


def _cause(error: Exception) -> str:
    deepest: BaseException = error
    while not isinstance(deepest, _CutStream) and deepest.__cause__ is not None:
        deepest = deepest.__cause__
    words = str(deepest) or type(deepest).__name__
    return f"the proxy refused: {words}" if isinstance(error.__cause__, httpx2.ProxyError) else words


def _refusal(error: Exception, tools: Sequence[Mapping[str, Any]]) -> RunRefused:
    words = _message_of(error)
    status = error.status_code if isinstance(error, anthropic.APIStatusError) else 0
    kind = _field_of(error, "type") if isinstance(error, anthropic.APIStatusError) else type(error).__name__
    fault = f"{status} {kind}".strip() if status >= 300 else kind
    if refuses_web_tools(status, words, tools):
        return RunRefused("config", f"The API refused the web tools ({fault}): {words}", _NO_WEB_TOOLS)
    lacks_credit = "credit balance" in words or _field_of(error, "type") == "billing_error"
    known = 300 if 300 <= status < 400 else 402 if lacks_credit else status
    hint = CONTEXT_HINT if _TOO_LONG in words else _HINTS.get(known)
    return RunRefused("model_error", f"The API refused the call ({fault}): {words}", hint)


_NO_WEB_TOOLS = "Take WebSearch and WebFetch out of `tools`, or use an API and a model that have them."
_BUSY_HINT = "Continue the run then, or raise the limits of the account."
_TOO_LONG = "prompt is too long"
CONTEXT_HINT = "The conversation no longer fits the model: give it a smaller task, or a larger window."
_HINTS = {
    300: "The address of the API leads elsewhere: name that address by `baseUrl` or ANTHROPIC_BASE_URL.",
    400: "The request does not suit this model: check `model`, `maxTokens` and the output schema.",
    401: "Check the API key in ANTHROPIC_API_KEY (or the variable that `apiKeyEnv` names).",
    402: "The account of the API key has no credit: add some, then continue the run.",
    403: "The API key may not use this model.",
    404: "Check the name of the model in the agent file, and the path in `baseUrl` or ANTHROPIC_BASE_URL.",
    413: "The conversation is too large: give the agent less material.",
}
