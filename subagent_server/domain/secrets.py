"""Secrets of a run: they may pass through its tools and never stay in its directory (SPEC section 13).

A secret is recognised by its value if the process knows the value, and always by the shape of tokens.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

MASK = "***"
SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
SHORTEST = 12
"""A shorter value would mask words that only happen to be the same."""
LONGEST_TOKEN = 8 * 1024
"""No token of a known shape is longer, so a stream has to hold back no more than this."""

_SHAPES = (
    r"sk-(?<!\wsk-)[\w-]{6,}+|gh[opusr]_(?<!\wgh._)\w{6,}+|github_pat_(?<!\wgithub_pat_)\w{6,}+"
    r"|glpat-(?<!\wglpat-)[\w-]{6,}+|xox(?<!\wxox)[a-z]-[\w-]{6,}+"
    r"|A(?:KIA|SIA)(?<!\wA.IA)[0-9A-Z]{12,}+|AIza(?<!\wAIza)[\w-]{20,}+"
    r"|hf_(?<!\whf_)\w{12,}+|npm_(?<!\wnpm_)\w{12,}+|pypi-(?<!\wpypi-)[\w-]{12,}+"
    r"|eyJ(?<![\w-]eyJ)[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\w+/=:,.\\\s]++|-(?!----))*+(?:-----END [A-Z ]*+-----)?"
)
"""No part gives back what it took (`+` behind a quantifier), so the time is linear whatever the text. Each
begins with letters and then looks whether a word begins there: that is quicker to search for."""
TOKENS = re.compile(_SHAPES, re.ASCII)
"""What has the shape of a token. A name such as `npm_config_registry` has it too: see `_masked`."""
_TOKEN_BYTES = re.compile(_SHAPES.encode())
_MARK_OF_CHANCE = re.compile(r"[0-9A-Z]")
_IN_TOKENS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN ", b"-----END "
_BASE64 = re.compile(r"[A-Za-z0-9+/]{1024,}={0,2}")
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


def secret_values(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that hold secrets, by the end of their names or because `also` names them."""
    named = set(also)
    return {
        name: value
        for name, value in environment.items()
        if len(value.strip()) >= SHORTEST and (name in named or name.upper().endswith(SECRET_ENDINGS))
    }


def collector_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the headers that collectors ask for, `name=value,...`, and each value: keys are among them."""
    lists = [said for name in _HEADERS if (said := environment.get(name, ""))]
    values = [entry.partition("=")[2].strip() for said in lists for entry in said.split(",")]
    every = [*lists, *values, *map(unquote, values)]
    return [secret for secret in every if len(secret) >= SHORTEST]


class Masker:
    """Replaces secrets by `***`, in texts, in JSON data, and in a stream of bytes: `values`, and all tokens.

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
        masked = TOKENS.sub(_masked, text)
        return text if masked != text and _BASE64.fullmatch(text) else masked

    def data(self, data: Any) -> Any:
        """Return JSON data whose texts and keys are without the secrets."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {self.data(key): self.data(value) for key, value in data.items()}
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
        """Return the part of `pending` that may be written, masked, and the rest, which has to wait."""
        for value in self._bytes:
            pending = pending.replace(value, MASK.encode())
        end = len(pending) if last else self.settled(pending, max(0, len(pending) - self._carry))
        return _TOKEN_BYTES.sub(_masked_bytes, pending[:end]), pending[end:]

    @staticmethod
    def settled(pending: bytes, end: int) -> int:
        """Return where `pending` can be cut, at `end` or before it, so that no token is cut in two."""
        least = max(0, end - LONGEST_TOKEN)
        begins = pending.rfind(_KEY_BEGINS, least, end)
        if begins >= 0 and not _has_key_end(pending, begins, end):
            end = begins
        word = least + len(pending[least:end].rstrip(_IN_TOKENS))
        begins = pending.rfind(_KEY_BEGINS, least, word)
        if begins >= 0 and not _has_key_end(pending, begins, word):  # the end of a key looks like a word
            return Masker.settled(pending, begins)
        if word > least or least == 0:
            return word
        end -= _RECOGNIZED  # no token has so many letters: but one may begin or end among them
        tokens = _TOKEN_BYTES.finditer(pending, least)
        return next((max(least, token.start()) for token in tokens if token.start() < end < token.end()), end)


_RECOGNIZED = 64
"""By so many letters every token is recognized, a JWT apart, which does not stand in the middle of a word."""


def _masked(match: re.Match[str]) -> str:
    """Mask what has a digit or a capital letter: made by chance, and no name that somebody gave."""
    return MASK if _MARK_OF_CHANCE.search(match[0]) else match[0]


def _masked_bytes(match: re.Match[bytes]) -> bytes:
    return MASK.encode() if _MARK_OF_CHANCE.search(match[0].decode("latin-1")) else match[0]


def _has_key_end(pending: bytes, begins: int, end: int) -> bool:
    ends = pending.find(_KEY_ENDS, begins, end)
    return ends >= 0 and pending.find(b"-----", ends + len(_KEY_ENDS), end) >= 0


def _is_signed(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")
