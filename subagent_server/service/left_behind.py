"""The files that a run has left and that other programs execute, as its journal names them."""

import os
from pathlib import Path
from typing import Any

from subagent_server.domain.executed_files import can_run_code
from subagent_server.domain.records import RunMeta
from subagent_server.host.inside import printable
from subagent_server.host.processes import boot_id
from subagent_server.sandbox.executed_changes import Seen, changes, look
from subagent_server.store.run_files import read_request
from subagent_server.store.runs import RunStore

MAX_SHOWN = 20
"""How many files are named; of more, the number is said."""
MAX_PATH_CHARACTERS = 300


def look_for_run(store: RunStore, cwd: Path, before: Seen | None = None) -> Seen:
    """Return what can run code in the directory of a run, given by its real path. Blocking, up to 0.5 s."""
    return look(cwd, None if before is None else before.places, leave_out=store.paths.root)


def left_since(before: Seen | None, after: Seen, since: float) -> list[str]:
    """Return what came or changed between two looks, for people; see `executed_changes.changes`."""
    found = changes(before, after, since)
    shown = [printable(path[:MAX_PATH_CHARACTERS]) for path in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"and {len(found) - MAX_SHOWN} more")
    if after.cut and not (before is not None and before.cut):
        shown.append("and maybe more (the directory has grown too large to be looked at)")
    return shown


def left_behind(store: RunStore, meta: RunMeta) -> list[str]:
    """Return what a run whose worker died has left. Only times tell what is new. Blocking, up to 0.5 s.

    After a restart of the machine nothing is looked at: all its runs died at once, and one list reads them.

    Raises:
        UnreadableMeta: the request of the run cannot be read.
    """
    if meta.started_at is None or meta.launch is None or meta.launch.boot_id != boot_id():
        return []
    cwd = Path(os.path.realpath(read_request(store.paths.run(meta.run_id)).cwd))
    return left_since(None, look_for_run(store, cwd), meta.started_at.timestamp())


def left_facts(found: list[str]) -> dict[str, Any]:
    """Return the fields of the warning in the journal."""
    return {"message": can_run_code(found), "canRunCode": found}
