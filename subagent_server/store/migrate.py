"""Older meta files, brought to the present schema while reading; a newer one is read as far as known."""

from collections.abc import Callable
from typing import Any

from subagent_server.domain.records import SCHEMA_VERSION

Mapping = dict[str, Any]


def upgraded(data: Any) -> Any:
    """Return the mapping of a meta file in the present schema; any other value is returned unchanged.

    Raises:
        ValueError: the file claims a version that never was.
    """
    if not isinstance(data, dict):
        return data
    version = data.get("schemaVersion", 1)
    while isinstance(version, int) and version < SCHEMA_VERSION:
        step = _STEPS.get(version)
        if step is None:
            raise ValueError(f"there never was a schemaVersion {version}")
        data = step(data)
        version += 1
        data["schemaVersion"] = version
    return data


def _from_1(old: Mapping) -> Mapping:
    """Version 1 knew no nesting, counted no changes, and called every end `completedAt`."""
    new = dict(old)
    new.setdefault("rootRunId", new.get("parentRunId") or new.get("runId"))
    new.setdefault("revision", len(new.get("transitions", [])))
    new.setdefault("withDescendants", new.get("usage", {}))
    if new.get("status") == "stopped" and "stoppedAt" not in new:
        new["stoppedAt"] = new.pop("completedAt", None)
    new["messages"] = [{"askedRevision": 0, **message} for message in new.get("messages", [])]
    pending = [m for m in new["messages"] if m.get("messageStatus") == "pending_parent_reply"]
    new.setdefault("pendingQuestions", len(pending))
    return new


_STEPS: dict[int, Callable[[Mapping], Mapping]] = {1: _from_1}
