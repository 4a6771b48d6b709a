"""The protocol `Dialect`: how one kind of program is started, spoken to and judged; and its input."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.host.directory import Directory
from subagent_server.runners.outcome import Outcome
from subagent_server.toolkit.agent_process import AgentProcess


@dataclass(frozen=True)
class ChildServer:
    """The command of the MCP server by which a program asks its parent and reports. It needs no variable."""

    name: str
    command: str
    args: Sequence[str]


@dataclass(frozen=True)
class ProgramTask:
    """The input of a program: its task, its agent, and the places that it may use.

    `prompt` is the task in words, with its inputs; `content` is the same in blocks of the Messages API.
    `system` is the agent's prompt and `preamble` is for every run alike. `state` is a directory of the run
    that the program may write. `environment` is the run's. `resumes` is the conversation to carry on,
    and `spent` its cost so far, None if that is not known. `kept` has the place of the program's own state
    directory if it works in a sandbox.
    """

    agent: AgentDefinition
    run_id: str
    prompt: str
    content: Sequence[dict[str, Any]]
    preamble: str
    cwd: Path
    child: ChildServer
    state: Directory
    environment: Mapping[str, str]
    resumes: str | None = None
    spent: Decimal | None = Decimal(0)
    kept: Directory | None = None

    @property
    def boxed(self) -> bool:
        """Whether the program works in a sandbox."""
        return self.kept is not None

    @property
    def system(self) -> str:
        """The agent's prompt, and the preamble behind it."""
        return "\n\n".join(text for text in (self.agent.system_prompt.strip(), self.preamble) if text)


@dataclass(frozen=True)
class Launch:
    """The command line of a program, with the variables to add to its environment and those to remove.

    The program inherits `descriptors`, which are closed here once it has started.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    lacking: Collection[str] = ()
    descriptors: Sequence[int] = ()


class Dialect(Protocol):
    """One kind of program. Made once for each run."""

    def launch(self) -> Launch:
        """Return how the program is started. Blocking, for some milliseconds.

        Raises:
            RunRefused: `config`, if it cannot be started as the agent file asks.
        """
        ...

    async def converse(self, process: AgentProcess) -> Outcome:
        """Speak with the program until it is known how the run ended.

        It goes on when the run is ended from outside, until `interrupt` has had its effect or the output of
        the program ends. The structured output of the outcome is checked by the caller.

        Raises:
            RunRefused: the run cannot go on, for the reason its code names.
        """
        ...

    def interrupt(self, process: AgentProcess) -> None:
        """Ask the program to end its turn: in its protocol, or by SIGINT."""
        ...


def about_login(agent: AgentDefinition, hint: str) -> str:
    """Return a hint about a login, with what a program in a sandbox needs besides."""
    if agent.sandbox != "bwrap":
        return hint
    return (
        f"{hint} In its sandbox it has the keys and logins that `env` and `sandboxRead` name, and no others."
    )
