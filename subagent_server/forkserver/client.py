"""Ask the zygote for a process; if it cannot be asked, the caller starts the process plainly.

Whatever is wrong with the zygote (it is missing, dead, hung, of another version, of another user), nothing is
started, within a bound, and the caller starts plainly. Standard library only, and little of it: the front of
a command imports this module.
"""

import _socket
import os
import time

from subagent_server.forkserver import inherited, protocol
from subagent_server.host.peer import can_answer, credentials
from subagent_server.host.private_directory import beneath, is_mine, open_private, read_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWER_SECONDS = 20.0
"""How long an answer may take on a machine that has much else to do."""
SILENT_SECONDS = 2.0
"""After this long without an answer the zygote has to be neither stopped nor dead."""
FAILURES = (OSError, ValueError, protocol.OrderRefused)
"""The exceptions of a zygote that cannot start a program. The plain start follows."""


def default_directory() -> str:
    """Return one place for all processes of a user, even if their environments have lost variables.

    It lies where only this user can make anything, so that nobody else takes the name first: in the directory
    of the session, else in the cache, which machines may share. In /tmp it lies only if there is neither.
    """
    for session in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        if session.startswith("/") and is_mine(session, 0o077):
            return f"{session}/subagent"
    cache = os.environ.get("XDG_CACHE_HOME", "") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if cache.startswith("/") and _may_use(cache):
        return f"{cache}/subagent-{os.uname().nodename}"
    return f"/tmp/subagent-{os.getuid()}"


def _may_use(cache: str) -> bool:
    """Whether only this user may write to the cache, or to the directory in which it is to be made."""
    place = cache if os.path.lexists(cache) else os.path.dirname(cache)  # noqa: PTH120
    return is_mine(place, 0o022) and os.access(place, os.W_OK)


def new_order(
    program: str,
    command: "Sequence[str]",
    argv: "Sequence[str]",
    environment: "Mapping[str, str]",
    *,
    has_front: bool = False,
) -> "protocol.Order":
    """Return the order of a program with the attributes that this process hands on to its children."""
    return {
        "program": program,
        "command": list(command),
        "argv": list(argv),
        "environment": dict(environment),
        "targets": [],
        "inherited": inherited.capture(),
        "has_front": has_front,
    }


class ForkConnection:
    """The owner of a connection to a child that has nothing to do yet.

    `key` names the zygote. Making one connects and sends the secret that lies beside the socket: a confined
    program can reach a socket although it may not read files. Until `go` nothing begins, and `close` ends
    the child. A method that raises one of `FAILURES` leaves a connection that can only be closed.

    Raises:
        OSError, ValueError: there is no zygote, or its directory is not to be trusted.
    """

    def __init__(self, directory: str, key: str) -> None:
        self.key = key
        self._may_hold = False
        """Whether the child may have descriptors of an order, and has not begun."""
        self._socket = protocol.new_socket()
        try:
            folder = open_private(directory)
            try:
                secret = read_secret(folder, f"{key}.secret")
                self._socket.settimeout(SILENT_SECONDS)
                self._socket.connect(beneath(folder, f"{key}.sock"))
            finally:
                os.close(folder)
            protocol.send(self._socket, secret)
        except BaseException:
            self._socket.close()
            raise

    def wait_until_here(self) -> None:
        """Wait until a child has looked at this process and takes its order."""
        self._expect(protocol.HERE)

    def order(self, order: "protocol.Order", descriptors: "Mapping[int, int]", *, cwd: str) -> None:
        """Order a program in `cwd` with `descriptors` (theirs to ours) and nothing else."""
        order["targets"] = list(descriptors)
        own: list[int] = []
        try:
            own.append(os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            inherited.open_place(own)
            self.wait_until_here()
            self._may_hold = True
            protocol.send_order(self._socket, order, [*own, *descriptors.values()])
        finally:
            for descriptor in own:
                os.close(descriptor)

    def go(self) -> int:
        """Wait until the child is ready, and let the program begin. Returns a pidfd of it."""
        (process,) = self._expect(protocol.READY)
        try:
            protocol.send(self._socket, protocol.GO)
        except OSError:
            os.close(process)
            raise
        self._may_hold = False
        return process

    def read_end(self) -> bytes:
        """Wait without a bound for the last message of a program that has begun; empty if it sends none."""
        self._socket.settimeout(None)
        try:
            return self._socket.recv(64)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the connection, once nothing of the order is held by a child that has not begun."""
        if self._may_hold:
            self._may_hold = False
            try:
                self._socket.shutdown(_socket.SHUT_WR)
                while self._socket.recv(4096):
                    pass
            except OSError:
                pass  # the child is gone, or stopped
        self._socket.close()

    def _expect(self, word: bytes) -> list[int]:
        """Wait for a word. Raises TimeoutError: the zygote is stopped or dead, or the answer is overdue."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return protocol.expect(self._socket, word)
            except TimeoutError:
                if time.monotonic() >= deadline or not can_answer(credentials(self._socket)[0]):
                    raise
