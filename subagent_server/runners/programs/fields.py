"""Read the fields of a program's messages, in which any type may stand anywhere."""

from typing import Any

_MOST_ITEMS = 10_000


def record_in(record: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; empty if it is missing or something else."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def items_in(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects of a field that is a list; none if it is missing or something else."""
    value = record.get(name)
    return [item for item in value[:_MOST_ITEMS] if isinstance(item, dict)] if isinstance(value, list) else []


def text_in(record: dict[str, Any], name: str) -> str:
    """Return a field that is a text; empty if it is missing or something else."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


def count_in(record: dict[str, Any], name: str) -> int | None:
    """Return a field that counts something; None if it is missing or something else."""
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def text_of_blocks(content: Any) -> str:
    """Return the text of the result of a tool; what is not text is named."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    blocks = [block for block in content[:_MOST_ITEMS] if isinstance(block, dict)]
    return "\n".join(text_in(block, "text") or f"[{text_in(block, 'type')}]" for block in blocks)
