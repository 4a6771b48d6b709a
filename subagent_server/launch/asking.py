"""Asking the warm process for a fork. Nothing here can fail a start.

Whatever is wrong with the zygote (there is none, it is dead, hung, full, of another version, another user's),
nothing is started, within a bound, and the plain start is up to the caller. Standard library only, and little
of it: the front of a server imports this module.
"""

import os
import sys

from subagent_server.host import circumstances
from subagent_server.host.private_directory import beneath, is_mine, open_private, read_secret
from subagent_server.launch import handover
from subagent_server.launch.image_key import image_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Mapping, Sequence

ANSWER_SECONDS = 2.0
"""How long each answer may take: a plain start takes about as long."""
FAILURES = (OSError, ValueError, handover.Refused)
"""What comes of a warm process that cannot: the plain start does it."""


def default_directory() -> str:
    """Return one place for all processes of a user, whatever their environments have lost on the way.

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
    """Whether the cache is for this user alone to write to; where there is none, the place to make it in."""
    place = cache if os.path.lexists(cache) else os.path.dirname(cache)  # noqa: PTH120
    return is_mine(place, 0o022) and os.access(place, os.W_OK)


class Wanted:
    """A program to be forked, as the plain start would have executed it."""

    def __init__(
        self, program: str, command: "Sequence[str]", argv: "Sequence[str]", environment: "Mapping[str, str]"
    ) -> None:
        self._program = program
        self._command = list(command)
        self._argv = list(argv)
        self._environment = dict(environment)

    def order(self, targets: "Sequence[int]", *, leashed: bool) -> "handover.Order":
        """Return the order for it, with what this process hands on to those it starts."""
        return {
            "program": self._program,
            "command": self._command,
            "argv": self._argv,
            "environment": self._environment,
            "targets": list(targets),
            "circumstances": circumstances.capture(),
            "leashed": leashed,
        }


def ask(
    directory: str, wanted: Wanted, descriptors: "Mapping[int, int]", *, cwd: str, leashed: bool = False
) -> "tuple[Socket, int] | None":
    """Have a program started in `cwd` with `descriptors` (theirs to ours) and nothing else.

    Returns the connection to it and a pidfd of it, or None where nothing was started and nothing is left.

    Raises:
        TimeoutError: as None; the warm process is there, and does not answer.
    """
    if sys.platform != "linux":
        return None
    connection: Socket | None = None
    started = False
    try:
        connection = connected(directory, image_key())
        order = wanted.order(list(descriptors), leashed=leashed)  # while the other side wakes up
        give_order(connection, order, list(descriptors.values()), cwd=cwd)
        process = tell_to_go(connection)
        started = True
        return connection, process
    except TimeoutError:
        raise
    except FAILURES:
        return None  # the plain start does it, and says what is wrong if that cannot either
    finally:
        if connection is not None and not started:
            connection.close()


def connected(directory: str, key: str) -> "Socket":
    """Call the warm process of a key: at the other end is soon a fork of it, which looks at its starter.

    What is said first is the secret that lies beside the socket: a program that is kept from reading files
    can reach a socket all the same. The fork leaves when the connection is closed before it was told to go.

    Raises:
        OSError, ValueError: there is no warm process, or its directory is not to be trusted.
    """
    folder = open_private(directory)
    try:
        secret = read_secret(folder, f"{key}.secret")
        connection = handover.new_connection()
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(beneath(folder, f"{key}.sock"))
            handover.send(connection, secret)
        except BaseException:
            connection.close()
            raise
    finally:
        os.close(folder)
    return connection


def give_order(
    connection: "Socket", order: "handover.Order", descriptors: "Sequence[int]", *, cwd: str
) -> None:
    """Give an order to a process that waits for one; it prepares itself, and waits for the word to go.

    Raises:
        OSError, handover.Refused: it does not take it.
    """
    own = [os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        own += circumstances.open_place()
        handover.expect(connection, handover.HERE)
        handover.send_order(connection, order, [*own, *descriptors])
    finally:
        for descriptor in own:
            os.close(descriptor)


def tell_to_go(connection: "Socket") -> int:
    """Wait until it is prepared, and let it begin. Returns a pidfd of it.

    Raises:
        OSError, handover.Refused: it could not take over what was ordered, and nothing has begun.
    """
    (process,) = handover.expect(connection, handover.READY)
    try:
        handover.send(connection, handover.GO)
    except OSError:
        os.close(process)
        raise
    return process
