"""Markdown of a model as a tree of allowed elements. The page builds them one by one: no HTML is ever made.

The parser takes seconds for some texts of 20 KB, so it works in a process that can be killed; what it does
not finish is shown as plain text.
"""

from contextlib import suppress
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from subagent_server.run.commands import WorkDied, killable

MAX_CHARACTERS = 60_000
"""A longer text is shown plain."""
SECONDS = 5.0
"""How long the parser may take until the text is shown plain."""
MAX_NODES = 20_000
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
    with suppress(TimeoutError, WorkDied, OSError):  # an OSError: there is no room for a process
        nodes: list[Node] = await killable(lambda: parse(text), SECONDS)
        return nodes
    return None


def parse(text: str) -> list[Node]:
    """Return the nodes of a text. Raises ValueError: it is too large as a tree."""
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    parser.disable("image")  # to fetch it would show somebody that the result was read
    return _nodes(SyntaxTreeNode(parser.parse(text)), [MAX_NODES])


def _nodes(parent: Any, left: list[int]) -> list[Node]:
    found: list[Node] = []
    for node in parent.children:
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("too many nodes")
        found += _node(node, left)
    return found


def _node(node: Any, left: list[int]) -> list[Node]:
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
            inner = _nodes(node, left)
            return [["a", target, inner]] if target.lower().startswith(_SCHEMES) else inner
        case _:
            inner = _nodes(node, left)
            return [[node.tag, None, inner]] if node.tag in _ELEMENTS else inner
