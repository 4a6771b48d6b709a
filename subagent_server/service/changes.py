"""Changes of runs, and waiting for them: subscribe, read, then wait. Nothing is lost in between.

The end of a wait never touches the run.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.host.watch import Watcher
from subagent_server.store.runs import RunStore

T = TypeVar("T")
PROGRESS_SECONDS = 10.0


class ChangeSource(Protocol):
    """Something whose changes can be waited for."""

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(name)` at each change, from another thread; returns the unsubscribe function."""


class Changes:
    """Reports every change of a live run under a root; all waiting callers share a single watch."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.watcher = Watcher()
        """The one observer of the process: it also watches the agents directories."""
        self._waiters: dict[object, Callable[[str], None]] = {}
        self._lock = threading.Lock()
        self._watching = False

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(run_id)` at each change, from another thread; returns the unsubscribe function."""
        key = object()
        with self._lock:
            self._waiters[key] = listener
            if not self._watching and not self._store.paths.is_foreign:
                self._store.make_root()
                self.watcher.watch(self._store.paths.changes.path, self._notify)
                self._watching = True

        def unsubscribe() -> None:
            with self._lock:
                self._waiters.pop(key, None)

        return unsubscribe

    def close(self) -> None:
        """Stop listening."""
        self.watcher.close()

    def _notify(self, run_id: str) -> None:
        with self._lock:
            listeners = list(self._waiters.values())
        for listener in listeners:
            listener(run_id)


@dataclass
class Wait:
    """How long to wait, for changes of which runs (None: any), and which function to call during the wait.

    `progress` gets the seconds waited so far, and the ids of the runs.
    """

    seconds: float
    run_ids: frozenset[str] | None = None
    progress: Callable[[float, Collection[str]], Awaitable[None]] | None = None
    poll_seconds: float = field(default=SLOW_POLL_SECONDS)


async def until_root_is_made(store: RunStore) -> None:
    """Return as soon as the runs root is there: the first use makes the root, a wait does not."""
    while not store.paths.root.exists():
        await asyncio.sleep(SLOW_POLL_SECONDS)


async def wait_until(changes: ChangeSource, check: Callable[[], T | None], wait: Wait) -> T | None:
    """Return the first value of `check` that is not None, or None when the time is over.

    `check` reads files, so it runs in a thread: at the beginning, after each change, and at a slow poll.
    """
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def hear(run_id: str) -> None:
        if (wait.run_ids is None or run_id in wait.run_ids) and not loop.is_closed():
            loop.call_soon_threadsafe(changed.set)

    unsubscribe = await asyncio.to_thread(changes.subscribe, hear)
    began = reported = loop.time()
    try:
        while True:
            changed.clear()
            found = await asyncio.to_thread(check)
            remaining = began + wait.seconds - loop.time()
            if found is not None or remaining <= 0:
                return found
            await _sleep(changed, min(remaining, wait.poll_seconds))
            if wait.progress is not None and loop.time() - reported >= PROGRESS_SECONDS - wait.poll_seconds:
                reported = loop.time()
                await wait.progress(reported - began, wait.run_ids or ())
    finally:
        unsubscribe()


async def _sleep(changed: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return
