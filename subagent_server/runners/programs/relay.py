"""The relay of a program: connects its stdin and stdout with the worker of the run, at a socket.

`python -I -S relay.py SOCKET`. It is the only file of the package that a box shows. A relay runs beside each
waiting program, so it imports little (`threading` and `socket` alone would take a MiB more). It ends with the
connection, and closes its half of the connection when its stdin has ended.
"""

import _socket
import _thread
import os
import sys

_CHUNK = 1 << 16


def main(path: str) -> None:
    """Relay until the other end closes the connection."""
    directory, name = os.path.split(path)
    os.chdir(directory)  # the address of a socket has room for some 100 bytes
    line = _socket.socket(_socket.AF_UNIX)
    try:
        line.connect(name)
    except OSError as error:
        sys.exit(f"The run does not answer: {error.strerror}.")
    _thread.start_new_thread(_outward, (line,))
    while chunk := line.recv(_CHUNK):
        _write(chunk)


def _outward(line: _socket.socket) -> None:
    try:
        while chunk := os.read(0, _CHUNK):
            line.sendall(chunk)
        line.shutdown(_socket.SHUT_WR)
    except OSError:
        pass  # the other end has closed, which ends the relay


def _write(chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(1, chunk) :]


if __name__ == "__main__":
    main(sys.argv[1])
