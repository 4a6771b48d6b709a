"""The agents that a caller is offered, kept until a file of theirs or the user's trust changes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from operator import is_

from subagent_server.catalog.trust import TrustFile
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import UnknownAgent
from subagent_server.service.access import Caller
from subagent_server.service.check_agent import AgentChecker, says_refused
from subagent_server.service.context import Service
from subagent_server.service.nesting import agents_of
from subagent_server.service.trusting import TrustCheck

RECHECK_SECONDS = 10.0
"""How long a description may say that a call is refused after the reason has gone."""


class OfferedAgents:
    """The agents that a caller may start, by name."""

    def __init__(self, agents: Sequence[AgentDefinition], service: Service) -> None:
        self.agents = tuple(agents)
        self._service = service
        self._checked_at = 0.0

    @cached_property
    def shown(self) -> tuple[AgentDefinition, ...]:
        """The agents as models may see them."""
        self._checked_at = time.monotonic()
        return tuple(map(AgentChecker(self._service).as_shown, self.agents))

    def is_outdated(self) -> bool:
        """Whether a call that would have been refused is refused no longer: a program was installed."""
        if "shown" not in self.__dict__ or time.monotonic() < self._checked_at + RECHECK_SECONDS:
            return False
        self._checked_at = time.monotonic()
        checker = AgentChecker(self._service)
        refused = (
            each for each in zip(self.agents, self.shown, strict=True) if says_refused(each[1].description)
        )
        return any(checker.as_shown(agent).description != shown.description for agent, shown in refused)

    @cached_property
    def by_tool(self) -> dict[str, AgentDefinition]:
        """The agents by the names of their tools."""
        return {agent.tool_name: agent for agent in self.agents}

    def named(self, name: str) -> AgentDefinition:
        """Return the agent of this name, or whose tool has this name.

        Raises:
            UnknownAgent: the sentence has the nearest names, and says why if a file of that name was refused.
        """
        for agent in self.agents:
            if agent.name == name:
                return agent
        if name in self.by_tool:
            return self.by_tool[name]
        names = [agent.name for agent in self.agents]
        raise UnknownAgent(name, names, self._service.registry.catalog().why_missing(name))

    def matching(self, query: str) -> list[AgentDefinition]:
        """Return the agents as models may see them that have a word of `query`, the best first; "" is all."""
        words = set(query.casefold().split())
        rated = [(_rating(agent, words), agent) for agent in self.shown]
        rated.sort(key=lambda each: -each[0])  # stable: equals stay in the order of their names
        return [agent for rating, agent in rated if rating or not words]


@dataclass(frozen=True)
class _Kept:
    """The last offer, and the state of the files that it was made from."""

    agents: Sequence[AgentDefinition]
    trusted: TrustFile
    offered: OfferedAgents


class Offer:
    """Finds the agents that a caller is offered, anew only when something has changed."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._kept: _Kept | None = None

    def now(self) -> OfferedAgents:
        """Return the agents as their files and the trust are now: the same object if nothing has changed.

        Looks at the files: call it off the event loop.
        """
        agents, trust_check, kept = self._service.registry.agents(), TrustCheck(self._service), self._kept
        if (
            kept is None
            or kept.trusted != trust_check.trusted
            or not _are_same(kept.agents, agents)
            or kept.offered.is_outdated()
        ):
            offered = OfferedAgents(list(filter(self._is_offered, agents)), self._service)
            self._kept = kept = _Kept(agents, trust_check.trusted, offered)
        return kept.offered

    def _is_offered(self, agent: AgentDefinition) -> bool:
        patterns = self._service.settings.agent_patterns
        if patterns and not any(fnmatchcase(agent.name, pattern) for pattern in patterns):
            return False
        return self._allowed is None or agent.name in self._allowed

    @cached_property
    def _allowed(self) -> set[str] | None:
        """The names of the agents that a run may start: its request never changes. None: all."""
        return None if self._caller.run_id is None else agents_of(self._service, self._caller.run_id)


def _are_same(some: Sequence[AgentDefinition], others: Sequence[AgentDefinition]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _rating(agent: AgentDefinition, words: set[str]) -> int:
    name, description = agent.name.casefold(), agent.description.casefold()
    return sum(3 * (word in name) + (word in description) for word in words)
