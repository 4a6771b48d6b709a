"""The watch on the list of tools, which changes with the agent files."""

import asyncio
import time
from collections.abc import Callable

from subagent_server.server.background import Background
from subagent_server.server.notices import ClientNotices
from subagent_server.service.agents import AgentRegistry
from subagent_server.service.changes import ChangeSource, Wait, wait_until

POLL_SECONDS = 2.0
MAX_SHARE = 0.02
"""The largest part of its time for looks: large directories are looked at less often."""
SETTLE_SECONDS = 0.2
"""How long a writer may take from its first change of the files to its last, to cause one notification."""


class ToolWatch:
    """Notifies a client when `tools/list` would answer otherwise than it did last."""

    def __init__(
        self,
        registry: AgentRegistry,
        changes: ChangeSource,
        digest: Callable[[], str],
        notices: ClientNotices,
        background: Background,
    ) -> None:
        self._registry = registry
        self._changes = changes
        self._digest = digest
        self._notices = notices
        self._background = background
        self._known: str | None = None
        self._catalog: object = None
        self._pause = POLL_SECONDS
        self._wanted = False

    def listed(self, digest: str) -> None:
        """Note that the client has listed the tools of this digest."""
        self._known = digest

    async def want(self) -> None:
        """Notify of changes from now on. Agents that lie in no directory never change."""
        if self._wanted or not self._registry.directories:
            return
        self._wanted = True
        if self._known is None:
            self._known = await asyncio.to_thread(self._digest)
        self._background.start(self._watch())

    async def _watch(self) -> None:
        while True:
            wait = Wait(self._pause, poll_seconds=self._pause)
            if await wait_until(self._changes, self._news, wait):
                await asyncio.sleep(SETTLE_SECONDS)
                now = await asyncio.to_thread(self._digest)
                if now != self._known:
                    self._known = now
                    await self._notices.tools_changed()

    def _news(self) -> bool | None:
        """Whether the files were read again since the last look."""
        began = time.monotonic()
        before, self._catalog = self._catalog, self._registry.catalog()
        self._pause = max(POLL_SECONDS, (time.monotonic() - began) / MAX_SHARE)
        return True if self._catalog is not before else None
