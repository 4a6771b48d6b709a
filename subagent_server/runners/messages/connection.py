"""The connection to the Messages API: one TLS context, slow to make and the same for every run."""

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import anthropic
import httpx2

_SHAPERS = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables that the trust in servers depends on."""

_SENT = "send_request_body.complete"
"""How the trace extension of httpcore calls this, behind the name of the HTTP version."""

_made: dict[tuple[str | None, ...], ssl.SSLContext] = {}


def http_client(on_sent: Callable[[], None]) -> httpx2.AsyncClient:
    """Return a client with the defaults of the SDK and the TLS context of this process.

    `on_sent` is called whenever a request has been sent whole, before its reply is waited for.
    """

    async def trace(name: str, info: Mapping[str, Any]) -> None:
        if name.endswith(_SENT):
            on_sent()

    async def watch(request: httpx2.Request) -> None:
        request.extensions["trace"] = trace

    return anthropic.DefaultAsyncHttpxClient(verify=tls_context(), event_hooks={"request": [watch]})


def tls_context() -> ssl.SSLContext:
    """Return the context for these certificates; a fork has the context of its parent process."""
    shape = tuple(os.environ.get(name) for name in _SHAPERS)
    if shape not in _made:
        _made[shape] = httpx2.create_ssl_context()
    return _made[shape]
