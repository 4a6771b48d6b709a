"""The marks of runs whose end no parent was shown, in `.unseen`: a file for each run.

A server makes the mark when it starts a run, and whichever server shows the end removes it. So a server that
takes another's place shows the ends that its client may not have seen. Each mark may be lost: the run is in
lists all the same.
"""

import heapq
from contextlib import suppress
from datetime import datetime, timedelta

from subagent_server.domain.errors import ForeignRoot
from subagent_server.domain.ids import is_run_id
from subagent_server.store.paths import RootPaths, RunPaths

MAX_UNSEEN = 100
MAX_UNSEEN_SECONDS = 86_400.0
"""How many marks count, the newest, and how old their runs may be: nobody waits for an older end."""


def mark(run: RunPaths) -> None:
    """Note that no parent was shown the end of this run."""
    with suppress(OSError):
        run.root.unseen.make()
        run.root.unseen.entry(run.run_id).touch()


def unmark(run: RunPaths) -> None:
    """Note that the end of this run was shown."""
    with suppress(OSError, ForeignRoot):
        run.root.unseen.entry(run.run_id).unlink()


def newest(root: RootPaths, now: datetime) -> list[str]:
    """Return the ids of the runs whose end no parent was shown, the newest first."""
    oldest = f"{now - timedelta(seconds=MAX_UNSEEN_SECONDS):%Y%m%d-%H%M%S}"  # run ids begin so, in UTC
    with suppress(OSError):
        if root.is_ours:
            names = (name for name in root.unseen.names() if name >= oldest and is_run_id(name))
            return heapq.nlargest(MAX_UNSEEN, names)
    return []
