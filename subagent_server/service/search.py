"""Finding the few wanted runs among many stored runs."""

from collections.abc import Collection, Iterator

from subagent_server.domain.states import Status
from subagent_server.service.access import Caller
from subagent_server.store.index import open_index
from subagent_server.store.paths import RootPaths
from subagent_server.store.stored import StoredRuns


def may_be_wanted(
    root: RootPaths, statuses: Collection[Status], agent: str | None, caller: Caller
) -> Iterator[str]:
    """Yield the ids of runs that may have any of these statuses and this agent, newest first.

    A large root answers from its index, which may be behind: read each chosen run.
    """
    stored = StoredRuns(root)
    if not stored.is_large():
        yield from stored.newest_first()
        return
    with open_index(root) as index:
        found = index.find(statuses, agent, caller.run_id, caller.carries_on)
    yield from found
