"""The seam between a worker and the way an agent thinks.

`run/agent_definition.py` lists the runners by name; `extensions/__init__.py` has the row that opens each, but
for `messages`, whose row is in `worker/runners.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from subagent_server.run.records import Failure, RunResult, Usage, WebSource
from subagent_server.run.states import Status, cut

# -- How an agent ended, before it is written to disk.

EMPTY_REPLY = "The last reply of the agent was empty, so the result is the text of an earlier one."
"""A warning: usually the answer came with the last calls, but that cannot be known."""


@dataclass(frozen=True)
class Outcome:
    """A text, maybe a structured output, maybe a failure. Paid work is kept: a failure has its text too.

    `summary` is what the agent itself reports as such, and `payload` its work product. `warnings` are
    sentences for people about how it worked.
    """

    text: str
    output: Any = None
    has_output: bool = False
    failure: Failure | None = None
    sources: Sequence[WebSource] = ()
    summary: str | None = None
    payload: str | None = None
    warnings: Sequence[str] = ()

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
        if self.warnings:
            facts["warnings"] = list(self.warnings)
        if self.sources:
            facts["sources"] = list(self.sources)
        if self.failure is not None:
            facts["error"] = self.failure
        return RunResult(**facts)


def completed(summary: str, payload: str | None = None) -> Outcome:
    """Return the outcome of a fulfilled contract."""
    return Outcome(summary, summary=summary, payload=payload)


class Runner(Protocol):
    """Carries one run from its task to its outcome. The worker may cancel it at any moment."""

    @property
    def usage(self) -> Usage:
        """What the run has used so far. It is true at every moment, also after a cancellation."""

    async def work(self) -> Outcome:
        """Do the task. Called once.

        Raises:
            RunOver: the run was ended from outside.
            RunRefused: it cannot continue, for the reason that its code names.
        """

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends: its work so far is paid for, and kept."""

    async def stop_programs(self) -> None:
        """End the programs of the tools: nothing changes in the working directory after this."""

    async def aclose(self) -> None:
        """Close tools and connections. Called once, also after a cancellation; it has 3 s."""
