"""Sockets to listen on: a TCP port, or a Unix socket that only this user reaches; and proxies before them."""

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

from subagent_server.run import locks
from subagent_server.run.errors import BadArgument, HostError, shorten
from subagent_server.run.files import held_open, is_mine

BACKLOG = 512
"""How many connections the system keeps until they are accepted."""


def listen_on_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this machine.

    Raises:
        HostError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Not by `socket.create_server`, which names no protocol: asyncio sends at once (TCP_NODELAY) where
        # TCP is named, and else an answer waits 40 ms for the client.
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _refused(f"{host}:{port}", error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(f"{host}:{port}", error) from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. Of names, `localhost` alone is known to be so."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen_on_path(path: Path) -> socket.socket:
    """Return a Unix socket in a directory that only this user may enter, which is made if it is missing.

    Neither the path nor its directory may be a link, which a repository can bring along.

    A socket that a server left behind is replaced; one that is in use is not.

    Raises:
        BadArgument: the directory is open to others, or something else has the path.
        HostError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.parent.is_symlink() or not is_mine(str(path.parent), 0o077):
            raise BadArgument(
                f"{shorten(str(path.parent))} is a link, another user's, or others may enter it: "
                "name a socket in a directory of your own, with the mode 0700."
            )
        with held_open(os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)) as directory:
            with suppress(OSError):  # a file system without locks
                locks.lock(directory)  # of two servers at once the later would remove the socket of the other
            _remove_left_behind(path)
            before = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(str(path), error) from error
    except BadArgument:
        listener.close()
        raise
    return listener


def remove_path(path: Path, made: os.stat_result) -> None:
    """Remove a Unix socket, if the file at the path is still the socket that was made."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), made):
            path.unlink()


def _remove_left_behind(path: Path) -> None:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.getuid():
        raise BadArgument(f"{shorten(str(path))} is there, and is no socket of yours: name another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # it would wait for a listener that accepts nothing
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise BadArgument(f"A server listens on {shorten(str(path))} already: stop it, or name another path.")


def _refused(where: str, error: Exception) -> HostError:
    why = getattr(error, "strerror", None) or str(error)
    return HostError(
        f"The server cannot listen on {shorten(where)} ({why}): name another by --http or --unix."
    )


# -- Proxies, through which clients of other machines reach the server.


IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Proxies:
    """How clients reach this server: at `public_url`, or as the proxies at the `trusted` addresses report.

    `own_names` are the names under which the server is reached without a proxy. With `trusts_socket`
    the peers of a Unix socket are proxies.
    """

    own_names: frozenset[str]
    public_url: str | None = None
    trusted: tuple[IPNetwork, ...] = ()
    trusts_socket: bool = False

    def trust(self, client: tuple[str, int] | None) -> bool:
        """Whether the peer of a connection is one of the proxies; a Unix socket has peers without address."""
        if client is None or not client[0]:
            return self.trusts_socket
        address = ip_address(client[0].partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.trusted)


# -- A socket with the rules of who may come in.


Welcome = Callable[[socket.socket], bool]
"""Whether the peer of a connection may come in."""


@dataclass(frozen=True)
class HttpDoor:
    """A socket that the server listens on, with its access rules.

    `hosts` are its names, `token_file` has the tokens of parents (None: none is needed), `is_welcome` judges
    peers (None: all are), and `close` removes the files of the socket.
    """

    listener: socket.socket
    hosts: tuple[str, ...]
    token_file: Path | None
    proxies: Proxies
    is_welcome: Welcome | None = None
    close: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        """The address for a browser, or the path of a Unix socket."""
        if self.listener.family == socket.AF_UNIX:
            return os.fsdecode(self.listener.getsockname())
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
