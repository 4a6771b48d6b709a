"""How a starter and the process that a zygote forks for it speak: one connection an order, four messages.

The new process says that it is there. Only then comes the order: what is sent to a zygote that hangs would
be held by it, locks too. It comes in a memory file, with the descriptors that the new process gets, so that
no part of it is ever in the memory of the zygote. The new process takes over everything and says that it is
ready; the starter tells it to go. One that gets no such word leaves: so what is ordered happens once, or not
at all. Standard library only, and little of it: the front of a server imports this module.
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
        """A program to be, and all that it gets from its starter.

        `command` is what a plain start would execute, for `/proc` to show; `argv` is `sys.argv`.
        `targets` are the numbers of the descriptors that come with the order, in the same order.
        `circumstances` are those of `host/circumstances.py`. A `leashed` process does the work of the one
        that ordered it (`leash.py`): it leaves when that is gone, and says over the connection how it ended.
        """

        program: str
        command: list[str]
        argv: list[str]
        environment: dict[str, str]
        targets: list[int]
        circumstances: dict[str, Any]
        leashed: bool


HERE = b"here"
READY = b"ready"
GO = b"go"
_HELLO = b"order"
_MAX_DESCRIPTORS = 64
_INT = 4


class Refused(Exception):
    """The other side cannot, or says nothing more."""


def new_connection() -> _socket.socket:
    """Return a socket of the kind that both sides use."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)


def send_order(connection: _socket.socket, order: "Order", descriptors: "Sequence[int]") -> None:
    """Send an order. Raises OSError.

    `descriptors` are its working directory, the place of the starter (`circumstances.open_place`), and those
    that the new process gets.
    """
    memory = os.memfd_create("subagent-order", os.MFD_CLOEXEC)
    try:
        rest = marshal.dumps({**order})  # both sides are the same interpreter: that is what the key says
        while rest:
            rest = rest[os.write(memory, rest) :]
        send(connection, _HELLO, (memory, *descriptors))
    finally:
        os.close(memory)


def receive_order(connection: _socket.socket) -> "tuple[Order, int, list[int], list[int]]":
    """Return an order, its working directory, the place of the starter, and its own descriptors.

    No descriptor is inheritable.

    Raises:
        OSError, Refused: none came.
    """
    memory, cwd, *descriptors = expect(connection, _HELLO)
    data = b""
    while part := os.pread(memory, 1 << 20, len(data)):
        data += part
    os.close(memory)
    order: Order = marshal.loads(data)
    own = max(0, len(descriptors) - len(order["targets"]))
    return order, cwd, descriptors[:own], descriptors[own:]


def send(connection: _socket.socket, word: bytes, descriptors: "Sequence[int]" = ()) -> None:
    """Say a word, with copies of descriptors. Raises OSError."""
    numbers = b"".join(number.to_bytes(_INT, sys.byteorder) for number in descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if numbers else []
    connection.sendmsg([word], rights)


def expect(connection: _socket.socket, word: bytes) -> list[int]:
    """Wait for a word of the other side, and return the descriptors that come with it.

    Raises:
        OSError: it took too long, or the connection broke.
        Refused: the other side said something else, or has left.
    """
    room = _socket.CMSG_LEN(_MAX_DESCRIPTORS * _INT)
    said, rights, _, _ = connection.recvmsg(4096, room, _socket.MSG_CMSG_CLOEXEC)
    numbers = b"".join(data for level, kind, data in rights if kind == _socket.SCM_RIGHTS)
    whole = len(numbers) - len(numbers) % _INT
    received = [int.from_bytes(numbers[at : at + _INT], sys.byteorder) for at in range(0, whole, _INT)]
    if said != word:
        raise Refused(said.decode("utf-8", "replace") or "the other side has left")
    return received
