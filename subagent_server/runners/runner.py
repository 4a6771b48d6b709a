"""The seam between a worker and the way an agent thinks.

`domain/definitions.py` lists the runners by name, `worker/runners.py` has the one row that opens each.
"""

from typing import Protocol

from subagent_server.domain.records import Failure, Usage
from subagent_server.runners.outcome import Outcome


class Runner(Protocol):
    """Carries one run from its task to its outcome. The worker may cancel it at any moment."""

    @property
    def usage(self) -> Usage:
        """What the run has used so far. It is true at every moment, also after a cancellation."""
        ...

    async def work(self) -> Outcome:
        """Do the task. Called once.

        Raises:
            RunOver: the run was ended from outside.
            RunRefused: it cannot go on, for the reason that its code names.
        """
        ...

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends: its work so far is paid for, and kept."""
        ...

    async def rest(self) -> None:
        """End the programs of the tools: nothing changes in the working directory after this."""
        ...

    async def aclose(self) -> None:
        """Close tools and connections. Called once, also after a cancellation; it is given 3 s."""
        ...
