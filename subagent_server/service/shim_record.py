"""Reading the records of a run's shim."""

import json
from typing import Any

from subagent_server.host.directory import Entry
from subagent_server.store.paths import RECORD_BYTES, RunPaths


def read_exit(run: RunPaths) -> dict[str, Any] | None:
    """Return how the worker ended, as recorded by the shim, or None without a record."""
    return _read_object(run.exit)


def read_shim(run: RunPaths) -> dict[str, Any]:
    """Return the identities of shim and worker; empty if no shim ever recorded itself."""
    return _read_object(run.shim) or {}


def tree_is_gone(run: RunPaths) -> bool:
    """Whether the record says that no process of a run is left."""
    return (read_exit(run) or {}).get("treeGone") is True


def _read_object(file: Entry) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read(RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
