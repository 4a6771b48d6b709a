"""The handlers of subscriptions: `resources/subscribe` of the older era, `subscriptions/listen` now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ListenHandler

from subagent_server.domain.errors import SubagentError
from subagent_server.server.documents import parse_address
from subagent_server.server.notices import ClientNotices, is_modern
from subagent_server.server.resource_watch import ResourceWatch
from subagent_server.server.resources import refusal
from subagent_server.server.tool_watch import ToolWatch

Context = ServerRequestContext[Any, Any]


class SubscriptionHandlers:
    """Notes what one client, of either era, wants to hear of."""

    def __init__(self, resources: ResourceWatch, tools: ToolWatch, notices: ClientNotices) -> None:
        self._resources = resources
        self._tools = tools
        self._notices = notices
        self._listen = ListenHandler(notices.bus)
        self._subscribed: set[str] = set()
        self.listening = 0
        """How many requests for a stream of changes are open: only the client ends them."""

    async def listed_tools(self, context: Context, digest: str) -> None:
        """Note that the client has listed the tools with this digest.

        From now on an older client hears of changes.
        """
        self._tools.listed(digest)
        if not is_modern(context):
            self._notices.meet(context)
            await self._tools.want()

    async def listed_resources(self, context: Context) -> None:
        """Note that the client has listed the resources: an older one hears of changes of the list now."""
        if not is_modern(context):
            self._notices.meet(context)
            await self._resources.want_list()

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Notify an older client of changes of a resource; asking twice is asking once.

        Raises:
            MCPError: there is no such resource for it.
        """
        self._notices.meet(context)
        if params.uri in self._subscribed:
            return types.EmptyResult()
        self._subscribed.add(params.uri)
        try:
            await self._resources.add(parse_address(params.uri))
        except SubagentError as error:
            self._subscribed.discard(params.uri)
            raise refusal(error) from error
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Send no more notifications of a resource."""
        if params.uri in self._subscribed:
            self._subscribed.remove(params.uri)
            self._resources.remove(params.uri)
        return types.EmptyResult()

    def end_streams(self) -> None:
        """End all streams of changes, as the protocol has it: each client hears that the end was intended."""
        self._listen.close()

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of changes until the client ends it.

        The acknowledgement leaves out what will never come: resources that the client may not open, and
        prompts, which this server does not have.
        """
        self.listening += 1
        try:
            return await self._stream(context, params)
        finally:
            self.listening -= 1

    async def _stream(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        wanted = params.notifications
        async with self._watched(wanted.resource_subscriptions or []) as uris:
            if wanted.tools_list_changed:
                await self._tools.want()
            if wanted.resources_list_changed:
                await self._resources.want_list()
            honoured = wanted.model_copy(
                update={"resource_subscriptions": uris or None, "prompts_list_changed": None}
            )
            return await self._listen(context, params.model_copy(update={"notifications": honoured}))

    @asynccontextmanager
    async def _watched(self, uris: list[str]) -> AsyncIterator[list[str]]:
        watched: list[str] = []
        try:
            for uri in dict.fromkeys(uris):
                try:
                    await self._resources.add(parse_address(uri))
                except SubagentError:
                    continue
                watched.append(uri)
            yield watched
        finally:
            for uri in watched:
                self._resources.remove(uri)
