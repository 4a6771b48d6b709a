"""The Messages API: one streamed call, with the retries that every user expects and no others."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx2
from anthropic.types import RawMessageStreamEvent

from subagent_server.domain.errors import RunRefused
from subagent_server.domain.times import timestamp
from subagent_server.host.clock import now
from subagent_server.runners.messages.caching import marked
from subagent_server.runners.messages.connection import http_client
from subagent_server.runners.messages.context import ContextEdits
from subagent_server.runners.messages.reply import ModelReply, ReplyBuilder
from subagent_server.runners.messages.web_tools import refuses_web_tools
from subagent_server.toolkit.pace import LONGEST_WAIT_SECONDS, Alone, Pace

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
MAX_ATTEMPTS = 10
DEFAULT_MAX_TOKENS = 32_000
IDLE_SECONDS = 600.0
"""How long a stream may stand still. Models think for minutes without a word, and pings say nothing."""
CONNECT_SECONDS = 10.0

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


@dataclass(frozen=True)
class Retry:
    """An attempt that waits: why, and for how many seconds.

    `busy`: the API has too much to do; `asked`: it named the seconds.
    """

    reason: str
    seconds: float
    busy: bool = False
    asked: bool = False


OnRetry = Callable[[Retry], Awaitable[None]]
OnSpent = Callable[[Mapping[str, int]], None]
OnSent = Callable[[], None]


def not_counted(usage: Mapping[str, int]) -> None:
    """Count nothing."""


def not_noted() -> None:
    """Note nothing."""


class Model:
    """Calls the API. Network faults, 408, 429 and the faults of servers are retried; others end the run."""

    def __init__(
        self, settings: ModelSettings, pace: Pace | None = None, on_sent: OnSent = not_noted
    ) -> None:
        """`on_sent` is called whenever a request has been sent, before its reply is waited for."""
        self._settings = settings
        self._pace = pace or Alone()
        self.context = ContextEdits(settings.model, settings.context_window)
        self._broken_off = ""
        self._streaming: ReplyBuilder | None = None
        self._client = anthropic.AsyncAnthropic(
            api_key=settings.api_key,
            base_url=settings.base_url,
            max_retries=0,  # retried here, where the run's log has each attempt
            timeout=httpx2.Timeout(settings.idle_seconds + 1, connect=CONNECT_SECONDS),
            http_client=http_client(on_sent),
            open_telemetry=False,  # spans are made of the journal (service/otlp.py)
        )

    @property
    def partial_text(self) -> str:
        """The text of a reply that is not whole: it still comes, or the last attempt broke off."""
        return (self._streaming.reply.text if self._streaming is not None else "") or self._broken_off

    async def reply(
        self,
        system: list[dict[str, Any]],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        on_retry: OnRetry,
        on_spent: OnSpent = not_counted,
    ) -> ModelReply:
        """Return the model's next turn. `on_retry` gets each failed attempt and does the waiting.

        `on_spent` gets the token counts of each attempt as far as the API gave them, also of a failed one.

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
            except (anthropic.APIError, httpx2.TransportError, _CutStream) as error:
                retry = self._without_edits(error) or _retry(error, attempt)
                if retry is None:
                    raise _refusal(error, tools) from error
                retry = self._agreed(retry)
                if attempt == MAX_ATTEMPTS:
                    raise self._gave_up(retry) from error
                await on_retry(retry)
        raise AssertionError("the last attempt returns or raises")

    def _without_edits(self, error: Exception) -> Retry | None:
        """Return a retry without context edits, if the API has none for the model."""
        if not isinstance(error, anthropic.BadRequestError) or not self.context.give_up(_said(error)):
            return None
        return Retry("the API clears no old tool results for this model, so a long run may end early", 0)

    def _agreed(self, retry: Retry) -> Retry:
        """Return the wait that the runs agree on which call the same API."""
        if not retry.busy:
            return retry
        return replace(retry, seconds=self._pace.busy(retry.seconds, asked=retry.asked))

    def _gave_up(self, retry: Retry) -> RunRefused:
        api = urlsplit(str(self._client.base_url)).hostname or "the API"
        message = f"{MAX_ATTEMPTS} attempts at {api} failed: {retry.reason}"
        if not retry.busy:
            hint = "Check ANTHROPIC_BASE_URL and the network, then start the run again."
            return RunRefused("model_error", f"{message}.", hint)
        moment = timestamp(now() + timedelta(seconds=retry.seconds))
        return RunRefused("model_error", f"{message}; it may be called again at {moment}.", _BUSY_HINT)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _request(
        self, system: list[dict[str, Any]], messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._settings.model,
            "max_tokens": self._settings.max_tokens,
            **marked(system, tools, messages),
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
                async for event in self._events(stream, builder):
                    _take(builder, event)
        finally:
            self._streaming = None
            self._broken_off = builder.reply.text or self._broken_off
            on_spent(builder.reply.usage)
        if not builder.reply.complete:
            raise _CutStream("the stream ended before the reply did")
        return builder.reply

    async def _events(
        self, stream: "anthropic.AsyncStream[RawMessageStreamEvent]", builder: ReplyBuilder
    ) -> AsyncIterator[RawMessageStreamEvent]:
        """Yield the events of a stream as long as it moves; the SDK leaves the pings out.

        While the API searches, nothing but pings comes: then only a connection without any is dead, which the
        client's own timeout of a read notices.
        """
        events = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(None if builder.searches else self._settings.idle_seconds):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except ValueError as error:  # of JSON, of UTF-8, or of a number with too many digits
                raise _CutStream("the stream held data that is not JSON in UTF-8") from error
            except TimeoutError as error:
                raise _CutStream(f"the stream stood still for {self._settings.idle_seconds:g} s") from error
            yield event


class _CutStream(Exception):
    """A stream that ended in the middle, stood still, or made no sense."""


def _take(builder: ReplyBuilder, event: RawMessageStreamEvent) -> None:
    """Add an event; if it does not fit those before it, the stream was damaged on its way."""
    try:
        builder.take(event)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise _CutStream(f"the stream held an event that makes no sense ({event.type})") from error


def _retry(error: Exception, attempt: int) -> Retry | None:
    """Return how to go on after `error`, or None if it is final."""
    delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)
    if isinstance(error, anthropic.APIStatusError):
        named = _STATUS_OF_TYPE.get(api_error_type(error), 0)
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
        seconds = _seconds_until(text)
    return min(LONGEST_WAIT_SECONDS, seconds) if seconds > 0 else None  # NaN is not


