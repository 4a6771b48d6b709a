"""The watch on the resources that a client has asked for, and on the list of all."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.server.background import Background
from subagent_server.server.documents import (
    Address,
    File,
    Signature,
    list_documents,
    open_document,
    signature,
)
from subagent_server.server.notices import ClientNotices
from subagent_server.service.access import Caller
from subagent_server.service.changes import Changes, Wait, until_root_is_made, wait_until
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run

LOG_SECONDS = 1.0
"""How often the log of a run is looked at while somebody has asked for it: its lines are not announced."""
RECONCILE_SECONDS = 2.0
SETTLE_SECONDS = 0.05
LIST_SETTLE_SECONDS = 0.5
"""How long further changes are waited for, to be notified of together."""
LIST_SECONDS = 3.0
"""How long after a change of the list the next is notified at the earliest: a client lists anew each time."""
FOREVER = float("inf")


@dataclass
class _Watched:
    """A document that a client has asked for, and its signature when its change was notified last."""

    address: Address
    file: File
    seen: Signature | None


@dataclass(frozen=True)
class _ListMarks:
    """The facts that the list depends on: the root, and which of the live runs have a result."""

    extent: Signature | None = None
    results: Mapping[str, bool] = field(default_factory=dict)


class ResourceWatch:
    """Notifies of changed documents, and of a changed list, from the first time that a client asks."""

    def __init__(
        self,
        service: Service,
        changes: Changes,
        caller: Caller,
        notices: ClientNotices,
        background: Background,
    ) -> None:
        self._service = service
        self._changes = changes
        self._caller = caller
        self._notices = notices
        self._background = background
        self._watched: dict[str, _Watched] = {}
        self._asked: Counter[str] = Counter()
        self._notifying: asyncio.Task[Any] | None = None
        self._list_wanted = False
        self._logs_seen = self._reconciled = 0.0
        self._marks = _ListMarks()
        self._listed: list[Address] = []

    # -- documents

    async def add(self, address: Address) -> None:
        """Notify of changes of this document from now on.

        Raises:
            InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        """
        uri = str(address)
        file = await asyncio.to_thread(open_document, self._service, address, self._caller)
        self._watched.setdefault(uri, _Watched(address, file, signature(file)))
        self._asked[uri] += 1
        if self._notifying is None:
            self._notifying = self._background.start(self._notify())

    def remove(self, uri: str) -> None:
        """Undo one `add`."""
        self._asked[uri] -= 1
        if self._asked[uri] <= 0:
            del self._asked[uri]
            self._watched.pop(uri, None)
        if not self._watched and self._notifying is not None:
            self._notifying.cancel()
            self._notifying = None

    async def _notify(self) -> None:
        while True:
            updated = await wait_until(self._changes, self._look, Wait(FOREVER, poll_seconds=LOG_SECONDS))
            for uri in updated or []:
                if uri in self._watched:
                    await self._notices.resource_updated(uri)
            await asyncio.sleep(SETTLE_SECONDS)

    def _look(self) -> list[str] | None:
        """Return what has changed since the last look. Logs are looked at once a second, not oftener."""
        with_logs = time.monotonic() - self._logs_seen >= LOG_SECONDS * 0.9
        if with_logs:
            self._logs_seen = time.monotonic()
            self._reconcile()
        updated: list[str] = []
        for uri, watched in list(self._watched.items()):
            if watched.address.kind == "log" and not with_logs:
                continue
            now = signature(watched.file)
            if now != watched.seen:
                watched.seen = now
                updated.append(uri)
        return updated or None

    def _reconcile(self) -> None:
        """Look at the runs themselves, so that one whose processes were killed does not seem to live."""
        if time.monotonic() - self._reconciled < RECONCILE_SECONDS:
            return
        live = set(self._service.store.live_ids())
        for run_id in {watched.address.run_id for watched in list(self._watched.values())} & live:
            try:
                open_run(self._service, run_id, self._caller)
            except SubagentError:
                continue  # it became unreadable: reading it says so
        self._reconciled = time.monotonic()

    # -- the list

    async def want_list(self) -> None:
        """Notify of changes of the list from now on."""
        if not self._list_wanted:
            self._list_wanted = True
            self._marks = await asyncio.to_thread(self._list_marks)
            self._listed = await asyncio.to_thread(self._list)
            self._background.start(self._notify_of_list())

    async def _notify_of_list(self) -> None:
        await until_root_is_made(self._service.store)
        while True:
            if await wait_until(self._changes, self._list_news, Wait(FOREVER)):
                await asyncio.sleep(LIST_SETTLE_SECONDS)
                self._marks = await asyncio.to_thread(self._list_marks)
                before, self._listed = self._listed, await asyncio.to_thread(self._list)
                if self._listed == before:
                    continue  # it was a run of another parent
                await self._notices.resources_changed()
                await asyncio.sleep(LIST_SECONDS)

    def _list_news(self) -> bool | None:
        """Whether something came or went. A live run that ends stays on the list, with its result."""
        before, self._marks = self._marks, self._list_marks()
        if self._marks.extent != before.extent or self._marks.results.keys() - before.results.keys():
            return True
        without = (run_id for run_id, had in before.results.items() if not had)
        return (
            any(self._has_result(run_id) for run_id in without) or None
        )  # it may have ended since, and be gone

    def _list(self) -> list[Address]:
        return [listed.address for listed in list_documents(self._service, self._caller)]

    def _list_marks(self) -> _ListMarks:
        store, own = self._service.store, self._caller.run_id
        if own is None:
            ids, extent = store.live_ids(), signature(store.paths.root)
        else:
            ids, extent = [own, *store.children_of(own)], None
        return _ListMarks(extent, {run_id: self._has_result(run_id) for run_id in ids})

    def _has_result(self, run_id: str) -> bool:
        return self._service.store.paths.run(run_id).result.exists()
