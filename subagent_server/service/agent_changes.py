"""Changes of agent files: the observer of the runs also watches the agents directories."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from subagent_server.host.watch import Watcher

Identity = tuple[int, int]
"""Device and inode."""


class AgentChanges:
    """Reports changes in some directories and below them: a `ChangeSource` of `changes.py`.

    A missing or replaced directory is watched from the first subscription after the directory is there.
    """

    def __init__(self, directories: Sequence[Path], watcher: Watcher) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._watcher = watcher
        self._watched: dict[Path, tuple[Identity, Callable[[], None]]] = {}
        self._listeners: dict[object, Callable[[str], None]] = {}
        self._lock = threading.Lock()

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(file_name)` at each change, from another thread; returns the unsubscribe function.

        Reads directories: call it off the event loop.
        """
        key = object()
        with self._lock:
            self._listeners[key] = listener
            for directory in self._directories:
                self._look_after(directory)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(key, None)

        return unsubscribe

    def _look_after(self, directory: Path) -> None:
        """Watch an existing directory, once; stop watching a removed directory of the same name."""
        identity = _identity(directory)
        known, unwatch = self._watched.get(directory, (None, None))
        if identity == known:
            return
        if unwatch is not None:
            unwatch()
            del self._watched[directory]
        if identity is not None:
            unwatch = self._watcher.watch(directory, self._notify, recursive=True)
            self._watched[directory] = (identity, unwatch)

    def _notify(self, name: str) -> None:
        for listener in list(self._listeners.values()):  # no lock: `subscribe` holds it while it walks trees
            listener(name)


def _identity(directory: Path) -> Identity | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
