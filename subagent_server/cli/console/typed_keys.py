"""Decode the bytes of a terminal into names of special keys, characters, and pastes as one piece."""

import codecs
import re

_SPECIAL = {
    b"[A": "up",
    b"[B": "down",
    b"OA": "up",
    b"OB": "down",
    b"[5~": "page up",
    b"[6~": "page down",
    b"[H": "home",
    b"OH": "home",
    b"[1~": "home",
    b"[F": "end",
    b"OF": "end",
    b"[4~": "end",
}
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGIN_PASTE, _END_PASTE = b"\x1b[200~", b"\x1b[201~"
_MOST_PASTED = 10_000
_NAMES = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "erase",
    "\x08": "erase",
    "\x15": "erase all",
    "\x0c": "redraw",
}


class TypedKeys:
    """Reads keys from the bytes of the terminal, piece by piece. A pasted text is not a key."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pasted: bytes | None = None

    def of(self, data: bytes) -> list[str]:
        """Return the keys that were pressed: names, or one character each; a paste begins with `paste:`."""
        keys: list[str] = []
        while data:
            if self._pasted is not None:
                data = self._paste(data, keys)
            elif data.startswith(_BEGIN_PASTE):
                self._pasted, data = b"", data[len(_BEGIN_PASTE) :]
            elif found := _SEQUENCE.match(data):
                keys += [_SPECIAL[found[1]]] if found[1] in _SPECIAL else []
                data = data[found.end() :]
            elif data[:1] == b"\x1b":
                keys.append("escape")
                data = data[1:]
            else:
                text, _, _ = data.partition(b"\x1b")
                keys += [_NAMES.get(c, c) for c in self._decoder.decode(text)]
                data = data[len(text) :]
        return keys

    def _paste(self, data: bytes, keys: list[str]) -> bytes:
        """Take a part of a paste; return what comes behind its end."""
        whole = (self._pasted or b"") + data
        text, end, rest = whole.partition(_END_PASTE)
        if not end:
            self._pasted = whole[:_MOST_PASTED]
            return b""
        self._pasted = None
        keys.append(f"paste:{text.decode('utf-8', 'replace')}")
        return rest
