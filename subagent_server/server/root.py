"""The runs root, which is made on first use: looking on does not make it."""

import asyncio

from subagent_server.service.context import Service

LOOK_SECONDS = 2.0


async def until_made(service: Service) -> None:
    """Return as soon as the runs root is there."""
    while not service.store.paths.root.exists():
        await asyncio.sleep(LOOK_SECONDS)
