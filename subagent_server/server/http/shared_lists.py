"""One copy of the list of tools for all sessions, as the transport of each keeps the last answer it sent."""

from collections import OrderedDict
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

Context = ServerRequestContext[Any, Any]
MAX_KEPT = 16
"""How many lists are kept: pages, for the versions of the protocol that clients speak."""


class SharedLists:
    """Answers `tools/list` with the same objects as before if they would be equal."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, object], dict[str, Any]] = OrderedDict()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Pass a message on, and replace an answer that is known by the known one."""
        result = await call_next(ctx)
        if ctx.method != "tools/list" or not isinstance(result, dict):
            return result
        key = (ctx.protocol_version, result.get("nextCursor"))
        if (known := self._kept.get(key)) == result:
            return known
        self._kept[key] = result
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return result
