"""Waiting for runs from a command: the waits of the service, for one call."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from subagent_server.cli.console.session import Session
from subagent_server.service.changes import Changes, Wait, wait_until

T = TypeVar("T")


def wait_for(
    session: Session, run_ids: Sequence[str], check: Callable[[], T | None], seconds: float
) -> T | None:
    """Return what `check` gives once it gives anything, or None after `seconds`. It runs in a thread."""
    changes = Changes(session.service.store)
    try:
        wait = Wait(seconds=seconds, run_ids=frozenset(run_ids))
        return asyncio.run(wait_until(changes, check, wait))
    finally:
        changes.close()
