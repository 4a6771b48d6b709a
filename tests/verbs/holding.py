"""Verbs whose runs never work: each seems to live, because this process holds its lock."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from subagent_server.process.launcher import LaunchPackage
from subagent_server.run import locks, processes
from subagent_server.run.paths import RunPaths
from subagent_server.settings import Settings
from subagent_server.verbs.service import Service, open_service


class Kept:
    """A run that seems to live: its lock is held by this process, and there is no other."""

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def start(self, package: LaunchPackage) -> None:
        """Keep the lock."""

    def give_up(self) -> None:
        """Let go of it."""
        os.close(self._lock)


class HoldingLauncher:
    """A launcher that starts no process."""

    kind = "local"
    host = processes.host_name()
    lease = None

    def __init__(self) -> None:
        self.locks: list[int] = []

    def starting(self) -> AbstractContextManager["HoldingLauncher"]:
        """There is nothing to prepare."""
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> Kept:
        """Hold the lock of the run."""
        descriptor = locks.take(run.live_lock)
        assert descriptor is not None
        self.locks.append(descriptor)
        return Kept(descriptor)

    def close(self) -> None:
        """Let go of every lock that was not given up."""
        for descriptor in self.locks:
            with suppress(OSError):
                os.close(descriptor)

    def warm_up(self) -> None:
        """There is nothing to prepare."""

    def reap(self) -> None:
        """There is nothing to collect."""


@contextmanager
def holding(settings: Settings) -> Iterator[Service]:
    """Give the verbs over such a launcher."""
    launcher = HoldingLauncher()
    yield open_service(settings, launcher)
    launcher.close()
