"""The events of nested runs, read from their journals for the journal of their parent."""

from contextlib import suppress
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.subagent_events import nested_event
from subagent_server.service.journal_follower import JournalFollower, JournalPlace
from subagent_server.store.runs import RunStore

_LEFT_OUT = "events_left_out"


class NestedEvents:
    """Follows the journals of a run's children, each from its beginning. Used by one thread at a time.

    Journals announce nothing, so their follower looks now and then.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._known: set[str] = set()
        self._following: dict[str, tuple[str, JournalFollower]] = {}

    def look(self, last: bool) -> list[dict[str, Any]]:
        """Return the new events as `subagent_event`s: of each child in its order.

        The `last` look adds ends that stand in the state of a child and not yet in its journal.
        """
        for run_id in self._store.children_of(self._run_id):
            if run_id not in self._known:
                self._begin(run_id)
        found: list[dict[str, Any]] = []
        for run_id, (name, follower) in list(self._following.items()):
            found += self._news(run_id, name, follower)
            found += self._ending(run_id, name, follower) if last else []
            if follower.place.ended:
                del self._following[run_id]
        return found

    def _begin(self, run_id: str) -> None:
        with suppress(SubagentError):  # it is being made: the next look finds it
            meta = self._store.read(run_id)
            self._known.add(run_id)
            self._following[run_id] = (meta.agent_name, JournalFollower(self._store, run_id, JournalPlace()))

    def _ending(self, run_id: str, name: str, follower: JournalFollower) -> list[dict[str, Any]]:
        with suppress(SubagentError):  # it was removed
            end = follower.ending(self._store.read(run_id))
            ended = nested_event(end, name, run_id) if end is not None else None
            return [ended] if ended is not None else []
        return []

    def _news(self, run_id: str, name: str, follower: JournalFollower) -> list[dict[str, Any]]:
        news = follower.news()
        nested = [nested_event(event, name, run_id) for event in news.events]
        origin = {"subagentName": name, "subagentRunId": run_id}
        left_out = [{"event": _LEFT_OUT, **origin}] if news.left_out else []
        return [*left_out, *(event for event in nested if event is not None)]