def _seconds_until(date: str) -> float:
    try:
        return (parsedate_to_datetime(date) - now()).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a time zone
        return math.nan


def api_error_type(error: anthropic.APIStatusError) -> str:
    """Return the API's name of the fault, such as `overloaded_error`; empty if it gives none."""
    body = error.body
    inner = body.get("error") if isinstance(body, dict) else None
    return str(inner.get("type", "")) if isinstance(inner, dict) else ""


def _said(error: Exception) -> str:
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    return str(message or error)[:1000]


def _cause(error: Exception) -> str:
    deepest: BaseException = error
    while not isinstance(deepest, _CutStream) and deepest.__cause__ is not None:
        deepest = deepest.__cause__
    return str(deepest) or type(deepest).__name__


def _refusal(error: Exception, tools: Sequence[Mapping[str, Any]]) -> RunRefused:
    status = error.status_code if isinstance(error, anthropic.APIStatusError) else 0
    kind = api_error_type(error) if isinstance(error, anthropic.APIStatusError) else type(error).__name__
    fault = f"{status} {kind}".strip() if status >= 400 else kind
    if refuses_web_tools(status, _said(error), tools):
        return RunRefused("config", f"The API refused the web tools ({fault}): {_said(error)}", _NO_WEB_TOOLS)
    hint = CONTEXT_HINT if _TOO_LONG in _said(error) else _HINTS.get(status)
    return RunRefused("model_error", f"The API refused the call ({fault}): {_said(error)}", hint)


_NO_WEB_TOOLS = "Take WebSearch and WebFetch out of `tools`, or use an API and a model that have them."
_BUSY_HINT = "Continue the run then, or raise the limits of the account."
_TOO_LONG = "prompt is too long"
CONTEXT_HINT = "The conversation no longer fits the model: give it a smaller task, or a larger window."
_HINTS = {
    400: "The request does not suit this model: check `model`, `maxTokens` and the output schema.",
    401: "Check the API key in ANTHROPIC_API_KEY (or the variable that `apiKeyEnv` names).",
    403: "The API key may not use this model.",
    404: "Check the name of the model in the agent file.",
    413: "The conversation is too large: give the agent less material.",
}
