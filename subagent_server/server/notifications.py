"""Notifications of changes to one client: of the list of tools, of resources and of their list.

A client of the older era asks with `resources/subscribe`, or by listing; one of the newer era with
`subscriptions/listen`. No call waits for what happens here."""

import asyncio
import math
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_to_notification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from subagent_server.run.errors import SubagentError
from subagent_server.server.resources import (
    Address,
    Context,
    Signature,
    file_of,
    list_documents,
    parse_address,
    refusal,
    signature,
)
from subagent_server.verbs.access import Caller
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import AgentRegistry, Service
from subagent_server.verbs.wait_for_runs import Changes, ChangeSource, Wait, wait_until

TOOLS_POLL_SECONDS = 2.0
MAX_SHARE = 0.02
"""The largest part of its time for looks: large directories are looked at less often."""
TOOLS_SETTLE_SECONDS = 0.2
"""How long a writer may take from its first change of the files to its last, to cause one notification."""
LOG_SECONDS = 1.0
"""How often the log of a run is looked at while somebody has asked for it: its lines are not announced."""
RECONCILE_SECONDS = 2.0
SETTLE_SECONDS = 0.05
LIST_SETTLE_SECONDS = 0.5
"""How long further changes are waited for, to be notified of together."""
LIST_SECONDS = 3.0
"""How long after a change of the list the next is notified at the earliest: a client lists anew each time."""


def is_modern(context: Context) -> bool:
    """Whether the request is of the era without a handshake, where changes come on `subscriptions/listen`."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


class SubscriptionHandlers:
    """Notes which changes one client, of either era, asked for."""

    def __init__(self, resources: "ResourceWatch", tools: "ToolWatch", notices: "ClientNotices") -> None:
        self._resources = resources
        self._tools = tools
        self._notices = notices
        self._listen = ListenHandler(notices.bus)
        self._subscribed: set[str] = set()
        self._one_at_a_time = asyncio.Lock()
        self.listening = 0
        """How many requests for a stream of changes are open: only the client ends them."""

    async def listed_tools(self, context: Context, digest: str) -> None:
        """Note that the client has listed the tools with this digest.

        From now on an older client is notified of changes.
        """
        self._tools.listed(digest)
        if not is_modern(context):
            self._notices.remember(context)
            await self._tools.want()

    async def listed_resources(self, context: Context) -> None:
        """Note that the client has listed the resources: an older one is notified of its changes now."""
        if not is_modern(context):
            self._notices.remember(context)
            await self._resources.want_list()

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Notify an older client of changes of a resource; asking twice is asking once.

        Raises:
            MCPError: there is no such resource for it.
        """
        self._notices.remember(context)
        async with self._one_at_a_time:
            if params.uri not in self._subscribed:
                try:
                    await self._resources.add(parse_address(params.uri))
                except SubagentError as error:
                    raise refusal(error) from error
                self._subscribed.add(params.uri)
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Send no more notifications of a resource."""
        async with self._one_at_a_time:  # a request for them may still be at work
            if params.uri in self._subscribed:
                self._subscribed.remove(params.uri)
                self._resources.remove(params.uri)
        return types.EmptyResult()

    def end_streams(self) -> None:
        """End all streams of changes, as the protocol has it: each client sees that the end was intended."""
        self._listen.close()

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of changes until the client ends it.

        The acknowledgement leaves out what will never come: resources that the client may not open, and
        prompts, which this server does not have.
        """
        wanted = params.notifications
        self.listening += 1
        try:
            async with self._watched(wanted.resource_subscriptions or []) as uris:
                if wanted.tools_list_changed:
                    await self._tools.want()
                if wanted.resources_list_changed:
                    await self._resources.want_list()
                served = wanted.model_copy(
                    update={"resource_subscriptions": uris or None, "prompts_list_changed": None}
                )
                return await self._listen(context, params.model_copy(update={"notifications": served}))
        finally:
            self.listening -= 1

    @asynccontextmanager
    async def _watched(self, uris: list[str]) -> AsyncIterator[list[str]]:
        watched: list[str] = []
        try:
            for uri in dict.fromkeys(uris):
                with suppress(SubagentError):
                    await self._resources.add(parse_address(uri))
                    watched.append(uri)
            yield watched
        finally:
            for uri in watched:
                self._resources.remove(uri)


class ToolWatch:
    """Notifies a client when `tools/list` would answer otherwise than it did last."""

    def __init__(
        self,
        registry: AgentRegistry,
        changes: ChangeSource,
        digest: Callable[[], str],
        notices: "ClientNotices",
        background: "Background",
    ) -> None:
        self._registry = registry
        self._changes = changes
        self._digest = digest
        self._notices = notices
        self._background = background
        self._known: str | None = None
        self._catalog: object = None
        self._pause = TOOLS_POLL_SECONDS
        self._wanted = False

    def listed(self, digest: str) -> None:
        """Note that the client has listed the tools of this digest."""
        self._known = digest

    async def want(self) -> None:
        """Notify of changes from now on. Agents that lie in no directory never change."""
        if not self._registry.directories:
            return
        if self._known is None:
            self._known = await asyncio.to_thread(self._digest)
        if not self._wanted:  # only now: a request that is cancelled meanwhile has asked for nothing
            self._wanted = True
            self._background.start(self._watch())

    async def _watch(self) -> None:
        while True:
            wait = Wait(self._pause, poll_seconds=self._pause)
            if await wait_until(self._changes, self._news, wait):
                await asyncio.sleep(TOOLS_SETTLE_SECONDS)
                now = await asyncio.to_thread(self._digest)
                if now != self._known:
                    self._known = now
                    await self._notices.notify(ToolsListChanged())

    def _news(self) -> bool | None:
        """Whether the files were read again since the last look."""
        began = time.monotonic()
        before, self._catalog = self._catalog, self._registry.catalog()
        self._pause = max(TOOLS_POLL_SECONDS, (time.monotonic() - began) / MAX_SHARE)
        return True if self._catalog is not before else None


