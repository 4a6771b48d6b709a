"""Reading untrusted text from a path of any kind."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from subagent_server.catalog.problems import why

MAX_BYTES = 4 << 20
"""An agent file, a prompt or a schema larger than this is refused."""

_BLOCK = 64 << 10
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Unreadable(Exception):
    """The reason why a file gives no text; `line` counts from 1, if a line is to blame."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def read_text(path: Path) -> str:
    r"""Return the UTF-8 text of a regular file, without its byte order mark and with `\n` line ends.

    Raises:
        Unreadable: it is missing, no regular file, larger than `MAX_BYTES`, or not UTF-8 text.
    """
    try:
        data = _read_bytes(path)
    except OSError as error:
        raise Unreadable(f"it cannot be read ({why(error)})") from error
    except ValueError as error:  # a path with a NUL in it
        raise Unreadable("its path cannot be opened") from error
    return _decode(data).replace("\r\n", "\n").replace("\r", "\n")


def _read_bytes(path: Path) -> bytes:
    _check_kind(path.stat())
    # Not blocking, and looked at again: a FIFO may have taken the file's place since.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(descriptor))
        return b"".join(_blocks(descriptor))
    except BlockingIOError as error:  # a file of the kernel that waits for what is to come
        raise Unreadable("it has nothing to read now, so it is not a file of text") from error
    finally:
        os.close(descriptor)


def _blocks(descriptor: int) -> Iterator[bytes]:
    """Yield the content, in blocks: room for the largest file would cost more than reading a usual one."""
    length = 0
    while block := os.read(descriptor, _BLOCK):
        length += len(block)
        if length > MAX_BYTES:
            raise _too_large()
        yield block


def _check_kind(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("it is not a regular file")
    if status.st_size > MAX_BYTES:
        raise _too_large()


def _too_large() -> Unreadable:
    return Unreadable(f"it is larger than {MAX_BYTES >> 20} MiB, so make it smaller")


def _decode(data: bytes) -> str:
    if data.startswith(_UTF16):
        raise Unreadable("it looks like UTF-16, so save it as UTF-8", 1)
    try:
        text = data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        line = error.object.count(b"\n", 0, error.start) + 1
        at = error.start + len(data) - len(error.object)
        raise Unreadable(f"byte {at} (0x{bad:02x}) is not UTF-8, so save it as UTF-8", line) from error
    before, nul, _ = text.partition("\0")
    if nul:
        raise Unreadable("it holds a NUL character, so it is not text", before.count("\n") + 1)
    return text
