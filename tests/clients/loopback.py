"""Servers of the tests on loopback: an application in a thread, and a fence around the clients."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

HOST = "127.0.0.1"
_BOUND_SECONDS = 10.0
_READ_SECONDS = 2.0


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application and give its URL."""
    listener = _listener()
    config = uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=600,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(_BOUND_SECONDS)
        assert not thread.is_alive(), "a scripted server did not stop"


class Fence:
    """The proxy that clients shall use for all but loopback. It lets nothing through and keeps count."""

    def __init__(self, url: str) -> None:
        self.environment = {
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), url),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
        }
        self.reached: list[str] = []
        """The first line of each request that ran into it."""


@contextmanager
def fence() -> Iterator[Fence]:
    """Put up a fence."""
    listener = _listener()
    made = Fence(f"http://{HOST}:{listener.getsockname()[1]}")
    thread = threading.Thread(target=_turn_away, args=(listener, made.reached), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_BOUND_SECONDS)


def _turn_away(listener: socket.socket, reached: list[str]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the fence is taken down
        with connection, suppress(OSError):
            connection.settimeout(_READ_SECONDS)
            reached.append(connection.recv(4096).decode("utf-8", "replace").partition("\r\n")[0])


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOST, 0))
    listener.listen(64)
    return listener
