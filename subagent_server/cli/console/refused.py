"""Report a run that a verb refuses, and go on with the other runs that were named."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.exits import ExitCode, exit_of_error
from subagent_server.cli.console.output import last_clause, report
from subagent_server.domain.errors import SubagentError

T = TypeVar("T")


@dataclass(frozen=True)
class Refused:
    """A run by its name, the sentence of the refusal, and its exit code."""

    name: str
    why: str
    code: ExitCode

    def to_wire(self) -> dict[str, str]:
        """Return the JSON object of the refusal."""
        return {"runId": self.name, "why": self.why}


def each_of(names: Iterable[str], act: Callable[[str], T]) -> tuple[list[T], list[Refused]]:
    """Call `act` with each name; a refusal is reported, and the other runs are done all the same."""
    done: list[T] = []
    refused: list[Refused] = []
    for name in names:
        try:
            done.append(act(name))
        except SubagentError as error:
            why = for_people(error.sentence)
            report(why, code=error.code, next_step=last_clause(why))
            refused.append(Refused(name, why, exit_of_error(error)))
    return done, refused


def code_of(refused: Iterable[Refused]) -> ExitCode:
    """Return the exit code of the first refusal, or OK without one."""
    return next((each.code for each in refused), ExitCode.OK)
