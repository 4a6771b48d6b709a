"""Finding the few runs that are wanted among many that are stored."""

from collections.abc import Iterator

from subagent_server.service.access import Caller
from subagent_server.service.list_runs import Wanted
from subagent_server.store.index import open_index
from subagent_server.store.paths import RootPaths
from subagent_server.store.stored import StoredRuns


def may_be_wanted(root: RootPaths, wanted: Wanted, caller: Caller) -> Iterator[str]:
    """Yield the ids of the runs that may be wanted, newest first: in a large root as its index has it.

    Whoever takes one reads it: the index may be behind.
    """
    stored = StoredRuns(root)
    if not stored.is_large():
        yield from stored.newest_first()
        return
    with open_index(root) as index:
        found = index.find(wanted.statuses, wanted.agent, caller.run_id, caller.carries_on)
    yield from found
