"""The result of an MCP tool in the best form that the Messages API takes (SPEC section 8).

Text, images and PDF go to the model as such. Content that it cannot see (audio, other files, images that the
API refuses) is kept in a file of the run, and a line names the file.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from subagent_server.domain.errors import BadArgument
from subagent_server.domain.images import media_type
from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory
from subagent_server.toolkit.new_file import keep_bytes
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace.images import image_block

Block = dict[str, Any]


@dataclass(frozen=True)
class Attachments:
    """Files for content that the model cannot see. Without a directory none is kept."""

    directory: Directory | None = None
    masker: Masker = field(default_factory=Masker)

    def keep(self, data: bytes, media: str | None) -> str:
        """Store bytes and return a few words with their path, or why they are not kept."""
        return keep_bytes(self.directory, self.masker, data, media)


def converted(result: CallToolResult, attachments: Attachments) -> ToolResult:
    """Return a result in the form of the Messages API, which takes only text in an error."""
    blocks = [block for content in result.content for block in _blocks(content, attachments)]
    said = [content.text for content in result.content if isinstance(content, TextContent)]
    if result.structured_content is not None and not _says(said, result.structured_content):
        blocks.append(_text(json.dumps(result.structured_content, ensure_ascii=False)))
    blocks = [block for block in blocks if block["type"] != "text" or block["text"].strip()]
    if not result.is_error:
        return ToolResult(blocks)
    texts = [block if block["type"] == "text" else _text(f"[{block['type']}]") for block in blocks]
    return ToolResult(texts or [_text("The tool failed and did not say why.")], is_error=True)


def _says(texts: list[str], structured: Any) -> bool:
    """Whether a text already holds the structured content: as JSON, or as the one value it wraps."""
    known = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        known += structured.values()
    for text in texts:
        try:
            said = json.loads(text)
        except ValueError:
            said = text
        if said in known or text in known:
            return True
    return False


def _text(text: str) -> Block:
    """Return a text block, without characters that UTF-8 cannot hold."""
    return {"type": "text", "text": text.encode("utf-8", "replace").decode()}


# -- one block of a result


def _blocks(content: ContentBlock, attachments: Attachments) -> Iterator[Block]:
    match content:
        case TextContent():
            yield _text(content.text)
        case ImageContent() | AudioContent():
            yield _media(content.data, content.mime_type, content.type, attachments)
        case ResourceLink():
            yield _text(_link(content))
        case EmbeddedResource():
            yield from _resource(content, attachments)


def _media(data: str, media: str | None, what: str, attachments: Attachments) -> Block:
    try:
        raw = base64.b64decode(re.sub(r"\s", "", data), validate=True)
    except (binascii.Error, ValueError):
        return _text(f"[{what} that is no valid base64, so it cannot be shown]")
    why = ""
    if media_type(raw) is not None:
        try:
            return image_block(what, raw)
        except BadArgument as error:
            why = f"; {error.sentence.rstrip('.')}"
    if (media or "").startswith("text/") and (text := _decoded(raw)) is not None:
        return _text(f"[{what}]\n{text}")
    if raw.startswith(b"%PDF-"):
        source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(raw).decode()}
        return {"type": "document", "source": source}
    facts = f"{media or 'of an unknown kind'}, {len(raw):,} bytes, {attachments.keep(raw, media)}"
    return _text(f"[{what}, {facts}{why}]")


def _decoded(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _link(link: ResourceLink) -> str:
    facts = [link.mime_type, f"{link.size:,} bytes" if link.size is not None else None]
    known = ", ".join(fact for fact in facts if fact)
    about = " — ".join(part for part in (link.title or link.name, link.description) if part)
    return f"[resource {link.uri}{f' ({known})' if known else ''}{f': {about}' if about else ''}]"


def _resource(content: EmbeddedResource, attachments: Attachments) -> Iterator[Block]:
    resource = content.resource
    if isinstance(resource, BlobResourceContents):
        block = _media(resource.blob, resource.mime_type, f"resource {resource.uri}", attachments)
        if block["type"] != "text":
            yield _text(f"[resource {resource.uri}]")
        yield block
    else:
        yield _text(f"[resource {resource.uri}]\n{resource.text}")
