"""Shortening results that are too long for the model; the full text goes to a file of the run."""

import base64
import mimetypes
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from subagent_server.run.files import Directory, write_all
from subagent_server.run.secrets import Masker
from subagent_server.toolbox.tool import ContentBlock, ToolResult

# -- A new file in the directory of a run: for a long output, an image or an attachment.


KEPT_BYTES = 64 << 20
"""No more of one output, image or attachment is kept."""


def new_file(directory: Directory, stem: str, suffix: str) -> tuple[Path, BinaryIO]:
    """Make `STEM-NNNN SUFFIX` with the next free number; return its path and the file, open for writing.

    The directory is made first if it is missing.

    Raises:
        OSError: the disk refuses.
    """
    directory.make()
    number = 1 + sum(name.startswith(f"{stem}-") for name in directory.names())
    while True:
        file = directory.entry(f"{stem}-{number:04d}{suffix}")
        try:
            descriptor = file.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            number += 1
            continue
        return file.path.absolute(), os.fdopen(descriptor, "wb", buffering=0)


# -- The output of a program: head and tail for the model, all of it in a file, never all in memory.


SHOWN_CHARACTERS = 30_000


class OutputCapture:
    """Bytes as they come. Not safe for threads: its owner holds a lock.

    Up to `characters` are shown. If there are more, the model sees head and tail, and the first 64 MiB are in
    a new file under `directory`, which is made when it is needed (without one they are lost). Secrets are
    masked in it.
    """

    def __init__(
        self,
        directory: Directory | None,
        *,
        characters: int = SHOWN_CHARACTERS,
        masker: Masker | None = None,
    ) -> None:
        self.total = 0
        self._directory = directory
        self._characters = characters
        self._room = 2 * characters  # bytes of head and of tail: half the characters at four bytes each
        self._head = bytearray()
        self._tail = bytearray()
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._written = 0
        self._masker = masker or Masker()
        self._unwritten = b""
        self._overflowed = False
        self._trouble: str | None = None if directory is not None else "there is no directory for it"

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if self._file is None and self.total + len(chunk) > 2 * self._room:
            self._open_file()
        self._store(chunk)
        self.total += len(chunk)
        missing = self._room - len(self._head)
        self._head += chunk[:missing] if missing > 0 else b""
        self._tail += chunk[max(missing, 0) :]
        if len(self._tail) > 4 * self._room:
            del self._tail[: -self._room]

    def finish(self) -> str:
        """Return the text for the model and close the file. Nothing may be written afterwards."""
        text = self._whole()
        if text is None:
            text = self._cut()
        if self._file is not None:
            self._file.close()
            self._file = None
        return text.replace("\0", "\ufffd")

    def _whole(self) -> str | None:
        if self.total > 2 * self._room:
            return None
        text = bytes(self._head + self._tail).decode("utf-8", "replace")
        return text if len(text) <= self._characters else None

    def _cut(self) -> str:
        if self._file is None:
            self._open_file()
        self._store(b"", last=True)
        half = self._characters // 2
        everything = self._head + self._tail if self.total <= 2 * self._room else None
        # a character that the end of the room tears is beyond the half: it has room for four bytes each
        head = (everything or self._head).decode("utf-8", "replace")[:half]
        tail = (everything or self._tail[-self._room :]).decode("utf-8", "replace")[-half:]
        hidden = self.total - len(head.encode()) - len(tail.encode())
        return f"{head}\n[... about {max(hidden, 1):,} bytes left out here; {self._where()} ...]\n{tail}"

    def _where(self) -> str:
        if self._path is None or not self._written:
            return f"the whole output ({self.total:,} bytes) could not be kept: {self._trouble}"
        if self._overflowed or self._trouble:
            why = f" ({self._trouble})" if self._trouble else ""
            return f"the first {self._written:,} of {self.total:,} bytes are in {self._path}{why}"
        return f"the whole output ({self.total:,} bytes) is in {self._path}"

    def _open_file(self) -> None:
        if self._trouble is not None or self._directory is None:
            return
        try:
            self._path, self._file = new_file(self._directory, "output", ".txt")
        except OSError as error:
            self._trouble = error.strerror or str(error)
            return
        self._store(bytes(self._head + self._tail))

    def _store(self, chunk: bytes, *, last: bool = False) -> None:
        if self._file is None or self._trouble is not None:
            return
        if self._written >= KEPT_BYTES:
            self._overflowed |= bool(chunk or self._unwritten)
            return
        masked, self._unwritten = self._masker.stream(self._unwritten + chunk, last=last)
        try:
            room = KEPT_BYTES - self._written
            self._overflowed |= len(masked) > room
            write_all(self._file.fileno(), masked[:room])
        except OSError as error:
            self._trouble = error.strerror or str(error)
        self._written = self._file.tell()  # a disk that fills takes a piece, and refuses the next


