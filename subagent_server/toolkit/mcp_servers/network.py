"""The transports over HTTP: streamable HTTP, and its predecessor SSE."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from subagent_server.domain.definitions import ServerDefinition

LONGEST_EVENT = 64 << 20
"""Bytes of one event of a streamable HTTP server."""
_CONNECT_SECONDS = 30.0


@dataclass
class NetworkTransport:
    """An asynchronous context with the streams of a server. `trouble` is its last refusal."""

    definition: ServerDefinition
    trouble: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Never set: whether such a server is there shows at the next call."""
    grace: float = 0.0
    _context: Any = field(default=None, init=False)

    async def __aenter__(self) -> Any:
        """Open it. Nothing is asked of a streamable HTTP server yet."""
        self._context = self._open()
        return await self._context.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        """Close it; a session is ended on the server, too."""
        return await self._context.__aexit__(*error)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        url = self.definition.url or ""
        if self.definition.type == "sse":
            async with sse_client(url, httpx_client_factory=self._client) as streams:
                yield streams
            return
        async with (
            self._client() as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=LONGEST_EVENT) as streams,
        ):
            yield streams

    def _client(self, headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        """Return a client with the headers of the definition; reading ends with the call, not before.

        The arguments are those of the SDK for a factory of clients.
        """
        return httpx2.AsyncClient(
            headers=_sendable(self.definition.headers),
            timeout=httpx2.Timeout(min(_CONNECT_SECONDS, self.definition.timeout), read=None),
            event_hooks={"response": [self._notice]},
        )

    async def _notice(self, response: httpx2.Response) -> None:
        if response.status_code < 400:
            return
        await response.aread()
        said = " ".join(response.text[:300].split())
        self.trouble = f"answered HTTP {response.status_code} {response.reason_phrase}".rstrip()
        self.trouble += f" ({said})" if said else ""


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as HTTP takes them, without the white space around a value.

    Raises:
        ValueError: one cannot be sent; its value, which may be a secret, is not shown.
    """
    sendable = {name: value.strip() for name, value in headers.items()}
    for name, value in sendable.items():
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of its header {name} holds a line break, or what is not ASCII")
    return sendable


def shown_url(url: str) -> str:
    """Return a URL without the parts that may be secret: user, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
