"""Open the payload of a run as it is stored, gzip-compressed, for a door that passes it on unchanged.

Tested in `tests/lifecycle/test_payload.py`.
"""

import os
from dataclasses import dataclass
from typing import BinaryIO

from subagent_server.domain.errors import CallerError
from subagent_server.domain.limits import MAX_PAYLOAD_BYTES
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run

MAX_STORED_BYTES = MAX_PAYLOAD_BYTES + (1 << 20)
"""More than any payload takes that was stored here: what cannot be compressed grows by far less."""
_GZIP = b"\x1f\x8b"


class NoPayload(CallerError):
    """A run has no payload that could be passed on."""

    code = "no_payload"


@dataclass(frozen=True)
class StoredPayload:
    """An open file of `size` bytes, and a short text that no other payload has. The caller closes it."""

    file: BinaryIO
    size: int
    tag: str


def open_payload(service: Service, run_id: str, caller: Caller = USER) -> StoredPayload:
    """Return the payload of a run, unread. The state of the run has to name it: a file alone does not count.

    Raises:
        NoPayload: there is none, or what is there was not stored as one.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, StorageFailed, LockTimeout.
    """
    meta = open_run(service, run_id, caller).meta
    if meta.payload is None:
        raise NoPayload(f"Run {run_id} ({meta.status.value}) has no payload: agent_status shows what it has.")
    try:
        descriptor = service.store.paths.run(run_id).payload.open()
    except OSError as error:
        raise _damaged(run_id, error.strerror or str(error)) from error
    file = os.fdopen(descriptor, "rb", buffering=0)
    facts = os.fstat(descriptor)
    if facts.st_size > MAX_STORED_BYTES or os.pread(descriptor, len(_GZIP), 0) != _GZIP:
        file.close()
        raise _damaged(run_id, "it was not stored as a payload")
    return StoredPayload(file, facts.st_size, f"{run_id}-{facts.st_size:x}-{facts.st_mtime_ns:x}")


def _damaged(run_id: str, why: str) -> NoPayload:
    return NoPayload(f"The payload of run {run_id} cannot be read ({why}): its summary is in agent_status.")
