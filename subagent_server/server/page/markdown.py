"""Markdown of a model as a tree of allowed elements. The page builds them one by one: no HTML is ever made.

The parser takes seconds for some texts of 20 KB, so it works in a process of its own with bounds; what
it does not finish is shown as plain text.
"""

import asyncio
import json
import resource
import sys
from typing import Any

MAX_CHARACTERS = 60_000
"""A longer text is shown plain."""
CPU_SECONDS = 2
"""What the parser may use of a core: time that others use on a busy machine is not counted."""
SECONDS = 20.0
"""Until the text is shown plain in any case."""
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
    """Return the nodes of a text, or None if it is to be shown plain."""
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", __name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:  # there is no room for a process
        return None
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(text.encode("utf-8", "replace"))
        nodes: list[Node] | None = json.loads(output) if process.returncode == 0 else None
        return nodes
    except (TimeoutError, ValueError, RecursionError):
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def parse(text: str) -> list[Node]:
    """Return the nodes of a text. Raises ValueError: it is too large as a tree."""
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    parser.disable("image")  # to fetch it would tell somebody that the result was read
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


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    json.dump(parse(sys.stdin.buffer.read().decode("utf-8", "replace")), sys.stdout)
