"""Pages of a list, by cursors that say of which list they are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from subagent_server.domain.errors import BadArgument

T = TypeVar("T")
_CURSOR = re.compile(r"([0-9a-f]{16})-([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list, and the cursor of the next part if there is one."""

    items: Sequence[T]
    next_cursor: str | None


def page_of(items: Sequence[T], digest: str, size: int, cursor: str | None) -> Page[T]:
    """Return the page that a cursor names, or the first; `digest` stands for the whole list.

    Raises:
        BadArgument: the cursor is not of this list, which may have changed since.
    """
    start = 0 if cursor is None else _start(cursor, digest, len(items))
    end = start + size
    return Page(items[start:end], f"{digest}-{end}" if end < len(items) else None)


def digest_of(texts: Sequence[str]) -> str:
    """Return a short text that differs for different lists."""
    digest = blake2b(digest_size=8)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _start(cursor: str, digest: str, count: int) -> int:
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[1] != digest or int(found[2]) >= count:
        raise BadArgument("The cursor is not of this list, or the list has changed: begin without a cursor.")
    return int(found[2])
