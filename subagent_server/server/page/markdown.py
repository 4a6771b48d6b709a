"""Markdown of a model as a tree of allowed elements. The page builds them one by one: no HTML is ever made.

The parser takes seconds for some texts of 20 KB, so it works in a process of its own with bounds; what
it does not finish is shown as plain text.
"""

import json
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from subagent_server.run.commands import MOST_BYTES, WorkDied, killable

MAX_CHARACTERS = 60_000
"""A longer text is shown plain."""
SECONDS = 5.0
"""How long the parser may take until the text is shown plain."""
_SCHEMES = ("http://", "https://", "mailto:")
_ELEMENTS = frozenset(
    [
        *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br"),
        *("em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td"),
    ]
)
Node = str | list[Any]
"""A text, or `[element, attribute or None, nodes]`."""


async def tree_of(text: str) -> list[Node] | None:
    """Return the nodes of a text, or None if it is to be shown plain. Call it in the main thread."""
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        nodes: list[Node] | None = await killable(lambda: _answerable(parse(text)), SECONDS)
    except (TimeoutError, WorkDied, OSError, RecursionError):
        return None
    return nodes


def _answerable(nodes: list[Node]) -> list[Node] | None:
    return nodes if len(json.dumps(nodes)) <= MOST_BYTES else None


def parse(text: str) -> list[Node]:
    """Return the nodes of a text."""
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    parser.disable("image")  # to fetch it would tell somebody that the result was read
    return _nodes(SyntaxTreeNode(parser.parse(text)))


def _nodes(parent: Any) -> list[Node]:
    return [made for node in parent.children for made in _node(node)]


def _node(node: Any) -> list[Node]:
    match node.type:
        case "text":
            return [node.content]
        case "softbreak":
            return ["\n"]
        case "hardbreak":
            return [["br", None, []]]
        case "code_inline":
            return [["code", None, [node.content]]]
        case "fence" | "code_block":
            return [["pre", node.info.split(" ", 1)[0] if node.type == "fence" else None, [node.content]]]
        case "link":
            target = str(node.attrs.get("href", ""))
            inner = _nodes(node)
            return [["a", target, inner]] if target.lower().startswith(_SCHEMES) else inner
        case _:
            inner = _nodes(node)
            return [[node.tag, None, inner]] if node.tag in _ELEMENTS else inner
