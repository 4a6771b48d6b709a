"""The system calls that programs in a box do without: a filter of the kernel (seccomp), for bubblewrap.

Mounts and namespaces do not close these ways out:

- the user's keyring (`keyctl`), which a process inherits, with the tickets and keys in it;
- sockets that belong to no network namespace: AF_VSOCK, which leads to the host of a virtual machine, and in
  a box without network Unix sockets, which may lie in the working directory (`socketpair` is another call);
- setuid files in the working directory, by which other users of the host become this one;
- extended attributes, by which a runs root is known to be ours (`store/root.py`);
- `io_uring` and `openat2`, whose arguments no filter sees, and parts of the kernel that are often at fault.

A program for another architecture (32-bit) is ended at its first call: its calls have other numbers.
"""

import errno
import os
import platform
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from functools import cache

from subagent_server.sandbox.refusal import BoxRefused

_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "openat2": (437, 437),
    "socket": (41, 198),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    **{f"io_uring {number}": (number, number) for number in (425, 426, 427)},
    **{f"xattr {number}": (number + 183, number) for number in range(5, 17)},
    **{f"xattr {number}": (number, number) for number in range(463, 467)},
}
"""The number of each call on x86_64, and on the other machines (`asm/unistd.h`); None if it is not there."""
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
"""The number of the architecture (`linux/audit.h`), and which column of the calls it has."""
_OF_X32 = 0x40000000
"""From here on, the same calls have other numbers on x86_64."""

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_MODE_AND_FLAGS: Mapping[str, tuple[int, int | None]] = {
    "open": (2, 1),
    "openat": (3, 2),
    "creat": (1, None),
    "mknod": (1, None),
    "mknodat": (2, None),
    "chmod": (1, None),
    "fchmod": (1, None),
    "fchmodat": (2, None),
    "fchmodat2": (2, None),
}
"""Which argument is the mode of a file, and which one says whether it counts."""
_MAKES_FILE = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where the kernel puts the parts of a call (`struct seccomp_data`)."""

_Step = tuple[int, int, int, int]
"""Code, steps to leave out if so, steps to leave out if not, value (`struct sock_filter`)."""


@cache
def filter_of_calls(*, network: bool) -> bytes:
    """Return the filter for this machine, of a box with or without network.

    Raises:
        BoxRefused: the calls of this architecture are not known here.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise BoxRefused(f"the system calls of this architecture ({machine}) are not known")
    return b"".join(struct.pack("=HBBI", *step) for step in _steps(*_MACHINES[machine], network=network))


def _steps(architecture: int, column: int, *, network: bool) -> Iterator[_Step]:
    yield _load(_ARCHITECTURE)
    yield from ((_IF_EQUAL, 1, 0, architecture), _end(_KILL))
    yield _load(_NUMBER)
    yield from ((_IF_AT_LEAST, 0, 1, _OF_X32), _refuse(errno.ENOSYS))
    for name, numbers in _CALLS.items():
        if (number := numbers[column]) is None:
            continue
        if name == "socket":
            decision = _socket(socket.AF_UNIX, *_FAMILIES) if network else _socket(*_FAMILIES)
        elif name in _MODE_AND_FLAGS:
            decision = _mode(*_MODE_AND_FLAGS[name])
        else:
            decision = [_refuse(errno.ENOTSUP if "xattr" in name else errno.ENOSYS)]
        yield from ((_IF_EQUAL, 0, len(decision), number), *decision)
    yield _end(_ALLOW)


def _socket(*families: socket.AddressFamily) -> list[_Step]:
    known = [step for family in families for step in ((_IF_EQUAL, 0, 1, int(family)), _end(_ALLOW))]
    return [_argument(0), *known, _refuse(errno.EAFNOSUPPORT)]


def _mode(mode: int, flags: int | None) -> list[_Step]:
    """Refuse to make a file setuid."""
    check = [_argument(mode), (_IF_ANY_BIT, 0, 1, stat.S_ISUID), _refuse(errno.EPERM), _end(_ALLOW)]
    if flags is None:
        return check
    return [_argument(flags), (_IF_ANY_BIT, 1, 0, _MAKES_FILE), _end(_ALLOW), *check]


def _load(offset: int) -> _Step:
    return (_LOAD, 0, 0, offset)


def _argument(index: int) -> _Step:
    """Load the lower half of an argument, which comes first on all of these machines."""
    return _load(_ARGUMENTS + 8 * index)


def _refuse(error: int) -> _Step:
    return _end(_ERROR | error)


def _end(value: int) -> _Step:
    return (_RETURN, 0, 0, value)
