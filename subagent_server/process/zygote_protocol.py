"""The fork server: one process that has loaded everything forks the shims of runs for whoever starts a run.

This file has what starters and zygotes agree on: where a zygote is, its name, the messages, how descriptors
travel.

The **zygote** (`zygote_server.py`) is the fork server's process. There is one for each installation and each
set of attributes that a child cannot take over from its starter: rights, limits, control group, namespaces
(`zygote_name`). An installation has at most three. A **starter** is a process that starts a run
(`zygote_client.py`). A **child** is a fork of the zygote that becomes the program of an order.

One connection is one order. The zygote accepts it and forks; it reads nothing itself:

    starter                        zygote                  child
       | connect --------------------> accept, fork
       | secret ----------------------------------------------> |
       |                                                        | 1. compare the secret
       |                                                        | 2. compare the peer's attributes
       | <------------------------------------------------ here |
       | order, with descriptors -----------------------------> |
       |                                                        | 3. compare namespaces and root directory
       |                                                        | 4. is the peer still the same process?
       |                                                        | 5. take descriptors, umask, variables
       | <----------------------------------------------- ready |
       | 6. are the files still those of the name?              |
       | go --------------------------------------------------> |
       | close                                                  | 7. call the program, exit with its code

Why four messages. The order comes only after `here`: the descriptors that come with it are locks too, and a
zygote that hangs would hold them. The program begins only after `go`: so it is started once or not at all.

Who may die when:

- the zygote, at any time: a child that has its connection continues; else the starter reads the end of the
  connection and starts the program plainly;
- the child, before it has `go`: the starter reads the end of the connection, and starts plainly;
- the starter, before it has sent `go`: the child reads the end of the connection, closes everything that
  came with the order, and exits with `EXIT_NEVER_BEGUN`;
- both, in any order, once `go` is sent: the program runs by itself.

Nothing depends on the zygote: every failure here ends in the plain start, within a bound. While it loads, its
socket has another name. Starters do not see that one; a shim that was started plainly does, and waits there,
which costs less than its own start and lets the zygote have the processor (`process/shim.py`).
Only Linux. Standard library and `run` alone: a shim imports this module.
"""

import json
import os
import socket
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

from subagent_server.run.files import held_open, is_mine
from subagent_server.run.processes import status_of

HERE = b"here"
READY = b"ready"
GO = b"go"
EXIT_NEVER_BEGUN = 71
"""The exit code of a child whose program has not begun."""
_LONGEST_ORDER = 256 << 10
_MAX_DESCRIPTORS = 32

_RIGHTS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_INTERPRETER = (
    *("LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "GCONV_", "LOCPATH", "SSLKEYLOGFILE"),
    *("LANG", "LC_ALL", "LC_CTYPE"),
)
"""Variables that are read while a program is loaded, or by C code before it asks for them."""
_PACKAGE = os.path.realpath(f"{__file__}/../..")
_SITES = ("site-packages", "dist-packages")
_RECORDS = (".dist-info", ".pth", ".egg-link")


class Order(TypedDict):
    """A program of the zygote's table, and everything that its process gets from the starter.

    `command` is the command line of the plain start, for `/proc` to show. `targets` are the numbers that the
    descriptors get, in the order in which they are sent.
    """

    program: str
    command: list[str]
    arguments: list[str]
    environment: dict[str, str]
    umask: int
    targets: list[int]


class OrderRefused(Exception):
    """The other side sent a reason or nothing, instead of the expected word."""


# -- the directory and name of a zygote


def default_directory() -> Path:
    """Return one directory for all processes of a user, even if their environments have lost variables.

    It lies where only this user can make anything, so that nobody else takes the name first: in the directory
    of the session, else in the cache, which machines may share. In /tmp it lies only if there is neither.
    """
    for session in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        if session.startswith("/") and is_mine(session, 0o077):
            return Path(session, "subagent")
    # `Path.expanduser` raises for a user without a home.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    # Nobody else may write to the cache, or to the directory in which the cache is to be made.
    around = cache if os.path.lexists(cache) else cache.parent
    if cache.is_absolute() and is_mine(str(around), 0o022) and os.access(around, os.W_OK):
        return cache / f"subagent-{os.uname().nodename}"
    return Path(f"/tmp/subagent-{os.getuid()}")


def zygote_name() -> str:
    """Return the name of the zygote whose forks are like the children of this process.

    Raises:
        OSError: the package is not a directory of files.
    """
    environment = [f"{name}={value}" for name, value in sorted(interpreter_variables(os.environ).items())]
    return f"{installation_key()}-{_digest([*attributes('self'), *namespaces(), *environment])}"


def installation_key() -> str:
    """Return a key of the interpreter that runs this, of this package, and of all that is installed.

    It changes with each of their files: an upgrade, or an edited checkout, never meets an older zygote. Only
    names, sizes and times are read, which takes two milliseconds.

    Raises:
        OSError: the package is not a directory of files.
    """
    interpreter = os.path.realpath(sys.executable)  # `python` and `python3` of one directory are the same
    facts = [sys.prefix, sys.version, _fact(interpreter, os.stat(interpreter))]  # noqa: PTH116
    return _digest([*facts, *_sources(_PACKAGE), *_installed()])


def _digest(facts: Sequence[str]) -> str:
    data = "\0".join(facts).encode("utf-8", "surrogateescape")
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}{len(data):x}"