MOST_BASE64 = {"image": 5 << 20, "document": 20 << 20}
"""How many characters of base64 the API takes in one block."""


def is_too_long(result: ToolResult, characters: int) -> bool:
    """Whether a result is too long for the model."""
    return _characters(result) > characters or any(map(_is_too_big, result.content))


class KeptOutputs:
    """Keeps what a model cannot see in files of `directory`, up to 64 MiB each; without one it is lost."""

    def __init__(self, directory: Directory | None = None, masker: Masker | None = None) -> None:
        self._directory = directory
        self._masker = masker or Masker()

    def shortened(self, result: ToolResult, characters: int) -> ToolResult:
        """Return a result in a form that is short enough, and names the file with the full text."""
        content = [self._reference(block) if _is_too_big(block) else block for block in result.content]
        texts = [block["text"] for block in content if block.get("type") == "text"]
        if sum(map(len, texts)) > characters:
            others = [block for block in content if block.get("type") != "text"]
            content = [{"type": "text", "text": self._cut(texts, characters)}, *others]
        return replace(result, content=content)

    def _cut(self, texts: list[str], characters: int) -> str:
        capture = OutputCapture(self._directory, characters=characters, masker=self._masker)
        for number, text in enumerate(texts):
            for start in range(0, len(text), _PIECE):
                capture.write(text[start : start + _PIECE].encode("utf-8", "replace"))
            if number < len(texts) - 1:
                capture.write(b"\n\n")
        return capture.finish()

    def keep(self, data: bytes, media: str | None) -> str:
        """Store bytes, with secrets masked; return a few words with their path, or why they are not kept."""
        if self._directory is None:
            return "not shown here"
        if len(data) > KEPT_BYTES:
            return f"not kept: more than {KEPT_BYTES:,} bytes"
        suffix = mimetypes.guess_extension((media or "").partition(";")[0].strip()) or ".bin"
        try:
            path, file = new_file(self._directory, "file", suffix)
            with file:
                write_all(file.fileno(), self._masker.stream(data, last=True)[0])
        except OSError as error:
            return f"not kept: {error.strerror or error}"
        return f"kept in {path}"

    def _reference(self, block: ContentBlock) -> ContentBlock:
        """Return a text that names the file of an image or document too big for the API."""
        kind, source = block["type"], block["source"]
        try:
            where = self.keep(base64.b64decode(source["data"]), source.get("media_type"))
        except ValueError:
            where = "no valid base64"
        size = f"{len(source['data']):,} characters of base64"
        return {"type": "text", "text": f"[{kind} of {size}, too big to be shown; {where}]"}


_PIECE = 1 << 20


def _characters(result: ToolResult) -> int:
    return sum(len(block["text"]) for block in result.content if block.get("type") == "text")


def _is_too_big(block: ContentBlock) -> bool:
    source = block.get("source")
    data = source.get("data") if isinstance(source, dict) else None
    return isinstance(data, str) and len(data) > MOST_BASE64.get(str(block.get("type")), len(data))
