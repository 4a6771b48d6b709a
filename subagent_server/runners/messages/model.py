"""The Messages API: one streamed call, with the retries that every user expects and no others."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2

from subagent_server.domain.errors import RunRefused
from subagent_server.runners.messages.connection import http_client
from subagent_server.runners.messages.reply import ModelReply, ReplyBuilder

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
MAX_ATTEMPTS = 10
DEFAULT_MAX_TOKENS = 32_000
REQUEST_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)

_BUSY = {429: "the API limits the rate", 529: "the API is overloaded"}
_BUSY_TYPES = {"rate_limit_error": 429, "overloaded_error": 529}


@dataclass(frozen=True)
class ModelSettings:
    """Which model, where, and how it is asked."""

    model: str
    api_key: str
    base_url: str | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    effort: str | None = None


@dataclass(frozen=True)
class Retry:
    """A failed attempt that will be repeated: why, and after how many seconds."""

    reason: str
    seconds: float


class Model:
    """Calls the API. Network faults, 429 and 529 are retried; any other failure ends the run."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._client = anthropic.AsyncAnthropic(
            api_key=settings.api_key,
            base_url=settings.base_url,
            max_retries=0,  # retried here, where each attempt is told in the run's log
            timeout=REQUEST_TIMEOUT,
            http_client=http_client(),
        )

    async def reply(
        self,
        system: list[dict[str, Any]],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        on_retry: Callable[[Retry], Awaitable[None]],
    ) -> ModelReply:
        """Return the model's next turn. `on_retry` is told of each failed attempt and does the waiting.

        Raises:
            RunRefused: `model_error` with what the API said, or that it stayed out of reach.
        """
        request = self._request(system, messages, tools)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._attempt(request)
            except (anthropic.APIError, httpx2.TransportError, _CutStream) as error:
                retry = _retry(error, attempt)
                if retry is None:
                    raise _refusal(error) from error
                if attempt == MAX_ATTEMPTS:
                    raise _gave_up(retry) from error
                await on_retry(retry)
        raise AssertionError("the last attempt returns or raises")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _request(
        self, system: list[dict[str, Any]], messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._settings.model,
            "max_tokens": self._settings.max_tokens,
            "system": system,
            "messages": messages,
            "cache_control": {"type": "ephemeral"},
        }
        if tools:
            request["tools"] = tools
        if self._settings.effort:
            request["output_config"] = {"effort": self._settings.effort}
        return request

    async def _attempt(self, request: dict[str, Any]) -> ModelReply:
        builder = ReplyBuilder()
        stream = await self._client.messages.create(**request, stream=True)
        async with stream:
            async for event in stream:
                builder.take(event)
        if not builder.reply.complete:
            raise _CutStream("the stream ended before the reply did")
        return builder.reply


class _CutStream(Exception):
    """A stream that ended in the middle without a word."""


def _retry(error: Exception, attempt: int) -> Retry | None:
    """Return how to go on after `error`, or None where it is final."""
    delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)
    if isinstance(error, anthropic.APIStatusError):
        status = _BUSY_TYPES.get(_error_type(error), error.status_code)
        if status not in _BUSY:
            return None
        asked = _asked_delay(error)
        return Retry(f"{_BUSY[status]} ({status})", delay if asked is None else asked)
    if isinstance(error, anthropic.APIResponseValidationError):
        return None
    return Retry(f"the connection to the API failed ({_cause(error)})", delay)


def _asked_delay(error: anthropic.APIStatusError) -> float | None:
    """Return the `retry-after` of the API, in seconds, bounded."""
    text = error.response.headers.get("retry-after", "")
    try:
        return min(120.0, max(0.0, float(text)))
    except ValueError:
        return None


def _error_type(error: anthropic.APIStatusError) -> str:
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
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    return str(deepest) or type(deepest).__name__


def _refusal(error: Exception) -> RunRefused:
    status = error.status_code if isinstance(error, anthropic.APIStatusError) else 0
    kind = _error_type(error) if isinstance(error, anthropic.APIStatusError) else type(error).__name__
    what = f"{status} {kind}".strip() if status >= 400 else kind
    return RunRefused("model_error", f"The API refused the call ({what}): {_said(error)}", _HINTS.get(status))


def _gave_up(retry: Retry) -> RunRefused:
    return RunRefused(
        "model_error",
        f"{MAX_ATTEMPTS} attempts failed: {retry.reason}.",
        "Check ANTHROPIC_BASE_URL and the network, then start the run again.",
    )


_HINTS = {
    400: "The request does not suit this model: check `model`, `maxTokens` and the output schema.",
    401: "Check the API key in ANTHROPIC_API_KEY (or the variable that `apiKeyEnv` names).",
    403: "The API key may not use this model.",
    404: "Check the name of the model in the agent file.",
    413: "The conversation is too large: give the agent less material.",
}
