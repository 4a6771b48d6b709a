"""Ending a run whose parent run has died: the worker of a child watches the lock of its parent."""

from contextlib import suppress

from subagent_server.domain.errors import SubagentError
from subagent_server.host import locks
from subagent_server.service.reconcile import observe
from subagent_server.store.runs import RunStore


class ParentWatch:
    """The parent of this run, if another run started this run: whether the parent's shim still lives."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._parent: str | None = None
        """The parent run: the empty text if no run started this one, None before the first look."""

    @property
    def is_dead(self) -> bool:
        """Whether this run has a parent run whose shim is gone.

        Raises:
            UnreadableMeta: of this run.
        """
        if self._parent is None:
            self._parent = self._store.read(self._run_id).parent_run_id or ""
        if not self._parent:
            return False
        with suppress(
            SubagentError, OSError
        ):  # a damaged id, or the disk refuses: the next look may do better
            return not locks.is_held(self._store.paths.run(self._parent).live_lock)
        return False

    def reconcile(self) -> None:
        """Record the death of the parent run, which ends this run: the parent's worker and shim were killed.
        Blocks.

        Every reader of a dead run records its death and ends its children; so the children read their parent.
        """
        with suppress(SubagentError):  # it was removed, or the disk refuses: the next look may do better
            observe(self._store, self._parent or "")
