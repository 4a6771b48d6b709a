"""The agents that come with the product, and the text of a new one.

`subagent new` copies them and `subagent demo` shows one. They are never offered or run from here: an agent is
offered or run only from a file in a directory of the user.
"""

import re
from pathlib import Path

from subagent_server.catalog.discover import Catalog, discover
from subagent_server.catalog.files import Unreadable, read_text
from subagent_server.catalog.loading import MARKDOWN
from subagent_server.catalog.markdown import read_markdown, split
from subagent_server.catalog.problems import Notes, shown
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument

EXAMPLE_AGENTS = Path(__file__).parents[1] / "example_agents"
"""In the repository a link to `agents/`, which is the only copy; in an installation a directory."""
TEMPLATE = Path(__file__).with_name("template.md")
_NAME_LINE = re.compile(r"^name[ \t]*:.*\n", re.MULTILINE)


def examples() -> Catalog:
    """Return the agents that come with the product."""
    return discover([EXAMPLE_AGENTS])


def template(name: str) -> str:
    """Return the text of a new agent, with a comment at each key that its author may want to change."""
    return _renamed(TEMPLATE, TEMPLATE.read_text(encoding="utf-8"), name)


def copied(agent: AgentDefinition, name: str) -> str:
    """Return the text of an agent's file under another name.

    Raises:
        BadArgument: the file cannot be copied so.
        AgentFileError: it has changed, and is not understood any more.
    """
    source = agent.source
    if source is None or source.suffix.lower() not in MARKDOWN:
        raise BadArgument(f"Agent {agent.name} is not a Markdown file, and only those are copied.")
    try:
        return _renamed(source, read_text(source), name)
    except Unreadable as error:
        raise BadArgument(f"{shown(source)} cannot be copied: {error.reason}.") from error


def _renamed(path: Path, text: str, name: str) -> str:
    """Return the text of a Markdown agent with this name in place of its own, and everything else in it.

    Raises:
        BadArgument, AgentFileError: as `copied`.
    """
    parts = split(path, text)
    line = f"name: {name}\n"
    keys, times = _NAME_LINE.subn(line, parts.text, count=1)
    renamed = f"---\n{'' if times else line}{keys}---\n\n{parts.body}\n"
    if read_markdown(path, renamed, Notes()).name != name:
        raise BadArgument(f"The name in {shown(path)} is not on one line: copy the file by hand.")
    return renamed
