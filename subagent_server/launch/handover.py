"""How a starter and the process that a zygote forks for it speak: one connection an order, four messages.

The new process says that it is there. Only then comes the order: what is sent to a zygote that hangs would
be held by it, locks too. It comes in a memory file, with the descriptors that the new process gets, so that
no part of it is ever in the memory of the zygote. The new process takes over everything and says that it is
ready; the starter tells it to go. One that gets no such word leaves: so what is ordered happens once, or not
at all. Standard library only.
"""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HERE = b"here"
READY = b"ready"
GO = b"go"
_HELLO = b"order"
_MAX_DESCRIPTORS = 64


class Refused(Exception):
    """The other side cannot, or says nothing more."""


@dataclass(frozen=True)
class Order:
    """A program to be, and all that it gets from its starter.

    `command` is what a plain start would execute, for `/proc` to show; `argv` is `sys.argv`.
    `targets` are the numbers of the descriptors that come with the order, in the same order.
    `circumstances` are those of `host/circumstances.py`.
    """

    program: str
    command: list[str]
    argv: list[str]
    environment: dict[str, str]
    targets: list[int]
    circumstances: dict[str, Any]


def send_order(connection: socket.socket, order: Order, cwd: int, descriptors: Sequence[int]) -> None:
    """Send an order. Raises OSError."""
    memory = os.memfd_create("subagent-order", os.MFD_CLOEXEC)
    try:
        rest = json.dumps(asdict(order)).encode("utf-8", "surrogateescape")
        while rest:
            rest = rest[os.write(memory, rest) :]
        socket.send_fds(connection, [_HELLO], [memory, cwd, *descriptors])
    finally:
        os.close(memory)


def receive_order(connection: socket.socket) -> tuple[Order, int, list[int]]:
    """Return an order, its working directory, and its descriptors, which are not inheritable.

    Raises:
        OSError, Refused: none came.
    """
    hello, received, _, _ = socket.recv_fds(connection, len(_HELLO) + 1, _MAX_DESCRIPTORS)
    if hello != _HELLO or len(received) < 2:
        raise Refused("no order came")
    memory, cwd, *descriptors = received
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        order = Order(**json.loads(file.read().decode("utf-8", "surrogateescape")))
    return order, cwd, descriptors


def expect(connection: socket.socket, word: bytes) -> None:
    """Wait for a word of the other side.

    Raises:
        OSError: it took too long, or the connection broke.
        Refused: the other side said something else, or has left.
    """
    said = connection.recv(4096)
    if said != word:
        raise Refused(said.decode("utf-8", "replace") or "the other side has left")
