"""The messages between a starter and the child that a zygote forks for it: one connection an order.

The package's docstring draws them. The order travels in a memory file, so that no part of it is ever in the
memory of the zygote. Standard library only, and little of it: the front of a command imports this module.
"""

import _socket
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypedDict

    class Order(TypedDict):
        """A program, and everything that its process gets from the starter.

        `program` is a name in the zygote's table. `command` is the command line of the plain start, for
        `/proc` to show; `argv` is `sys.argv`. `targets` are the numbers that the descriptors of the order
        get, in the same order. `inherited` is described in `inherited.py`. With `has_front`, the starter
        stands for the process (`front.py`) and keeps the connection.
        """

        program: str
        command: list[str]
        argv: list[str]
        environment: dict[str, str]
        targets: list[int]
        inherited: dict[str, Any]
        has_front: bool


HERE = b"here"
READY = b"ready"
GO = b"go"
_ORDER = b"order"
EXIT_NEVER_BEGUN = 71
"""The exit code of a child whose program has not begun."""
LONGEST_SECRET = 64
"""Bytes that are read of the first message."""
_MAX_DESCRIPTORS = 64
_INT = 4


class OrderRefused(Exception):
    """The other side sent a reason or nothing, in place of the expected word."""


def new_socket() -> _socket.socket:
    """Return a socket of the kind that both sides use."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)


def send_order(connection: _socket.socket, order: "Order", descriptors: "Sequence[int]") -> None:
    """Send an order. Raises OSError.

    `descriptors` are its working directory, the place of the starter (`inherited.open_place`), and those
    that the program gets.
    """
    with os.fdopen(os.memfd_create("subagent-order", os.MFD_CLOEXEC), "wb") as memory:
        marshal.dump({**order}, memory)  # both sides are the same interpreter: the key says so
        memory.flush()
        send(connection, _ORDER, (memory.fileno(), *descriptors))


def receive_order(connection: _socket.socket) -> "tuple[Order, int, list[int], list[int]]":
    """Return an order, its working directory, the place of the starter, and the program's descriptors.

    No descriptor is inheritable.

    Raises:
        OSError, OrderRefused: no order came.
    """
    memory, cwd, *descriptors = expect(connection, _ORDER)
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        order: Order = marshal.load(file)
    own = max(0, len(descriptors) - len(order["targets"]))
    return order, cwd, descriptors[:own], descriptors[own:]


def send(connection: _socket.socket, word: bytes, descriptors: "Sequence[int]" = ()) -> None:
    """Send a word, with copies of descriptors. Raises OSError."""
    numbers = b"".join(number.to_bytes(_INT, sys.byteorder) for number in descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if numbers else []
    connection.sendmsg([word], rights)


def expect(connection: _socket.socket, word: bytes) -> list[int]:
    """Wait for a word of the other side, and return the descriptors that come with it.

    Raises:
        OSError: it took too long, or the connection broke.
        OrderRefused: the other side sent something else, or has closed its end.
    """
    room = _socket.CMSG_LEN(_MAX_DESCRIPTORS * _INT)
    received, rights, _, _ = connection.recvmsg(4096, room, _socket.MSG_CMSG_CLOEXEC)
    numbers = b"".join(data for level, kind, data in rights if kind == _socket.SCM_RIGHTS)
    whole = len(numbers) - len(numbers) % _INT
    descriptors = [int.from_bytes(numbers[at : at + _INT], sys.byteorder) for at in range(0, whole, _INT)]
    if received != word:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OrderRefused(received.decode("utf-8", "replace") or "the other side has closed its end")
    return descriptors
