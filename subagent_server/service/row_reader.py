"""Reading the row of one run, as it is now.

Standard library only until a run needs more than a look: `subagent ls` starts with this module.
"""

from datetime import UTC, datetime

from subagent_server.domain.errors import SubagentError, UnknownRun
from subagent_server.service.access import USER, Caller, NotAllowed
from subagent_server.service.parents import OtherParents, starter_of
from subagent_server.service.run_case import RunCase, case_of, is_over
from subagent_server.service.run_row import RunRow, row_of_facts, row_of_state
from subagent_server.store.facts import RunFacts, Starter, read_facts
from subagent_server.store.paths import RootPaths, RunPaths


class RowReader:
    """Reads rows of runs that the caller may open. It remembers which parents have gone."""

    def __init__(self, root: RootPaths, caller: Caller = USER) -> None:
        self.others = OtherParents(caller)
        self._root = root
        self._caller = caller

    def read(self, run_id: str, *, is_marked: bool) -> tuple[RunRow, Starter | None] | None:
        """Return the row of a run with its starter, or None if it is not a run, or not open to the caller.

        `is_marked`: whether it has a mark among the runs that may be live.
        """
        run = self._root.run(run_id)
        try:
            facts = read_facts(run)
        except (FileNotFoundError, NotADirectoryError):
            return None  # a start that never was, or removed
        live = None if facts is None else _live_at_a_look(run, facts, is_marked=is_marked)
        if facts is None or live is None:
            return self._reconciled(run_id)
        if not self._caller.may_open_run(facts.run_id, facts.parent_run_id):
            return None
        started_by = self.others.name_of_parent(facts.started_by, facts.parent_run_id)
        return row_of_facts(self._root, facts, live=live, started_by=started_by), facts.started_by

    def _reconciled(self, run_id: str) -> tuple[RunRow, Starter | None] | None:
        from subagent_server.service.open_run import open_run_below  # pydantic, which most lists avoid

        try:
            observed = open_run_below(self._root.root, run_id, self._caller)
        except (UnknownRun, NotAllowed):
            return None  # removed, or somebody else's
        except SubagentError as error:
            return RunRow(run_id=run_id, unreadable=error.sentence), None
        meta, starter = observed.meta, starter_of(observed.meta)
        started_by = self.others.name_of_parent(starter, meta.parent_run_id)
        return row_of_state(self._root, meta, observed.live, started_by=started_by), starter


def _live_at_a_look(run: RunPaths, facts: RunFacts, *, is_marked: bool) -> bool | None:
    """Whether a run lives, if there is nothing to reconcile; None if that takes more than a look."""
    try:
        if is_over(run, facts.status, is_marked=is_marked):
            return False
        lives = case_of(run, facts.status, facts.host) is RunCase.LIVES
    except OSError:
        return None
    expired = facts.expires is not None and facts.expires <= datetime.now(UTC)
    return True if lives and is_marked and not expired else None
