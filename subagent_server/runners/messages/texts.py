"""The text of a message, put together from its blocks."""

from collections.abc import Iterable
from typing import Any

Block = dict[str, Any]


def text_of(block: Block) -> str:
    """Return the text of a block; that of any other block is empty."""
    text = block.get("text") if block.get("type") == "text" else None
    return text if isinstance(text, str) else ""


def joined_text(blocks: Iterable[Block]) -> str:
    """Return all text of a message, its pieces a blank line apart.

    A reply with citations comes in pieces of sentences: a piece with citations belongs to its neighbours.
    """
    told = ""
    before: Block | None = None
    for block in blocks:
        text = text_of(block)
        if text.strip() or (text and before is not None):
            cited = before is not None and bool(before.get("citations") or block.get("citations"))
            told = told + text if cited or not told else f"{told}\n\n{text}" if text.strip() else told
        before = block if text else None
    return told if told.strip() else ""