@dataclass
class _Watched:
    """A document, its signature when its change was notified last, and how often a client asks for it."""

    address: Address
    seen: Signature | None
    asked: int = 0


class ResourceWatch:
    """Notifies of changed documents, and of a changed list, from the first time that a client asks."""

    def __init__(
        self,
        service: Service,
        changes: Changes,
        caller: Caller,
        notices: "ClientNotices",
        background: "Background",
    ) -> None:
        self._service = service
        self._changes = changes
        self._caller = caller
        self._notices = notices
        self._background = background
        self._watched: dict[str, _Watched] = {}
        self._notifying: asyncio.Task[Any] | None = None
        self._list_wanted = False
        self._logs_seen = self._reconciled = 0.0
        self._marks: object = None
        self._listed: list[str] = []

    # -- documents

    async def add(self, address: Address) -> None:
        """Notify of changes of this document from now on.

        Raises:
            InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
        """
        uri = str(address)
        await asyncio.to_thread(observe, self._service.store, address.run_id, self._caller)
        seen = await asyncio.to_thread(self._signature, address)
        self._watched.setdefault(uri, _Watched(address, seen)).asked += 1
        if self._notifying is None:
            self._notifying = self._background.start(self._notify())

    def remove(self, uri: str) -> None:
        """Undo one `add`."""
        self._watched[uri].asked -= 1
        if not self._watched[uri].asked:
            del self._watched[uri]
        if not self._watched and self._notifying is not None:
            self._notifying.cancel()
            self._notifying = None

    async def _notify(self) -> None:
        while True:
            updated = await wait_until(self._changes, self._look, Wait(math.inf, poll_seconds=LOG_SECONDS))
            for uri in updated or []:
                if uri in self._watched:
                    await self._notices.notify(ResourceUpdated(uri))
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
            now = self._signature(watched.address)
            if now != watched.seen:
                watched.seen = now
                updated.append(uri)
        return updated or None

    def _signature(self, address: Address) -> Signature | None:
        """Open the document anew each time: 1,000 that stay open take all descriptors of a server."""
        return signature(file_of(self._service, address))

    def _reconcile(self) -> None:
        """Look at the runs themselves, so that one whose processes were killed does not seem to live."""
        if time.monotonic() - self._reconciled < RECONCILE_SECONDS:
            return
        live = set(self._service.store.live_ids())
        for run_id in {watched.address.run_id for watched in list(self._watched.values())} & live:
            with suppress(SubagentError):  # it became unreadable: reading it reports that
                observe(self._service.store, run_id, self._caller)
        self._reconciled = time.monotonic()

    # -- the list

    async def want_list(self) -> None:
        """Notify of changes of the list from now on."""
        if self._list_wanted:
            return
        marks, listed = await asyncio.to_thread(lambda: (self._list_marks(), self._list()))
        if not self._list_wanted:  # as of the tools
            self._list_wanted, self._marks, self._listed = True, marks, listed
            self._background.start(self._notify_of_list())

    async def _notify_of_list(self) -> None:
        while True:
            if await wait_until(self._changes, self._list_news, Wait(math.inf)):
                await asyncio.sleep(LIST_SETTLE_SECONDS)
                self._marks = await asyncio.to_thread(self._list_marks)
                before, self._listed = self._listed, await asyncio.to_thread(self._list)
                if self._listed == before:
                    continue  # it was a run of another parent
                await self._notices.notify(ResourcesListChanged())
                await asyncio.sleep(LIST_SECONDS)

    def _list_news(self) -> bool | None:
        """Whether a run came, went or ended since the last look."""
        before, self._marks = self._marks, self._list_marks()
        return True if self._marks != before else None

    def _list_marks(self) -> object:
        """Return what differs once the list may: which runs there are, and which of them live."""
        store, own = self._service.store, self._caller.run_id
        runs = signature(store.paths.root) if own is None else store.children_of(own)
        return runs, set(store.live_ids())

    def _list(self) -> list[str]:
        return [listed.uri for listed in list_documents(self._service, self._caller)]


class ClientNotices:
    """Notifies of changes: on the streams of a modern client, and outside any request to an older one."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        """The source of the streams of `subscriptions/listen`."""
        self._older: ServerSession | None = None

    def remember(self, context: Context) -> None:
        """Remember how to reach an older client, whose request this is, outside its requests."""
        self._older = context.session

    async def notify(self, event: ServerEvent) -> None:
        """Notify the client that a list would be another one now, or that a resource has changed."""
        await self.bus.publish(event)
        if self._older is not None:
            await self._older.send_notification(event_to_notification(event, {}))


class Background:
    """Keeps tasks alive. One that fails is logged on stderr; calls and the server are not affected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin `work` and return its task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def close(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, SubagentError):
            print(f"Changes are no longer reported: {error.sentence}", file=sys.stderr, flush=True)
        elif error is not None:
            traceback.print_exception(error, file=sys.stderr)
