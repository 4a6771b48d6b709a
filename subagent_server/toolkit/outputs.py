"""Shortening results that are too long for the model; the full text goes to a file of the run."""

import base64
import binascii
from pathlib import Path
from typing import Any, Protocol

from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory
from subagent_server.toolkit.new_file import new_file
from subagent_server.toolkit.tool import ContentBlock, ToolResult
from subagent_server.toolkit.workspace.output import KEPT_BYTES, OutputCapture

MOST_BASE64 = {"image": 5 << 20, "document": 20 << 20}
"""How many characters of base64 the API takes in one block."""


class Shortener(Protocol):
    """Shortens results. The worker's implementation keeps the full text in a file."""

    def shortened(self, result: ToolResult, characters: int) -> ToolResult:
        """Return a result with at most about `characters` of text. May write files."""
        ...


def is_too_long(result: ToolResult, characters: int) -> bool:
    """Whether a result is too long for the model."""
    return _characters(result) > characters or any(map(_is_too_big, result.content))


class KeptOutputs:
    """Keeps long results in files of `directory`, up to 64 MiB each; without a directory the rest is lost."""

    def __init__(self, directory: Directory | None = None, masker: Masker | None = None) -> None:
        self._directory = directory
        self._masker = masker

    def shortened(self, result: ToolResult, characters: int) -> ToolResult:
        """Return a result that is short enough and names the file with the full text."""
        if not is_too_long(result, characters):
            return result
        content = [self._reference(block) if _is_too_big(block) else block for block in result.content]
        texts = [block["text"] for block in content if block.get("type") == "text"]
        if sum(map(len, texts)) > characters:
            others = [block for block in content if block.get("type") != "text"]
            content = [{"type": "text", "text": self._cut(texts, characters)}, *others]
        return ToolResult(content, result.is_error)

    def _cut(self, texts: list[str], characters: int) -> str:
        capture = OutputCapture(self._directory, characters=characters, masker=self._masker)
        for number, text in enumerate(texts):
            for start in range(0, len(text), _PIECE):
                capture.write(text[start : start + _PIECE].encode("utf-8", "replace"))
            if number < len(texts) - 1:
                capture.write(b"\n\n")
        return capture.finish()

    def _reference(self, block: ContentBlock) -> ContentBlock:
        """Return a text that names the file of an image or document too big for the API."""
        kind, source = block["type"], block["source"]
        reference = f"[{kind} of {len(source['data']):,} characters of base64, too big to be shown; {{}}]"
        return {"type": "text", "text": reference.format(self._kept(source))}

    def _kept(self, source: dict[str, Any]) -> str:
        if self._directory is None:
            return "it was not kept"
        try:
            data = base64.b64decode(source["data"])
        except (binascii.Error, ValueError):
            return "it is no base64"
        if self._masker is not None:
            data = self._masker.stream(data, last=True)[0]
        if len(data) > KEPT_BYTES:
            return f"it was not kept, as it has more than {KEPT_BYTES:,} bytes"
        suffix = str(source.get("media_type", "")).rpartition("/")[2]
        try:
            return f"it is in {_written(self._directory, suffix, data)}"
        except OSError as error:
            return f"it could not be kept: {error.strerror or error}"


_PIECE = 1 << 20


def _characters(result: ToolResult) -> int:
    return sum(len(block["text"]) for block in result.content if block.get("type") == "text")


def _is_too_big(block: ContentBlock) -> bool:
    source = block.get("source")
    data = source.get("data") if isinstance(source, dict) else None
    return isinstance(data, str) and len(data) > MOST_BASE64.get(str(block.get("type")), len(data))


def _written(directory: Directory, suffix: str, data: bytes) -> Path:
    safe = "".join(c for c in suffix if c.isalnum())[:10] or "bin"
    path, file = new_file(directory, "attachment", f".{safe}")
    with file:
        file.write(data)
    return path
