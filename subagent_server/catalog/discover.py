"""Find the agents of some directories, and for each other file the reason why it is not an agent."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from subagent_server.catalog.loading import LoadedFile, load_file
from subagent_server.catalog.problems import AgentFileError, Kind, NotAnAgent, Problem, shown
from subagent_server.catalog.walk import FoundFile, agent_files
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import UnknownAgent, shorten
from subagent_server.host.no_room import lack_of_room


@dataclass(frozen=True)
class Catalog:
    """The agents that may be run, by name in alphabetical order, and the problems of the files.

    A server keeps the agents as long as it lives, so they have no prompts: a run reads its file again.
    """

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
            UnknownAgent: there is no such agent; if a file of this name was not loaded, the error says why.
        """
        agent = self.find(name)
        if agent is None:
            raise UnknownAgent(name, self.agents, self.why_missing(name))
        return agent

    def why_missing(self, name: str) -> str | None:
        """Return why a file of this name is not an agent, or None."""
        for problem in self.problems:
            if name in (problem.agent, problem.path.stem) and problem.kind not in ("fault", "warning"):
                return f"{shown(problem.path)}: {problem.reason}"
        return None


@dataclass(frozen=True)
class _Candidate:
    """A loaded file of a directory, with a hash of its prompt in place of the prompt."""

    path: Path
    loaded: LoadedFile
    prompt: int

    @property
    def name(self) -> str:
        return self.loaded.definition.name

    @property
    def content(self) -> tuple[AgentDefinition, int]:
        """The agent without the place of its file and of its keys, and its prompt."""
        placeless = self.loaded.definition.model_copy(update={"source": None, "read_from": {}, "lines": {}})
        return placeless, self.prompt


@dataclass
class _Search:
    """The result of the directories read so far. A name belongs to the first file with this name."""

    agents: dict[str, AgentDefinition] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    first: dict[str, tuple[int, _Candidate]] = field(default_factory=dict)
    """By agent name: the number of its directory, and the file that loaded."""
    tools: dict[str, str] = field(default_factory=dict)
    """By tool name: the agent that has it."""

    def report(self, candidate: _Candidate, kind: Kind, reason: str) -> None:
        self.problems.append(Problem(candidate.path, None, kind, reason, candidate.name))


def discover(directories: Sequence[Path]) -> Catalog:
    """Return the agents of `directories` and of their sub-directories; nothing found there raises an error.

    Of two files of one name the first loads: by the order of `directories`, then of paths (SPEC section 3).
    Problems come in the same order.
    """
    search = _Search()
    seen: dict[tuple[int, int], Path] = {}
    for number, directory in enumerate(directories):
        start = len(search.problems)
        loaded = [_load(found, search) for found in agent_files(directory, seen)]
        for candidate in sorted(filter(None, loaded), key=lambda candidate: str(candidate.path)):
            _admit(candidate, number, search)
        search.problems[start:] = sorted(search.problems[start:], key=lambda p: (str(p.path), p.line or 0))
    return Catalog(dict(sorted(search.agents.items())), search.problems)


def _admit(candidate: _Candidate, directory: int, search: _Search) -> None:
    """Add an agent, unless an earlier file has its name."""
    earlier_directory, earlier = search.first.setdefault(candidate.name, (directory, candidate))
    where = shown(earlier.path)
    if earlier is candidate:
        _accept(candidate, search)
    elif candidate.content == earlier.content:
        search.report(candidate, "skipped", f"it is the same agent as {where}")
    elif earlier_directory != directory:
        search.report(candidate, "shadowed", f"{candidate.name} of {where} goes before it")
    else:
        search.report(candidate, "duplicate", f"{where} has the name {candidate.name} too: rename one")
        search.problems += _noted(candidate)


def _load(found: FoundFile, search: _Search) -> _Candidate | None:
    if found.problem is not None:
        search.problems.append(found.problem)
        return None
    try:
        return _without_prompt(load_file(found.path), found.path)
    except NotAnAgent as error:
        search.problems.append(Problem(found.path, error.line, "skipped", error.reason))
    except AgentFileError as error:
        search.problems.append(Problem(found.path, error.line, "error", error.reason))
    except Exception as error:
        if lack_of_room(error) is not None:
            raise
        # A bug of the loader met in one file must not hide the others.
        reason = f"reading it failed ({type(error).__name__}: {shorten(str(error))}), so report it"
        search.problems.append(Problem(found.path, None, "error", reason))
    return None


def _without_prompt(loaded: LoadedFile, path: Path) -> _Candidate:
    definition = loaded.definition
    listed = replace(loaded, definition=definition.model_copy(update={"system_prompt": ""}))
    return _Candidate(path, listed, hash(definition.system_prompt))


def _accept(candidate: _Candidate, search: _Search) -> None:
    definition = candidate.loaded.definition
    owner = search.tools.get(definition.tool_name)
    if owner is not None:
        clash = definition.tool_name
        definition = definition.model_copy(update={"distinct_tool": True})
        search.report(candidate, "warning", f"its tool is {definition.tool_name}: {owner} has {clash}")
    search.tools[definition.tool_name] = candidate.name
    search.agents[candidate.name] = definition
    search.problems += _noted(candidate)


def _noted(candidate: _Candidate) -> list[Problem]:
    """Return the mistakes that were found while the file was read."""
    return [
        Problem(candidate.path, note.line, note.kind, note.reason, candidate.name)
        for note in candidate.loaded.notes
    ]
