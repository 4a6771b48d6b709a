"""A payload as a door hands it in: a text, or a file with a text that is too long for the memory."""

import os
from collections.abc import Iterator
from typing import BinaryIO

from subagent_server.domain.limits import check_payload_size
from subagent_server.domain.secrets import Masker
from subagent_server.store.packing import PIECE_BYTES

Payload = str | BinaryIO
"""The text of a file is UTF-8, and as long as the file."""


def check_payload(payload: Payload | None) -> None:
    """Refuse a payload that is too large. Raises BadArgument."""
    if payload is not None:
        check_payload_size(_size(payload))


def text_of(payload: Payload | None) -> str:
    """Return the whole text, for an agent whose payload has to be JSON; empty if there is none."""
    if payload is None or isinstance(payload, str):
        return payload or ""
    payload.seek(0)
    return payload.read().decode("utf-8", "replace")


def masked_pieces(payload: Payload, masker: Masker) -> Iterator[bytes]:
    """Yield the payload without secrets, piece by piece if it is a file."""
    if isinstance(payload, str):
        yield _encoded(masker.text(payload))
        return
    payload.seek(0)
    pending = b""
    while piece := payload.read(PIECE_BYTES):
        masked, pending = masker.stream(pending + piece)
        yield masked
    yield masker.stream(pending, last=True)[0]


def _size(payload: Payload) -> int:
    return len(_encoded(payload)) if isinstance(payload, str) else os.fstat(payload.fileno()).st_size


def _encoded(payload: str) -> bytes:
    return payload.encode("utf-8", "replace")
