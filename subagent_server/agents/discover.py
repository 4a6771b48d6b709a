"""Find the agents of some directories, and for each other file the reason why it is not an agent."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from subagent_server.agents.flow_file import SUFFIX as FLOW
from subagent_server.agents.formats import CONFIGURATION, MARKDOWN, load_file
from subagent_server.agents.yaml_reader import AgentFileError, Kind, NotAnAgent, Problem, shown, why
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import UnknownAgent, shorten
from subagent_server.run.stderr import lack_of_room

# -- Find the files of a directory tree that may be agents, within bounds of number and time.


MAX_ENTRIES = 20_000
"""Directory entries that are read in one tree; the rest is left out and reported."""
MAX_SECONDS = 1.0
"""How long the names of one tree are read, without the time for the files themselves."""

Identity = tuple[int, int]
_SUFFIXES = MARKDOWN | CONFIGURATION
_ELSEWHERE = frozenset({".toml", ".mdc"})
"""The agents of Codex and the rules of Cursor."""
_HIDDEN = "hidden files and directories are not read"
_NOT_BELOW = "the files in it are read, its sub-directories are not"


class _TreeWalk:
    """Yields the files of a directory tree with the suffix of an agent file, sorted in each directory.

    For a file that is not to be loaded it yields the problem instead.

    Links to files are followed. If a link leads to a directory outside, its files are read, but not its
    sub-directories: a link to `/` must not list the whole disk. A file that was reached before, by another
    name, is not read again: `seen` remembers it across walks, by device and inode. Hidden files and
    directories are listed as skipped.
    """

    def __init__(self, top: Path, seen: dict[Identity, Path]) -> None:
        self._seen = seen
        self._left = MAX_ENTRIES
        self._until = time.monotonic() + MAX_SECONDS
        self._pending = [(top, False)]
        """Directories to read, each with whether a link has led out of the tree to it."""
        self._top = top
        self._real_top = os.path.realpath(top)

    def __iter__(self) -> Iterator[Path | Problem]:
        while self._pending:
            path, is_outside = self._pending.pop()
            try:
                yield from self._directory(path, is_outside)
            except FileNotFoundError:
                yield Problem(path, None, "warning", "there is no such directory")
            except OSError as error:
                yield Problem(path, None, "error", f"the directory cannot be read ({why(error)})")

    def _directory(self, path: Path, is_outside: bool) -> Iterator[Path | Problem]:
        if (problem := self._seen_before(path)) is not None:
            yield problem
            return
        below: list[tuple[Path, bool]] = []
        with os.scandir(path) as entries:
            here = sorted(islice(entries, self._left + 1), key=lambda entry: entry.name)
        for entry in here:
            self._left -= 1
            if excess := self._excess():
                yield Problem(self._top, None, "error", f"{excess}: the rest is not read")
                self._pending.clear()
                return
            if not _is_directory(entry):
                yield from self._file(entry)
            elif entry.name.startswith("."):
                yield Problem(Path(entry.path), None, "skipped", _HIDDEN)
            else:
                below.append((Path(entry.path), self._leads_out(entry)))
        if is_outside and below:
            yield Problem(path, None, "skipped", f"a link leads out of {shown(self._top)}: {_NOT_BELOW}")
        else:
            self._pending += reversed(below)

    def _excess(self) -> str | None:
        if self._left < 0:
            return f"more than {MAX_ENTRIES} entries"
        if time.monotonic() > self._until:
            return f"its names could not be read within {MAX_SECONDS:g} s"
        return None

    def _leads_out(self, entry: "os.DirEntry[str]") -> bool:
        return entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(self._real_top)

    def _file(self, entry: "os.DirEntry[str]") -> Iterator[Path | Problem]:
        suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - of 20,000
        path = Path(entry.path)
        if suffix in _ELSEWHERE:
            yield Problem(path, None, "skipped", f"files of the kind {suffix} are not read here")
        elif suffix not in _SUFFIXES and not entry.name.endswith(FLOW):
            return
        elif entry.name.startswith("."):
            yield Problem(path, None, "skipped", _HIDDEN)
        else:
            problem = None
            with suppress(OSError):  # reading the file will report what is wrong with it
                problem = self._seen_before(path)
            yield problem or path

    def _seen_before(self, path: Path) -> Problem | None:
        """Note this very file or directory; return the problem if it was reached before, by another path."""
        status = path.stat()
        earlier = self._seen.setdefault((status.st_dev, status.st_ino), path)
        if earlier is path:
            return None
        return Problem(path, None, "skipped", f"it is {shown(earlier)}, which was read already")


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a directory, or a link to one; no if the system does not answer."""
    try:
        return entry.is_dir()
    except OSError:
        return False


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
            UnknownAgent: there is no such agent; the error has the reason if a file was refused.
        """
        agent = self.find(name)
        if agent is None:
            raise UnknownAgent(name, self.agents, self.why_missing(name))
        return agent

    def why_missing(self, name: str) -> str | None:
        """Return why a file of this name is not an agent, or None."""
        for problem in self.problems:
            stem = problem.path.stem.removesuffix(".flow").removesuffix(".cpe")
            if name in (problem.agent, stem) and problem.kind not in ("fault", "warning"):
                return f"{shown(problem.path)}: {problem.reason}"
        return None


@dataclass(frozen=True)
class _Candidate:
    """A loaded file of a directory, with a hash of its prompt instead of the prompt."""

    path: Path
    agent: AgentDefinition
    problems: list[Problem]
    prompt: int

    @property
    def content(self) -> tuple[AgentDefinition, int]:
        """The agent without the path of its file and the lines of its keys, and its prompt."""
        return self.agent.model_copy(update={"source": None, "read_from": {}, "lines": {}}), self.prompt


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
        self.problems.append(Problem(candidate.path, None, kind, reason, candidate.agent.name))


def discover(directories: Sequence[Path]) -> Catalog:
    """Return the agents of `directories` and of their sub-directories; nothing found there raises an error.

    If two files have a name, the first loads, by the order of `directories`, then of paths (SPEC section 3).
    Problems come in the same order.
    """
    search = _Search()
    seen: dict[tuple[int, int], Path] = {}
    for number, directory in enumerate(directories):
        start = len(search.problems)
        names = list(_TreeWalk(directory, seen))  # all of them first: files take none of their time
        loaded = [_load(found, search) for found in names]
        for candidate in sorted(filter(None, loaded), key=lambda candidate: str(candidate.path)):
            _admit(candidate, number, search)
        search.problems[start:] = sorted(search.problems[start:], key=lambda p: (str(p.path), p.line or 0))
    return Catalog(dict(sorted(search.agents.items())), search.problems)


def _admit(candidate: _Candidate, directory: int, search: _Search) -> None:
    """Add an agent, unless an earlier file has its name."""
    agent = candidate.agent
    earlier_directory, earlier = search.first.setdefault(agent.name, (directory, candidate))
    where = shown(earlier.path)
    if earlier is candidate:
        owner = search.tools.get(agent.tool_name)
        if owner is not None:
            clash = agent.tool_name
            agent = agent.model_copy(update={"distinct_tool": True})
            search.report(candidate, "warning", f"its tool is {agent.tool_name}: {owner} has {clash}")
        search.tools[agent.tool_name] = agent.name
        search.agents[agent.name] = agent
        search.problems += candidate.problems
    elif candidate.content == earlier.content:
        search.report(candidate, "skipped", f"it is the same agent as {where}")
    elif earlier_directory != directory:
        search.report(candidate, "shadowed", f"{agent.name} of {where} goes before it")
    else:
        search.report(candidate, "duplicate", f"{where} has the name {agent.name} too: rename one")
        search.problems += candidate.problems


def _load(found: Path | Problem, search: _Search) -> _Candidate | None:
    if isinstance(found, Problem):
        search.problems.append(found)
        return None
    try:
        loaded = load_file(found)
        listed = loaded.definition.model_copy(update={"system_prompt": ""})
        return _Candidate(found, listed, loaded.problems, hash(loaded.definition.system_prompt))
    except NotAnAgent as error:
        search.problems.append(Problem(found, error.line, "skipped", error.reason))
    except AgentFileError as error:
        search.problems.append(Problem(found, error.line, "error", error.reason))
    except Exception as error:
        if lack_of_room(error) is not None:
            raise
        # A bug of the loader met in one file must not hide the others.
        reason = f"reading it failed ({type(error).__name__}: {shorten(str(error))}), so report it"
        search.problems.append(Problem(found, None, "error", reason))
    return None
