"""Finding the argument `payload` of a tool call in a JSON text that comes in pieces, and decoding it at once.

The rest of the text is kept. The payload is written to a file as it comes, and is never in memory as a whole.
"""

import codecs
import json
import re
from typing import BinaryIO

PLACE = ["params", "arguments", "payload"]
"""The path of the argument in a request."""
MAX_DEPTH = 100
MAX_PARTS = 100_000
"""How many values, names and marks the rest of a request may have: few bytes become large objects."""

_TOKEN = re.compile(rb'[^"{}\[\]:,]*+(["{}\[\]:,])')
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The text of a string as far as it is there, without its quotation marks."""
_WHOLE_ESCAPES = re.compile(
    rb'(?:[^"\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}"
    rb"(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=\\u[0-9a-fA-F]{4})|(?=[^\\])|(?=\\[^u])))*+",
    re.DOTALL,
)
"""The same without an escape, or a pair of them for one character, that is not whole yet."""
_LONGEST_ESCAPE = len(rb"\ud83d\ude00")


class TooLarge(Exception):
    """A payload, or the rest of a request, is larger than allowed, or has too many parts."""


class PayloadScan:
    """Takes the pieces of a request. `rest` is the request with an empty text in place of its payload.

    The payload goes to `file`, and may have `most` bytes there; `found` says whether there was one.
    """

    def __init__(self, file: BinaryIO, most: int) -> None:
        self.rest = bytearray()
        self.found = False
        self._file, self._left = file, most
        self._path: list[str | None] = []
        self._key_is_next = False
        self._parts = 0
        self._position = 0
        self._payload: _StringDecoder | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            TooLarge: the payload is, or the rest has too many parts.
            ValueError: the payload is no text of JSON.
        """
        while piece:
            if self._payload is None:
                self.rest += piece
                piece = self._scanned()
            else:
                piece = self._decoded(piece)

    def _scanned(self) -> bytes:
        """Scan to the end of the text, or to a payload; return the beginning of the payload."""
        while (token := _TOKEN.match(self.rest, self._position)) is not None:
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise TooLarge
            if token[1] != b'"':
                self._note(token[1])
                self._position = token.end()
                continue
            if not self._key_is_next and self._path == PLACE:
                return self._begun(token.end())
            end = self._end_of_string(token.end())
            if end is None:
                break
            if self._key_is_next:
                self._path[-1] = _key(bytes(self.rest[token.end() - 1 : end]))
            self._position = end
        return b""

    def _begun(self, begin: int) -> bytes:
        """Begin a payload; return its beginning. A later payload of the same request replaces it."""
        piece = bytes(self.rest[begin:])
        del self.rest[begin:]
        self.rest += b'"'
        self._position = len(self.rest)
        self._left += self._file.tell()
        self._file.seek(0)
        self._file.truncate()
        self._payload, self.found = _StringDecoder(), True
        return piece

    def _decoded(self, piece: bytes) -> bytes:
        """Write the payload's part of the piece; return the text behind the payload."""
        assert self._payload is not None
        text, behind = self._payload.decode(piece)
        data = text.encode("utf-8", "replace")
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge
        self._file.write(data)
        if behind is None:
            return b""
        self._payload = None
        return behind

    def _note(self, mark: bytes) -> None:
        """Follow the path: where a value stands, by the names of the objects around it."""
        if mark in b"{[":
            if len(self._path) >= MAX_DEPTH:
                raise ValueError("it is nested too deeply")
            self._path.append("" if mark == b"{" else None)
        elif mark in b"}]" and self._path:
            self._path.pop()
        self._key_is_next = mark in b"{," and bool(self._path) and self._path[-1] is not None

    def _end_of_string(self, begin: int) -> int | None:
        """Return the place behind the string that begins there, or None if its end has not come yet."""
        found = _STRING.match(self.rest, begin)
        end = begin if found is None else found.end()
        return end + 1 if self.rest[end : end + 1] == b'"' else None


class _StringDecoder:
    """Decodes the text of one JSON string that comes in pieces."""

    def __init__(self) -> None:
        self._pending = b""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")

    def decode(self, piece: bytes) -> tuple[str, bytes | None]:
        """Return the next part of the text, and what comes behind the string if it ends.

        Raises:
            ValueError: it is no text of JSON.
        """
        data = self._pending + piece
        found = _WHOLE_ESCAPES.match(data)
        end = 0 if found is None else found.end()
        is_end = data[end : end + 1] == b'"'
        self._pending = b"" if is_end else data[end:]
        if len(self._pending) > _LONGEST_ESCAPE:
            raise ValueError("an escape in it is none of JSON")
        text: str = json.loads(f'"{self._utf8.decode(data[:end], is_end)}"')
        return text, data[end + 1 :] if is_end else None


def _key(text: bytes) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""  # the parser of the protocol refuses it
