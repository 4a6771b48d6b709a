"""The JSON files and the payload of a run, read and checked. Nothing here takes a lock."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from subagent_server.domain.errors import UnknownRun, UnreadableMeta
from subagent_server.domain.records import SCHEMA_VERSION, RunMeta, RunRequest, RunResult
from subagent_server.domain.worktrees import WorktreeState
from subagent_server.host import atomic
from subagent_server.store.migrate import upgraded
from subagent_server.store.packing import unpacked_size
from subagent_server.store.paths import STATE_BYTES, RunPaths

T = TypeVar("T")

RESULT_BYTES = PAYLOAD_BYTES = 64 << 20
"""How much of a result, and of an unpacked payload, is read."""


def read_raw_state(run: RunPaths) -> bytes:
    """Return the state of a run as the file holds it. Raises UnknownRun, UnreadableMeta."""
    try:
        return run.meta.read(STATE_BYTES)
    except FileNotFoundError as error:
        raise UnknownRun(run.run_id, run.root.root) from error
    except OSError as error:
        raise UnreadableMeta(run.run_id, run.meta.path, error.strerror or str(error)) from error


def decode_state(run: RunPaths, raw: bytes) -> RunMeta:
    """Return the state that these bytes hold, brought up to the present schema. Raises UnreadableMeta."""
    try:
        data = json.loads(raw)
        meta = RunMeta.model_validate(upgraded(data))
    except (ValueError, ValidationError, TypeError, RecursionError) as error:
        raise UnreadableMeta(run.run_id, run.meta.path, _reason(error)) from error
    if meta.run_id != run.run_id:
        raise UnreadableMeta(run.run_id, run.meta.path, f"it is the state of run {meta.run_id[:40]!r}")
    return meta


def newer_version(run: RunPaths) -> int | None:
    """Return the schema version of a state that a later version of this program wrote; else None."""
    try:
        version = json.loads(run.meta.read(STATE_BYTES))["schemaVersion"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, int) and version > SCHEMA_VERSION else None


def read_request(run: RunPaths) -> RunRequest:
    """Return the task of a run, with its agent as it was at the start. Raises UnreadableMeta."""
    try:
        return RunRequest.model_validate_json(run.request.read(STATE_BYTES))
    except (OSError, ValidationError) as error:
        raise UnreadableMeta(run.run_id, run.request.path, _reason(error)) from error


def read_result(run: RunPaths) -> RunResult | None:
    """Return the result of a run, or None if it left no result. Raises UnreadableMeta."""
    try:
        return RunResult.model_validate_json(run.result.read(RESULT_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UnreadableMeta(run.run_id, run.result.path, _reason(error)) from error


def read_worktree(run: RunPaths) -> WorktreeState | None:
    """Return how the worktree of a run stands, or None if none was made. Raises UnreadableMeta."""
    try:
        return WorktreeState.model_validate_json(run.worktree.read(STATE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UnreadableMeta(run.run_id, run.worktree.path, _reason(error)) from error


def write_worktree(run: RunPaths, state: WorktreeState) -> None:
    """Record how the worktree of a run stands. Raises StorageFailed."""
    atomic.write_durably(run.worktree, state.to_json())


def read_payload(run: RunPaths) -> bytes | None:
    """Return the payload of a run, uncompressed, or None if it has no payload. Raises UnreadableMeta."""
    payload = _of_payload(run, lambda file: gzip.GzipFile(fileobj=file).read(PAYLOAD_BYTES + 1))
    if payload is not None:
        _check_size(run, len(payload))
    return payload


def payload_size(run: RunPaths) -> int | None:
    """Return the uncompressed size of the payload of a run; None and UnreadableMeta as `read_payload`."""
    size = _of_payload(run, lambda file: unpacked_size(file, PAYLOAD_BYTES))
    if size is not None:
        _check_size(run, size)
    return size


def _of_payload(run: RunPaths, take: Callable[[BinaryIO], T]) -> T | None:
    try:
        with run.payload.reader() as file:
            return take(file)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableMeta(run.run_id, run.payload.path, _reason(error)) from error


def _check_size(run: RunPaths, size: int) -> None:
    if size > PAYLOAD_BYTES:
        why = f"unpacked it has more than the {PAYLOAD_BYTES:,} bytes that are read of it"
        raise UnreadableMeta(run.run_id, run.payload.path, why)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)[:200]
