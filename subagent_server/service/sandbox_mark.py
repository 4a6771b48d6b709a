"""Where the programs of a run work, as its journal says."""

from itertools import islice

from subagent_server.host import journal
from subagent_server.store.paths import RunPaths

_FIRST_EVENTS = 20
_UNSANDBOXED = "unsandboxed"


def sandbox_mark(run: RunPaths) -> str | None:
    """Return the sandbox that the start of a run names; None before the start, or if nobody can read it."""
    try:
        for event in islice(journal.records(run.events), _FIRST_EVENTS):
            if event.get("type") == "run_started":
                return str(event.get("sandbox") or "") or None
    except OSError:
        pass  # a journal is data: one that is damaged keeps nobody from seeing the run
    return None


def lack_of_sandbox(run: RunPaths) -> str | None:
    """Return the mark of a run whose programs have all rights of the user; None for every other."""
    mark = sandbox_mark(run)
    return mark if mark is not None and _UNSANDBOXED in mark else None
