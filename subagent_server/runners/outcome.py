"""How an agent ended, before it is written to disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from subagent_server.domain.limits import cut
from subagent_server.domain.records import Failure, RunResult, WebSource
from subagent_server.domain.states import Status


@dataclass(frozen=True)
class Outcome:
    """A text, maybe a structured output, maybe a failure. Paid work is kept: a failure has its text too.

    `summary` is what the agent itself gives as such, and `payload` its work product.
    """

    text: str
    output: Any = None
    has_output: bool = False
    failure: Failure | None = None
    sources: Sequence[WebSource] = ()
    summary: str | None = None
    payload: str | None = None

    def to_result(self) -> RunResult:
        """Return the content of `result.json`."""
        facts: dict[str, Any] = {
            "outcome": Status.FAILED if self.failure else Status.COMPLETED,
            "text": self.text,
        }
        if self.has_output:
            facts["output"] = self.output
        if self.summary is not None:
            facts["summary"] = cut(self.summary)
        if self.sources:
            facts["sources"] = list(self.sources)
        if self.failure is not None:
            facts["error"] = self.failure
        return RunResult(**facts)
