"""The relay of a program: connects its stdin and stdout with the worker of the run, by pipes of the worker.

`python -I -S relay.py TICKETS UP DOWN [UP DOWN ...]`, each the inode of a pipe that the program inherits.
The relay finds them among the descriptors of the processes above it, because Node and Python close inherited
descriptors before they start a server. A ticket, one byte, reserves one pair of pipes until it ends; the
worker writes a NUL when nothing more comes. It is the only file of the package that a box shows. A relay
runs next to each waiting program, so it imports little (`threading` alone would take half a MiB more).
"""

import _thread
import os
import stat
import sys
from collections.abc import Iterator

_CHUNK = 1 << 16
_END = b"\0"


def main(inodes: list[str]) -> None:
    """Relay until the worker reports that it is over."""
    pipes = _pipes(set(inodes))
    tickets, *lines = (pipes.get(inode, "") for inode in inodes)
    try:
        ticket = os.read(os.open(tickets, os.O_RDONLY), 1)
        if not ticket:
            sys.exit("The run does not answer: it is ending.")
        up = os.open(lines[2 * ticket[0]], os.O_WRONLY)
        down = os.open(lines[2 * ticket[0] + 1], os.O_RDONLY)
        os.write(up, ticket)
    except OSError as error:
        sys.exit(f"The run does not answer: {error.strerror}.")
    _thread.start_new_thread(_outward, (up,))
    while chunk := os.read(down, _CHUNK):
        _write(1, chunk.rstrip(_END))
        if chunk.endswith(_END):
            break


def _pipes(inodes: set[str]) -> dict[str, str]:
    """Return a path for each pipe, in a process above this one, or else in any other."""
    for pid in _processes():
        found = dict[str, str]()
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    status = entry.stat()  # of the pipe, not of the link to it
                    if stat.S_ISFIFO(status.st_mode):
                        found[str(status.st_ino)] = entry.path
        except OSError:
            continue  # it has gone, or may not be looked into: the worker itself
        if inodes <= found.keys():
            return found
    return {}


def _processes() -> Iterator[str]:
    pid = os.getppid()
    while pid > 0:
        yield str(pid)
        try:
            with os.fdopen(
                os.open(f"/proc/{pid}/stat", os.O_RDONLY), encoding="utf-8", errors="replace"
            ) as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    with os.scandir("/proc") as entries:
        yield from (entry.name for entry in entries if entry.name.isdigit())


def _outward(up: int) -> None:
    try:
        while chunk := os.read(0, _CHUNK):
            _write(up, chunk)
    except OSError:
        pass  # the worker has gone, which ends the relay
    os.close(up)


def _write(descriptor: int, chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


if __name__ == "__main__":
    main(sys.argv[1:])
