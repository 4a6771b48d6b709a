"""Notifications of changes to one client, in the way of its era of the protocol."""

from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]


def is_modern(context: Context) -> bool:
    """Whether the request is of the era without a handshake, where changes come on `subscriptions/listen`."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


class ClientNotices:
    """Notifies of changes: on the streams of a modern client, and outside any request to an older one."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        """The source of the streams of `subscriptions/listen`."""
        self._older: ServerSession | None = None

    def meet(self, context: Context) -> None:
        """Remember how to reach an older client outside its requests."""
        if not is_modern(context):
            self._older = context.session

    async def tools_changed(self) -> None:
        """Say that `tools/list` would answer otherwise now."""
        await self.bus.publish(ToolsListChanged())
        if self._older is not None:
            await self._older.send_tool_list_changed()

    async def resources_changed(self) -> None:
        """Say that `resources/list` would answer otherwise now."""
        await self.bus.publish(ResourcesListChanged())
        if self._older is not None:
            await self._older.send_resource_list_changed()

    async def resource_updated(self, uri: str) -> None:
        """Say that a resource has changed."""
        await self.bus.publish(ResourceUpdated(uri))
        if self._older is not None:
            await self._older.send_resource_updated(uri)
