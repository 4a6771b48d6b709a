"""Making a new agent file, from a template or as a copy of another agent.

Tested in `tests/cli/test_new.py`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from subagent_server.agents.templates import copied, examples, template
from subagent_server.agents.yaml_reader import shown
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import BadArgument, SubagentError, UnknownAgent, shorten
from subagent_server.sandbox.file_watch import OwnWrites
from subagent_server.settings import Settings
from subagent_server.verbs.service import Service
from subagent_server.verbs.trust_check import Coverage, coverage, real_path, trust

_NAME = re.compile(r"(?!null$)[a-z0-9][a-z0-9_-]{0,47}")
"""YAML reads `null` as no name."""


@dataclass(frozen=True)
class NewAgent:
    """A file that was made; with `is_trusted` its directory has been trusted with it."""

    path: Path
    is_trusted: bool


def new_agent(service: Service, name: str, source: str | None) -> NewAgent:
    """Make the file of an agent in the first directory of agents, with the text of the agent `source`.

    If nothing else comes with the directory of the project, it is trusted: then it holds only what this
    user has made.

    Raises:
        BadArgument: the name cannot be used or is in use, or the file cannot be made.
        UnknownAgent, AgentFileError: there is nothing to copy.
    """
    # 1. Whether there can be such an agent.
    if not _NAME.fullmatch(name):
        raise BadArgument(
            f"{shorten(name)} is no name for an agent: take another, of 1 to 48 of a-z, 0-9, '-' and '_'."
        )
    present = service.registry.catalog().find(name)
    if present is not None:
        where = "" if present.source is None else f" in {shown(present.source)}"
        raise BadArgument(f"There is an agent {name} already{where}: edit that file, or take another name.")
    text = template(name) if source is None else copied(_find(service, source), name)
    # 2. What is trusted now: after the file is made, it cannot be distinguished from what came meanwhile.
    settings = service.settings
    before = _coverage(settings)
    # 3. The file.
    directory = settings.agent_directories[0]
    if settings.agents_by_default and not real_path(directory).is_relative_to(real_path(settings.cwd)):
        raise BadArgument(
            f"{shown(directory)} is a link out of this directory: name the directory with --agents."
        )
    path = directory / f"{name}.md"
    with OwnWrites(settings.state_directory).writing(path):
        _make(path, text)
    # 4. The trust, unless something else would be trusted with it.
    if before is None or before.changes or (before.agents and not before.is_trusted):
        return NewAgent(path, is_trusted=False)
    after = coverage(settings, settings.cwd)
    if not after.is_new or {*after.agents} - {*before.agents} != {name}:
        return NewAgent(path, is_trusted=False)
    trust(settings, after)
    return NewAgent(path, is_trusted=True)


def _find(service: Service, name: str) -> AgentDefinition:
    """Return an agent of the user, else one of those that come with the product. Raises UnknownAgent."""
    present, ours = service.registry.catalog(), examples()
    agent = present.find(name) or ours.find(name)
    if agent is None:
        raise UnknownAgent(name, sorted({*present.agents, *ours.agents}), present.why_missing(name))
    return agent


def _make(path: Path, text: str) -> None:
    """Make a file that was not there.

    Raises:
        BadArgument, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise BadArgument(f"{shown(path)} exists and was left as it is: take another name.") from error
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink()
        raise


def _coverage(settings: Settings) -> Coverage | None:
    """Return the extent of trust in the directory of the project, or None if its agents need none."""
    if not settings.agents_by_default or settings.is_of_a_run:
        return None
    try:
        return coverage(settings, settings.cwd)
    except SubagentError:
        return None  # nothing can be trusted here, and the first run reports why
