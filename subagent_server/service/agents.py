"""The agents available now. Changed files are read again."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from subagent_server.catalog.discover import Catalog, discover
from subagent_server.catalog.loading import load_agent_file
from subagent_server.catalog.problems import shown
from subagent_server.catalog.walk import MAX_ENTRIES
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import UnknownAgent

Fingerprint = tuple[tuple[str, int, int], ...]


class AgentRegistry:
    """The catalog of some directories, read again when a file in them has changed.

    A missing directory is listed as a problem, unless the directory is only `looked_for` by default.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        only: AgentDefinition | None = None,
        *,
        looked_for: bool = False,
    ) -> None:
        self._directories = tuple(directories)
        self._looked_for = looked_for
        self._only = only
        self._read: tuple[Fingerprint, Catalog] | None = None
        self._keep_seconds, self._looked_at = 0.0, -math.inf

    def keep_for(self, seconds: float) -> None:
        """Look at the files at most once in this time from now on: there are many who ask."""
        self._keep_seconds = seconds

    @classmethod
    def of_one(cls, definition: AgentDefinition) -> "AgentRegistry":
        """Return a registry with exactly one agent (`serve --config`)."""
        return cls((), definition)

    def is_named(self, agent: AgentDefinition) -> bool:
        """Whether this very agent was named by a person (`serve --config`)."""
        return agent is self._only

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where agents are looked for, the earlier wins."""
        return self._directories

    def catalog(self) -> Catalog:
        """Return the catalog of the directories as they are now."""
        read = self._read  # one value: several threads may ask
        if read is not None and time.monotonic() < self._looked_at + self._keep_seconds:
            return read[1]
        self._looked_at = time.monotonic()
        seen = _fingerprint(self._directories)
        if read is None or seen != read[0]:
            present = [d for d in self._directories if d.is_dir() or not self._looked_for]
            self._read = read = (seen, discover(present))
        return read[1]

    def agents(self) -> list[AgentDefinition]:
        """Return the agents that loaded, by name; those of a directory without their prompts."""
        if self._only is not None:
            return [self._only]
        return list(self.catalog().agents.values())

    def names(self) -> frozenset[str] | None:
        """Return the names that agents may name, or None if only one agent is known (`serve --config`)."""
        return None if self._only is not None else frozenset(self.catalog().agents)

    def get(self, name: str) -> AgentDefinition:
        """Return the agent of this name or tool name, whole, as its file is now.

        Raises:
            UnknownAgent: none loaded; the sentence says why if a file of that name was refused.
            AgentFileError: the file has just become unreadable.
        """
        if self._only is None:
            return _whole(self.catalog().require(name))
        if name in (self._only.name, self._only.tool_name):
            return self._only
        raise UnknownAgent(name, [self._only.name])


def _whole(listed: AgentDefinition) -> AgentDefinition:
    """Return an agent of a catalog with its prompt."""
    if listed.source is None:
        return listed
    whole = load_agent_file(listed.source)
    if whole.name != listed.name:
        raise UnknownAgent(listed.name, [whole.name], f"{shown(listed.source)} has just changed")
    return whole.model_copy(update={"distinct_tool": listed.distinct_tool})


def _fingerprint(directories: Sequence[Path]) -> Fingerprint:
    """Return a value that differs after each change of these directories.

    Every file counts, not agent files alone: prompts and schemas lie beside the agent files.
    """
    found: list[tuple[str, int, int]] = []
    for directory in directories:
        found += islice(_entries(directory), MAX_ENTRIES)
    return tuple(sorted(found))


def _entries(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Yield what is in a directory tree, with time and size. Links to directories are not followed."""
    pending = [str(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                here = list(islice(entries, MAX_ENTRIES))
        except OSError:
            continue  # gone meanwhile, or not to be read
        for entry in here:
            try:
                status = entry.stat()
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
            except OSError:
                continue  # gone meanwhile, or a link to nowhere
            yield entry.path, status.st_mtime_ns, status.st_size
