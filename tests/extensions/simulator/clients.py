"""Two ways to reach a simulator: the real client of the API, and plain HTTP."""

import asyncio
from typing import Any

import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.types import Message

from subagent_server.extensions.simulator import Simulator

BOUND = 60.0
KEY = {"x-api-key": "test"}
LOCAL: dict[str, Any] = {"verify": False, "trust_env": False}
"""For loopback: to load the certificates of the system, as each client does, takes longer than a test."""


def client_of(simulator: Simulator, **options: Any) -> AsyncAnthropic:
    """Return the real client."""
    plain = DefaultAsyncHttpxClient(**LOCAL)
    return AsyncAnthropic(api_key="test", base_url=simulator.base_url, http_client=plain, **options)


def ask(simulator: Simulator, messages: Any, *, retries: int = 0, **options: Any) -> Message:
    """Ask with the real client, streaming; `messages` is the list, or the text of one user message."""
    spoken = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    asked: dict[str, Any] = {"model": "claude-test", "max_tokens": 1000, "messages": spoken} | options

    async def talk() -> Message:
        async with (
            client_of(simulator, max_retries=retries, timeout=BOUND) as client,
            client.messages.stream(**asked) as stream,
        ):
            return await stream.get_final_message()

    return asyncio.run(talk())


def post(
    simulator: Simulator,
    *,
    path: str = "/v1/messages",
    raw: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = BOUND,
    **given: Any,
) -> httpx2.Response:
    """Post a body over plain HTTP: that of a valid request with the given keys; None leaves a key out."""
    default = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    body = {key: value for key, value in (default | given).items() if value is not None}
    sent: dict[str, Any] = {"json": body} if raw is None else {"content": raw}
    known = KEY if headers is None else headers
    url = simulator.base_url + path
    return httpx2.post(url, headers=known, timeout=timeout, **LOCAL, **sent)
