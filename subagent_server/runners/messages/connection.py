"""How the Messages API is reached: one TLS context, which is dear to make and is the same for every run."""

import os
import ssl

import anthropic
import httpx2

_SHAPERS = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""What the trust in servers depends on."""

_made: dict[tuple[str | None, ...], ssl.SSLContext] = {}


def http_client() -> httpx2.AsyncClient:
    """Return a client with the defaults of the SDK, on the context that is there already where one is."""
    return anthropic.DefaultAsyncHttpxClient(verify=tls_context())


def tls_context() -> ssl.SSLContext:
    """Return the context for these certificates; a process that was forked has that of the one before it."""
    shape = tuple(os.environ.get(name) for name in _SHAPERS)
    if shape not in _made:
        _made[shape] = httpx2.create_ssl_context()
    return _made[shape]
