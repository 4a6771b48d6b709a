"""The problems of an agent file, and how they are reported."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from subagent_server.domain.errors import CallerError

Kind = Literal["error", "skipped", "shadowed", "duplicate", "fault", "warning"]
"""`error`: not understood. `skipped`: not an agent, or the same agent as another file. `shadowed`,
`duplicate`: an earlier directory, an earlier file has its name. `fault`: loaded, but its run is refused.
`warning`: loaded, and it runs."""


@dataclass(frozen=True)
class Problem:
    """Something to know about one file or directory; `line` counts from 1, `agent` is the name it gave."""

    path: Path
    line: int | None
    kind: Kind
    reason: str
    agent: str | None = None


@dataclass(frozen=True)
class Note:
    """A mistake in a file that loads all the same."""

    kind: Literal["fault", "warning"]
    line: int | None
    reason: str


@dataclass
class Notes:
    """Collects the problems that are found while one file is read."""

    found: list[Note] = field(default_factory=list)

    def fault(self, reason: str, line: int | None = None) -> None:
        """Record a mistake for which the run of this agent is refused."""
        self.found.append(Note("fault", line, reason))

    def warn(self, reason: str, line: int | None = None) -> None:
        """Record a warning, which stops nothing."""
        self.found.append(Note("warning", line, reason))

    def reasons(self, kind: Literal["fault", "warning"]) -> list[str]:
        """Return the sentences of one kind, in the order they were found."""
        return [note.reason for note in self.found if note.kind == kind]


class AgentFileError(CallerError):
    """An agent file that cannot be used; `line` counts from 1, if a line is to blame."""

    code = "bad_agent_file"

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        where = f"{shown(path)}, line {line}," if line else shown(path)
        super().__init__(f"{where} is not a usable agent file: {' '.join(reason.split())}.")
        self.path = path
        self.line = line
        self.reason = reason


class NotAnAgent(AgentFileError):
    """A readable file that does not set out to be an agent: a README, another tool's YAML."""

    code = "not_an_agent"


def shown(path: Path) -> str:
    """Return `path` as text that can be written anywhere, whatever bytes its name has."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def why(error: OSError) -> str:
    """Return the reason of the system, in its words and in lower case."""
    return (error.strerror or type(error).__name__).lower()