def _sources(folder: str) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.is_dir():
            yield _fact(entry.path, entry.stat())
        elif entry.name != "__pycache__":
            yield from _sources(entry.path)


def _installed() -> Iterator[str]:
    """Yield a fact of each installed package: the name of its record has its version."""
    for folder in sys.path:
        if folder.endswith(_SITES) and os.path.isdir(folder):  # noqa: PTH112
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if entry.name.endswith(_RECORDS):
                    yield _fact(entry.path, entry.stat())


def _fact(path: str, facts: os.stat_result) -> str:
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


# -- what a fork cannot take over


def attributes(process: str) -> list[str]:
    """Return the rights, limits, control group and priorities of a process: `self`, or a pid.

    `/proc` shows these even of a process that is not dumpable. Raises OSError: the process has ended.
    """
    root, status = f"/proc/{process}", status_of(process)
    # A shim forbids core dumps for itself and its descendants: a worker that starts a nested run has limit 0.
    limits = [line for line in _read(f"{root}/limits").splitlines() if not line.startswith("Max core file")]
    return [
        *(f"{name}:{status.get(name)}" for name in (*_RIGHTS, "Cpus_allowed")),
        *limits,
        _read(f"{root}/cgroup"),
        _read(f"{root}/oom_score_adj"),
        str(os.getpriority(os.PRIO_PROCESS, 0 if process == "self" else int(process))),
    ]


def umask() -> int:
    """Return the umask of this process; a look by umask(2) would change it for other threads."""
    return int(status_of("self")["Umask"], 8)


def namespaces() -> list[str]:
    """Return device and inode of each namespace and of the root directory of this process."""
    return [_identity_of(os.stat(path)) for path in _namespace_paths()]  # noqa: PTH116


def in_namespaces(descriptors: Sequence[int]) -> bool:
    """Whether a process that opened these, for `send_order`, has the same namespaces and root as this one."""
    return [_identity_of(os.fstat(descriptor)) for descriptor in descriptors] == namespaces()


def _namespace_paths() -> list[str]:
    return [*(f"/proc/self/ns/{name}" for name in _NAMESPACES), "/"]


def _identity_of(facts: os.stat_result) -> str:
    return f"{facts.st_dev}:{facts.st_ino}"


def interpreter_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter, or a library that it has loaded, has read before a fork."""
    return {name: value for name, value in environment.items() if name.startswith(_INTERPRETER)}


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        return file.read()


# -- the messages


def new_socket() -> socket.socket:
    """Return a socket of the kind that both sides use."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_order(connection: socket.socket, order: Order, descriptors: Sequence[int]) -> None:
    """Send an order, with the namespaces of the starter and the program's descriptors. Raises OSError.

    Descriptors of the namespaces and the root directory prove where it is: a process elsewhere cannot open
    them. By the starter's pid, only root may look them up for a process that is not dumpable.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    with ExitStack() as held:
        own = [held.enter_context(held_open(os.open(path, flags))) for path in _namespace_paths()]
        socket.send_fds(connection, [json.dumps(order).encode("ascii")], [*own, *descriptors])


def receive_order(connection: socket.socket) -> tuple[Order, list[int], list[int]]:
    """Return an order, the namespaces of the starter, and the program's descriptors, all not inheritable.

    Raises:
        OSError, ValueError: no order came.
    """
    data, descriptors, _, _ = socket.recv_fds(
        connection, _LONGEST_ORDER, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    order: Order = json.loads(data)
    own = len(descriptors) - len(order["targets"])
    return order, descriptors[:own], descriptors[own:]


def expect(connection: socket.socket, word: bytes) -> None:
    """Wait for a word of the other side.

    Raises:
        OSError: it took too long, or the connection broke.
        OrderRefused: the other side sent something else, or has closed its end.
    """
    received = connection.recv(4096)
    if received != word:
        raise OrderRefused(received.decode("utf-8", "replace") or "the other side has closed its end")
