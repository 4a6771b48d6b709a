"""Payloads on their way to the disk and back, piece by piece: none is ever in memory as a whole."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

PIECE_BYTES = 1 << 20
_GZIP = zlib.MAX_WBITS | 16


class Packed:
    """Pieces of a payload, gzip-compressed. `size` counts the bytes before, as far as they were taken."""

    def __init__(self, payload: bytes | Iterable[bytes]) -> None:
        self.size = 0
        self._pieces = [payload] if isinstance(payload, bytes) else payload

    def __iter__(self) -> Iterator[bytes]:
        packer = zlib.compressobj(wbits=_GZIP)
        for piece in self._pieces:
            self.size += len(piece)
            yield packer.compress(piece)
        yield packer.flush()


def unpacked_size(file: BinaryIO, limit: int) -> int:
    """Return how many bytes a file has when it is unpacked; of more than `limit`, some number above it.

    Raises:
        OSError, EOFError, zlib.error: it is no whole gzip file.
    """
    size = 0
    with gzip.GzipFile(fileobj=file) as unpacked:
        while size <= limit and (piece := unpacked.read(PIECE_BYTES)):
            size += len(piece)
    return size
