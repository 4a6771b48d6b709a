"""Report a run that a verb refuses, and go on with the other runs that were named."""

from collections.abc import Iterable
from dataclasses import dataclass

from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.exits import ExitCode, exit_of_error
from subagent_server.cli.console.output import last_clause, report
from subagent_server.domain.errors import SubagentError


@dataclass(frozen=True)
class Refused:
    """A run by its name, the sentence of the refusal, and its exit code."""

    name: str
    why: str
    code: ExitCode

    def to_wire(self) -> dict[str, str]:
        """Return the JSON object of the refusal."""
        return {"runId": self.name, "why": self.why}


def refusal(name: str, error: SubagentError) -> Refused:
    """Report an error and return it as the refusal of the run of this name."""
    why = for_people(error.sentence)
    report(why, code=error.code, next_step=last_clause(why))
    return Refused(name, why, exit_of_error(error))


def code_of(refused: Iterable[Refused]) -> ExitCode:
    """Return the exit code of the first refusal, or OK without one."""
    return next((each.code for each in refused), ExitCode.OK)
