"""The agents that can be started now. Files that change are read again."""

from collections.abc import Sequence
from pathlib import Path

from subagent_server.catalog.discover import Catalog, discover
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import UnknownAgent

Fingerprint = tuple[tuple[str, int, int], ...]


class AgentShelf:
    """The catalog of some directories, read again when a file in them has changed."""

    def __init__(self, directories: Sequence[Path], only: AgentDefinition | None = None) -> None:
        self._directories = tuple(directories)
        self._only = only
        self._seen: Fingerprint | None = None
        self._catalog: Catalog | None = None

    @classmethod
    def of_one(cls, definition: AgentDefinition) -> "AgentShelf":
        """Return a shelf with exactly one agent (`serve --config`)."""
        return cls((), definition)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where agents are looked for, the earlier wins."""
        return self._directories

    def catalog(self) -> Catalog:
        """Return what the directories hold now."""
        seen = _fingerprint(self._directories)
        if self._catalog is None or seen != self._seen:
            self._catalog = discover(self._directories)
            self._seen = seen
        return self._catalog

    def agents(self) -> list[AgentDefinition]:
        """Return the agents that loaded, by name."""
        if self._only is not None:
            return [self._only]
        return [agent for _, agent in sorted(self.catalog().agents.items())]

    def get(self, name: str) -> AgentDefinition:
        """Return the agent of this name or tool name.

        Raises:
            UnknownAgent: none loaded; the sentence says why if a file of that name was refused.
        """
        for agent in self.agents():
            if name in (agent.name, agent.tool_name):
                return agent
        raise UnknownAgent(name, [agent.name for agent in self.agents()], self._reason(name))

    def _reason(self, name: str) -> str | None:
        problems = [] if self._only else self.catalog().problems
        found = next((p for p in problems if p.path is not None and p.path.name.split(".")[0] == name), None)
        return None if found is None else f"{found.path}: {found.reason}"


def _fingerprint(directories: Sequence[Path]) -> Fingerprint:
    found: list[tuple[str, int, int]] = []
    for directory in directories:
        for path in directory.rglob("*"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))
