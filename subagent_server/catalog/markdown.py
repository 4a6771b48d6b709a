"""An agent as a Markdown file: front matter between two lines of `---`, then the system prompt."""

import re
from dataclasses import dataclass
from pathlib import Path

from subagent_server.catalog.fields import Origin, read_definition
from subagent_server.catalog.keys import canonical
from subagent_server.catalog.lenient_yaml import parse_leniently
from subagent_server.catalog.problems import AgentFileError, NotAnAgent, Notes
from subagent_server.catalog.strict_yaml import NotYaml, parse
from subagent_server.catalog.values import Block, is_null
from subagent_server.domain.definitions import AgentDefinition

_OPENING = re.compile(r"\s*?^---[ \t]*$\n?", re.MULTILINE)
_LOST_OPENING = re.compile(
    r"\s*(?:name|description):.*\n(?:[\w-]+:.*\n|[ \t#].*\n)*---[ \t]*$", re.IGNORECASE | re.MULTILINE
)
"""Keys of an agent and the line that ends them, without the line before them."""
_CLOSING = re.compile(r"^---.*$\n?", re.MULTILINE)
_IDENTITY = frozenset({"name", "description"})
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)*")


MAX_FRONT_MATTER = 128 << 10
"""Characters. Lenient reading of as much takes less than a second."""


@dataclass(frozen=True)
class FrontMatter:
    """The two parts of a file; `first_line` is the line on which the front matter begins."""

    text: str
    first_line: int
    body: str


def read_markdown(path: Path, text: str, notes: Notes) -> AgentDefinition:
    """Return the agent defined by the text of a Markdown file; its mistakes go to `notes`.

    Raises:
        NotAnAgent: there is no front matter, or front matter with neither name nor description.
        AgentFileError: the front matter is not closed, too long, or cannot be understood.
    """
    parts = split(path, text)
    block = _understand(path, parts, notes)
    if all(is_null(block[key]) for key in block if canonical(key) in _IDENTITY):
        raise NotAnAgent(path, "its front matter has neither name nor description, so it is not an agent")
    if "$ARGUMENTS" in parts.body:
        notes.warn("the prompt says $ARGUMENTS, which nothing replaces: the task is the first message")
    origin = Origin(path=path, name=path.stem, body=parts.body)
    return read_definition(block, origin, notes)


def split(path: Path, text: str) -> FrontMatter:
    """Return front matter and body. Of the body, only blank lines around it are dropped.

    Raises:
        NotAnAgent, AgentFileError: as for `read_markdown`.
    """
    opening = _OPENING.match(text)
    if opening is None and _LOST_OPENING.match(text):
        raise AgentFileError(path, "its front matter has no beginning: put a line '---' before its keys", 1)
    if opening is None:
        raise NotAnAgent(path, "it has no front matter (a first line '---'), so it is not an agent")
    first_line = opening[0].rstrip("\n").count("\n") + 2
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        reason = "its front matter has no end: put a line '---' between the keys and the prompt"
        raise AgentFileError(path, reason, first_line - 1)
    if closing.start() - opening.end() > MAX_FRONT_MATTER:
        reason = f"its front matter is longer than {MAX_FRONT_MATTER >> 10} KiB, so make it shorter"
        raise AgentFileError(path, reason, first_line)
    body = text[closing.end() :].rstrip()
    return FrontMatter(text[opening.end() : closing.start()], first_line, _BLANK_LINES.sub("", body, count=1))


def _understand(path: Path, parts: FrontMatter, notes: Notes) -> Block:
    try:
        value = parse(parts.text, parts.first_line)
    except NotYaml as error:
        return _understand_loosely(path, parts, notes, error)
    if value == "":
        return Block()
    if isinstance(value, Block) and not _has_structured_description(value):
        return value
    reason = NotYaml("it is not a list of 'key: value' lines", parts.first_line)
    return _understand_loosely(path, parts, notes, reason)


def _has_structured_description(block: Block) -> bool:
    """Whether prose was taken for YAML: `Use it when: ...` on a line of its own reads as a mapping."""
    return any(key.lower() == "description" and not isinstance(block[key], str) for key in block)


def _understand_loosely(path: Path, parts: FrontMatter, notes: Notes, trouble: NotYaml) -> Block:
    read = parse_leniently(parts.text, parts.first_line)
    if read is None:
        raise AgentFileError(path, f"its front matter cannot be understood ({trouble.reason})", trouble.line)
    for line in read.stray:
        notes.warn("this line is under no key and was left out", line)
    for broken in read.broken:
        notes.fault(broken.reason, broken.line)
    return read.block
