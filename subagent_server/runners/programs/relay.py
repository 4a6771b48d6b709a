"""The relay of a program in a box: its stdin and stdout as a connection to the socket that SOCKET names.

`python -I -S relay.py SOCKET`. A box shows this file alone of the package, so it is on the standard library.
It ends with the connection, and tells the other end when its stdin has ended.
"""

import os
import socket
import sys
import threading
from contextlib import suppress

_CHUNK = 1 << 16


def main(path: str) -> None:
    """Relay until the other end closes the connection."""
    directory, name = os.path.split(path)
    os.chdir(directory)  # the address of a socket has room for some 100 bytes
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(name)
    except OSError as error:
        sys.exit(f"The run does not answer: {error.strerror}.")
    threading.Thread(target=_outward, args=[line], daemon=True).start()
    while chunk := line.recv(_CHUNK):
        _write(chunk)


def _outward(line: socket.socket) -> None:
    with suppress(OSError):  # the other end has closed, which ends the relay
        while chunk := os.read(0, _CHUNK):
            line.sendall(chunk)
        line.shutdown(socket.SHUT_WR)


def _write(chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(1, chunk) :]


if __name__ == "__main__":
    main(sys.argv[1])
