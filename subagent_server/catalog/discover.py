"""Every agent of some directories, and every file that is none, with its reason."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.catalog.loading import LoadedFile, load_file
from subagent_server.catalog.problems import AgentFileError, Kind, NotAnAgent, Problem, shown
from subagent_server.catalog.walk import Finding, agent_files
from subagent_server.domain.definitions import AgentDefinition, tool_name
from subagent_server.domain.errors import UnknownAgent


@dataclass(frozen=True)
class Catalog:
    """The agents that may be run, by name in alphabetical order, and what is worth knowing of the files."""

    agents: dict[str, AgentDefinition] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def find(self, name: str) -> AgentDefinition | None:
        """Return the agent of this name, or whose tool has this name."""
        if name in self.agents:
            return self.agents[name]
        return next((agent for agent in self.agents.values() if agent.tool_name == name), None)

    def require(self, name: str) -> AgentDefinition:
        """Return the agent as `find` does.

        Raises:
            UnknownAgent: there is none; the error says why where a file of that name was not loaded.
        """
        agent = self.find(name)
        if agent is None:
            raise UnknownAgent(name, self.agents, self._why_missing(name))
        return agent

    def _why_missing(self, name: str) -> str | None:
        for problem in self.problems:
            if name in (problem.agent, problem.path.stem) and problem.kind not in ("fault", "warning"):
                return f"{shown(problem.path)}: {problem.reason}"
        return None


@dataclass(frozen=True)
class _Candidate:
    """A file of one directory that loaded."""

    path: Path
    loaded: LoadedFile

    @property
    def name(self) -> str:
        return self.loaded.definition.name


@dataclass
class _Search:
    """What is known after the directories read so far. A tool name is taken by whoever claimed it first."""

    agents: dict[str, AgentDefinition] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    taken: dict[str, tuple[str, Path]] = field(default_factory=dict)

    def tell(self, candidate: _Candidate, kind: Kind, reason: str) -> None:
        self.problems.append(Problem(candidate.path, None, kind, reason, candidate.name))


def discover(directories: Sequence[Path]) -> Catalog:
    """Return the agents of `directories` and of what is below them; nothing that is found there is an error.

    In one directory tree two files of one name load neither; across directories the earlier wins, also where
    its own files of that name are at odds. Problems come in the order of directories, then of paths.
    """
    search = _Search()
    seen: dict[tuple[int, int], Path] = {}
    for directory in directories:
        start = len(search.problems)
        _read_directory(directory, search, seen)
        search.problems[start:] = sorted(search.problems[start:], key=lambda p: (str(p.path), p.line or 0))
    return Catalog(dict(sorted(search.agents.items())), search.problems)


def _read_directory(directory: Path, search: _Search, seen: dict[tuple[int, int], Path]) -> None:
    groups: dict[str, list[_Candidate]] = {}
    for found in agent_files(directory, seen):
        candidate = _load(found, search)
        if candidate is not None:
            groups.setdefault(tool_name(candidate.name), []).append(candidate)
    for tool, candidates in groups.items():
        if tool in search.taken:
            _pass_over(tool, candidates, search)
            continue
        search.taken[tool] = candidates[0].name, candidates[0].path
        if len(candidates) == 1:
            _accept(candidates[0], search)
        else:
            _refuse_all(tool, candidates, search)


def _load(found: Finding, search: _Search) -> _Candidate | None:
    if found.problem is not None:
        search.problems.append(found.problem)
        return None
    try:
        return _Candidate(found.path, load_file(found.path))
    except NotAnAgent as error:
        search.problems.append(Problem(found.path, error.line, "skipped", error.reason))
    except AgentFileError as error:
        search.problems.append(Problem(found.path, error.line, "error", error.reason))
    return None


def _accept(candidate: _Candidate, search: _Search) -> None:
    search.agents[candidate.name] = candidate.loaded.definition
    search.problems += [
        Problem(candidate.path, note.line, note.kind, note.reason, candidate.name)
        for note in candidate.loaded.notes
    ]


def _pass_over(tool: str, candidates: Iterable[_Candidate], search: _Search) -> None:
    """List what an earlier directory has already: the same agent is shadowed, another one clashes."""
    name, path = search.taken[tool]
    for candidate in candidates:
        if candidate.name == name:
            search.tell(candidate, "shadowed", f"{name} of {shown(path)} goes before it")
        else:
            search.tell(candidate, "clash", f"its tool would be {tool}, which {name} of {shown(path)} has")


def _refuse_all(tool: str, candidates: Sequence[_Candidate], search: _Search) -> None:
    for candidate in candidates:
        others = [other for other in candidates if other is not candidate]
        twins = [other for other in others if other.name == candidate.name]
        files = ", ".join(shown(other.path) for other in (twins or others)[:4])
        if twins:
            search.tell(candidate, "duplicate", f"{files} has the name {candidate.name} too: rename one")
        else:
            search.tell(candidate, "clash", f"{files} would have the tool {tool} too: rename one")
