"""Watch flat directories for changes, with a single observer for the process.

If the system has no observer left (its instances are used up), callers depend on their slow poll.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

Listener = Callable[[str], None]
"""Called with the name of the file that changed, from the observer's thread."""

logging.getLogger("watchdog").addHandler(logging.NullHandler())
logging.getLogger("watchdog").propagate = False  # it complains of events that come while it is closed

_RELEVANT = frozenset({"created", "modified", "attrib", "deleted", "moved", "closed"})


class _Forward(FileSystemEventHandler):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _RELEVANT:
            self._listener(Path(str(event.dest_path or event.src_path)).name)


class Watcher:
    """Reports changes in directories, of each to one listener."""

    def __init__(self) -> None:
        self._observer: BaseObserver | None = None
        self._lock = threading.Lock()

    def watch(self, directory: Path, listener: Listener, *, recursive: bool = False) -> Callable[[], None]:
        """Call `listener` for every change in `directory`; return the function that ends the watch.

        Nothing is raised if the system refuses (EMFILE, ENOSPC, a missing directory, no room for a thread):
        the caller's slow poll does the work.
        """
        with self._lock:
            try:
                watch = self._started().schedule(_Forward(listener), str(directory), recursive=recursive)
            except (OSError, RuntimeError):
                return lambda: None
        return lambda: self._forget(watch)

    def close(self) -> None:
        """Stop the observer's threads."""
        with self._lock:
            if self._observer is not None:
                self._observer.stop()
                self._observer = None

    def _started(self) -> BaseObserver:
        if self._observer is None:
            observer = Observer()
            observer.daemon = True
            observer.start()
            self._observer = observer
        return self._observer

    def _forget(self, watch: ObservedWatch) -> None:
        with self._lock, suppress(KeyError, OSError):
            if self._observer is not None:
                self._observer.unschedule(watch)
