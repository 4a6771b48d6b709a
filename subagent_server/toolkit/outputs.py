"""Shortening results that are too long for the model; the full text goes to a file of the run."""

import base64
import binascii
from typing import Protocol

from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory
from subagent_server.toolkit.new_file import keep_bytes
from subagent_server.toolkit.tool import ContentBlock, ToolResult
from subagent_server.toolkit.workspace.output import OutputCapture

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
        self._masker = masker or Masker()

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
        try:
            where = keep_bytes(
                self._directory, self._masker, base64.b64decode(source["data"]), source.get("media_type")
            )
        except (binascii.Error, ValueError):
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
