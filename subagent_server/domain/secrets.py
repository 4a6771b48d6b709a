"""Secrets of a run: they may pass through its tools and never stay in its directory (SPEC section 13)."""

from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
SHORTEST = 12
"""A shorter value would mask words that only happen to be the same."""


def secret_values(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that hold secrets, by the end of their names or because `also` names them."""
    named = set(also)
    return {
        name: value
        for name, value in environment.items()
        if len(value.strip()) >= SHORTEST and (name in named or name.upper().endswith(SECRET_ENDINGS))
    }


class Masker:
    """Replaces secret values by `***`, in texts, in JSON data, and in a stream of bytes.

    White space around a value is no part of the secret: a variable that was read from a file may end with a
    line break, which an error quotes as `\\n`.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        stripped = {value.strip() for value in values} - {""}
        self._values = sorted(stripped, key=len, reverse=True)
        self._bytes = [value.encode("utf-8", "surrogateescape") for value in self._values]
        self._carry = max((len(value) for value in self._bytes), default=1) - 1

    def text(self, text: str) -> str:
        """Return `text` without the secrets."""
        for value in self._values:
            text = text.replace(value, MASK)
        return text

    def data(self, data: Any) -> Any:
        """Return JSON data whose texts are without the secrets; keys stay as they are."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {key: self.data(value) for key, value in data.items()}
        if isinstance(data, list):
            return [self.data(value) for value in data]
        return data

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message of a conversation without the secrets.

        A thought that held one is left out: the API takes thoughts back only as they came.
        """
        masked: dict[str, Any] = self.data(message)
        content = message.get("content")
        if isinstance(content, list):
            masked["content"] = [
                new
                for old, new in zip(content, masked["content"], strict=True)
                if new == old or not _is_signed(old)
            ]
        return masked

    def stream(self, pending: bytes, *, last: bool = False) -> tuple[bytes, bytes]:
        """Return what of `pending` may be written, masked, and what has to wait for the bytes behind it."""
        for value in self._bytes:
            pending = pending.replace(value, MASK.encode())
        end = len(pending) if last else max(0, len(pending) - self._carry)
        return pending[:end], pending[end:]


def _is_signed(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")
