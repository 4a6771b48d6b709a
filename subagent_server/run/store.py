"""The run directories: making, reading, listing, and the only function that changes a run's state."""

import gzip
import heapq
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from subagent_server.run import durable, locks, transitions, wake
from subagent_server.run.errors import (
    ForeignRoot,
    InvalidRunId,
    NewerSchema,
    StorageFailed,
    SubagentError,
    UnknownRun,
    UnreadableMeta,
    storing,
)
from subagent_server.run.files import Entry, remove_tree
from subagent_server.run.journal import recorded_usage
from subagent_server.run.locks import TIMEOUT_SECONDS, exclusive
from subagent_server.run.paths import STATE_BYTES, RootPaths, RunPaths, make_root
from subagent_server.run.records import (
    Failure,
    PayloadInfo,
    Record,
    RunMeta,
    RunRequest,
    RunResult,
    Usage,
    WorktreeState,
    first_problem,
)
from subagent_server.run.states import SCHEMA_VERSION, Status, is_run_id
from subagent_server.run.stderr import failpoint, lack_of_room
from subagent_server.run.transitions import RunEvent, apply

R = TypeVar("R", bound=Record)
_IGNORE_EVERYTHING = b"# Run directories are records of this machine, not part of the project.\n*\n"

# -- Older meta files, brought to the present schema while reading; a newer one is read as far as known.


def upgraded(data: Any) -> Any:
    """Return the mapping of a meta file in the present schema; any other value is returned unchanged.

    Raises:
        ValueError: the file claims a version that never was.
    """
    if not isinstance(data, dict):
        return data
    version = data.get("schemaVersion", 1)
    if not isinstance(version, int) or version >= SCHEMA_VERSION:
        return data
    if version != 1:
        raise ValueError(f"there never was a schemaVersion {version}")
    # Version 1 knew no nesting, counted no changes, and called every end `completedAt`.
    new = {**data, "schemaVersion": SCHEMA_VERSION}
    new.setdefault("rootRunId", new.get("parentRunId") or new.get("runId"))
    new.setdefault("revision", len(new.get("transitions", [])))
    new.setdefault("withDescendants", new.get("usage", {}))
    if new.get("status") == "stopped" and "stoppedAt" not in new:
        new["stoppedAt"] = new.pop("completedAt", None)
    new["messages"] = [{"askedRevision": 0, **message} for message in new.get("messages", [])]
    pending = [m for m in new["messages"] if m.get("messageStatus") == "pending_parent_reply"]
    new.setdefault("pendingQuestions", len(pending))
    return new


# -- The JSON files and the payload of a run, read and checked. Nothing here takes a lock.


RESULT_BYTES = PAYLOAD_BYTES = 64 << 20
"""How much of a result, and of an unpacked payload, is read."""


def read_state(run: RunPaths) -> RunMeta:
    """Return the state of a run, brought up to the present schema. Raises UnknownRun, UnreadableMeta."""
    try:
        raw = run.meta.read(STATE_BYTES)
    except FileNotFoundError as error:
        raise UnknownRun(run.run_id, run.root.root) from error
    except OSError as error:
        why = (lack_of_room(error) or error.strerror or str(error)).rstrip(".")
        raise UnreadableMeta(run.run_id, run.meta.path, why) from error
    try:
        meta = RunMeta.model_validate(upgraded(json.loads(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        why = _reason(error)
        if newer_version(run) is not None:
            why = f"a later version wrote it: upgrade subagent-server; {why}"
        raise UnreadableMeta(run.run_id, run.meta.path, why) from error
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


def check_not_newer(meta: RunMeta) -> None:
    """Leave a run that a later version wrote as it is. Raises NewerSchema."""
    if meta.schema_version > SCHEMA_VERSION:
        raise NewerSchema(meta.run_id, meta.schema_version, SCHEMA_VERSION)


def read_request(run: RunPaths) -> RunRequest:
    """Return the task of a run, with its agent as it was at the start. Raises UnreadableMeta."""
    try:
        return RunRequest.model_validate_json(run.request.read(STATE_BYTES))
    except (OSError, ValidationError) as error:
        raise UnreadableMeta(run.run_id, run.request.path, _reason(error)) from error


def read_result(run: RunPaths) -> RunResult | None:
    """Return the result of a run, or None if it left no result. Raises UnreadableMeta."""
    return _read(run, run.result, RunResult, RESULT_BYTES)


def read_worktree(run: RunPaths) -> WorktreeState | None:
    """Return the state of a run's worktree, or None if none was made. Raises UnreadableMeta."""
    return _read(run, run.worktree, WorktreeState, STATE_BYTES)


def _read(run: RunPaths, file: Entry, kind: type[R], most: int) -> R | None:
    try:
        return kind.model_validate_json(file.read(most))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UnreadableMeta(run.run_id, file.path, _reason(error)) from error


def write_worktree(run: RunPaths, state: WorktreeState) -> None:
    """Record the state of a run's worktree. Raises StorageFailed."""
    durable.write_durably(run.worktree, state.to_json())


def read_payload(run: RunPaths) -> bytes | None:
    """Return the payload of a run, uncompressed, or None if it has no payload. Raises UnreadableMeta."""
    try:
        with run.payload.reader() as file:
            payload = gzip.GzipFile(fileobj=file).read(PAYLOAD_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableMeta(run.run_id, run.payload.path, _reason(error)) from error
    if len(payload) > PAYLOAD_BYTES:
        why = f"unpacked it has more than the {PAYLOAD_BYTES:,} bytes that are read of it"
        raise UnreadableMeta(run.run_id, run.payload.path, why)
    return payload


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return first_problem(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)[:200]


# -- The marks of possibly live runs, in `.changes`: a file for each run, touched at each change of the run.
#
# A mark is made with the run and removed when its tree is gone, so a reader of a large root looks at live
# runs only. A watcher of the directory sees every change. Each mark may be lost: readers look by a slow
# poll, too, and a reader of a live run without a mark restores the mark.


def announce(run: RunPaths) -> None:
    """Wake all waiters for a change of this run. After a lost wake-up, their slow poll finds the change."""
    with suppress(OSError):
        mark = run.root.change_mark(run.run_id)
        if mark.exists():
            mark.touch()
        wake.wake_sleepers(run)


def restore(run: RunPaths) -> None:
    """Restore the mark of a live run, if missing: each touch has all who wait for changes look again."""
    with suppress(OSError):
        if not run.root.change_mark(run.run_id).exists():
            run.root.changes.make()
            run.root.change_mark(run.run_id).touch()


def drop_vain(run: RunPaths) -> None:
    """Remove the mark of a run that is gone, or whose start was killed before it was one.

    A start holds the lock of its run from before the mark until the state is written.
    """
    with suppress(OSError, ForeignRoot):
        if not run.files.exists() or not (locks.is_held(run.live_lock) or run.meta.exists()):
            run.root.change_mark(run.run_id).unlink()


SPARE_BYTES = 16 * 1024
"""How much an end may add to a state: its failure, its summary, its last steps."""
_MANY_MARKS = 1_000
RESULT_SECONDS = 60.0
"""How long a result waits for the lock: it is paid, and a process that was suspended may hold that."""


class RunStore:
    """The runs under a root. Holds no state: two stores on the same root are the same store."""

    def __init__(self, root: Path, paths: RootPaths | None = None) -> None:
        self.paths = paths or RootPaths(root)

    def make_root(self) -> None:
        """Make the root on first use, with a `.gitignore` inside.

        Raises:
            ForeignRoot: the root exists, but is not ours.
            StorageFailed: the root cannot be made.
        """
        root = make_root(self.paths.root)
        with storing(self.paths.root):
            for name in (self.paths.changes.path.name, self.paths.slots.path.name):
                root.below(name).make()
            if not (ignored := root.entry(".gitignore")).exists():
                durable.write_durably(ignored, _IGNORE_EVERYTHING)
        with suppress(OSError):  # on a full disk it could not be made, and nothing could be removed
            root.below(self.paths.removed.path.name).make()

    def create(self, request: RunRequest) -> RunPaths:
        """Make the directory of a run, exclusively, with its mark in its parent's and its `request.json`.

        Raises:
            InvalidRunId, ForeignRoot: nothing is made.
            StorageFailed: nothing of it is left behind.
        """
        run = self.paths.run(request.run_id)
        parent = None if request.parent_run_id is None else self.paths.run(request.parent_run_id)
        self.make_root()
        with storing(run.directory):  # a directory that is there already is another run: it stays
            run.files.make_new()
        failpoint("store.made")
        try:
            with storing(run.directory):
                if parent is not None:
                    parent.children.make()
                    parent.children.entry(run.run_id).touch()
                durable.write_new(run.request, request.to_json())  # `publish` makes its name durable
                self.paths.open().sync()
        except StorageFailed:
            self.discard(run, request.parent_run_id)
            raise
        return run

    def publish(self, meta: RunMeta) -> None:
        """Write the first state of a run: after this, other processes see it.

        Raises:
            StorageFailed: there is no run then.
        """
        run = self.paths.run(meta.run_id)
        with exclusive(run.meta_lock), storing(run.meta.path):
            self.paths.change_mark(meta.run_id).touch()
            durable.write_durably(run.meta, meta.to_json())

    def reserve(self, run: RunPaths) -> None:
        """Reserve room for the end of a run: the end can then be written on a full disk."""
        durable.reserve(run.spare, SPARE_BYTES)

    def discard(self, run: RunPaths, parent_run_id: str | None = None) -> None:
        """Remove a run directory that never became a run, with its mark in its parent's."""
        with suppress(OSError):
            remove_tree(self.paths.open().entry(run.run_id))
            if parent_run_id is not None:
                self.paths.run(parent_run_id).children.entry(run.run_id).unlink()
            self.paths.change_mark(run.run_id).unlink()

    def exists(self, run_id: str) -> bool:
        """Whether there is a run of this id: a directory without a state is a start that never was."""
        return self.paths.run(run_id).meta.exists()

    def read(self, run_id: str) -> RunMeta:
        """Return the state of a run as it is on disk. Takes no lock.

        Raises:
            InvalidRunId, UnknownRun, UnreadableMeta.
        """
        return read_state(self.paths.run(run_id))

    def readable(self, run_ids: Iterable[str]) -> Iterator[RunMeta]:
        """Yield the states of these runs, without those that are not there or cannot be read."""
        for run_id in run_ids:
            with suppress(SubagentError):
                yield self.read(run_id)

    def above(self, meta: RunMeta) -> Iterator[RunMeta]:
        """Yield the runs above a run, its parent first, as far as they can be read."""
        for _ in range(meta.depth):  # states are data, and may lead in a circle
            if meta.parent_run_id is None:
                return
            try:
                meta = self.read(meta.parent_run_id)
            except SubagentError:
                return
            yield meta

    def continuation_of(self, flow: str) -> RunMeta | None:
        """Return the run that continues a run of a flow; None if there is none any more.

        Raises:
            UnreadableMeta: it cannot be found out whether there is one.
        """
        mark = self.paths.run(flow).continued_by
        try:
            found = self.read(mark.read(64).decode("utf-8", "replace"))
        except (FileNotFoundError, InvalidRunId, UnknownRun):
            return None
        except OSError as error:
            raise UnreadableMeta(flow, mark.path, error.strerror or str(error)) from error
        return found if found.continues_run_id == flow else None

    def mark_continuation(self, request: RunRequest) -> None:
        """Name a run that is about to be published as the one that continues a flow; not if it only looks.

        The name comes first: without its run it leads nowhere, and another run may continue the flow.
        """
        flow, only_looks = request.continues_run_id, request.flow is not None and request.flow.dry_run
        if flow is not None and request.runner == "flow" and not only_looks:
            durable.write_durably(self.paths.run(flow).continued_by, request.run_id.encode())

    def read_request(self, run_id: str) -> RunRequest:
        """Return the task of a run. Raises InvalidRunId, UnreadableMeta."""
        return read_request(self.paths.run(run_id))

    def read_result(self, run_id: str) -> RunResult | None:
        """Return the result of a run, or None if it left no result. Raises InvalidRunId, UnreadableMeta."""
        return read_result(self.paths.run(run_id))

    def read_payload(self, run_id: str) -> bytes | None:
        """Return the payload of a run, uncompressed, or None. Raises InvalidRunId, UnreadableMeta."""
        return read_payload(self.paths.run(run_id))

    def update(
        self,
        run_id: str,
        event: RunEvent,
        now: datetime,
        *,
        result: RunResult | None = None,
        payload: bytes | None = None,
    ) -> RunMeta:
        """Apply `event` to a run: the only function that writes `run.meta.json` after its first state.

        Under the lock the function reads, rolls forward a result missing in the state, applies, and replaces
        the file. `result` and `payload` are made durable before the lock is taken. They get their names just
        before the terminal status, in the same hold, only if this event ends the run. Watchers are woken
        after.

        Raises:
            IllegalTransition, MessageClosed, UnknownMessage, NewerSchema: refused, no byte is changed.
            InvalidRunId, UnknownRun: there is nothing to change.
            LockTimeout, StorageFailed, UnreadableMeta: the machine refused; the old state is whole.
        """
        run = self._existing(run_id)
        prepared: list[tuple[Entry, Entry]] = []
        below = self.usage_below(run_id)
        try:
            if payload is not None:
                prepared.append((durable.prepare(run.payload, gzip.compress(payload)), run.payload))
                if isinstance(event, transitions.Finished | transitions.RunFailed):
                    event = replace(event, payload=PayloadInfo(size=len(payload), path=run.payload.name))
            if result is not None:
                prepared.append((durable.prepare(run.result, result.to_json()), run.result))
            with exclusive(run.meta_lock, TIMEOUT_SECONDS if result is None else RESULT_SECONDS):
                before = self.rolled_forward(run, now)
                after = apply(before, event, now, below)
                if after is before:
                    return after
                if after.status.is_terminal and not before.status.is_terminal:
                    for temporary, file in prepared:
                        durable.commit(temporary, file)
                    failpoint("store.result_named")
                self._write_state(run, after)
                failpoint("store.written")
        finally:
            for temporary, _ in prepared:
                durable.discard(temporary)
        announce(run)
        return after

    def rolled_forward(self, run: RunPaths, now: datetime) -> RunMeta:
        """Return the state, with a missing `result.json` applied first. Call under the lock."""
        meta = read_state(run)
        check_not_newer(meta)
        after = self.with_result(run, meta, now)
        if after is not meta:
            self._write_state(run, after)
            announce(run)
        return after

    def with_result(self, run: RunPaths, meta: RunMeta, now: datetime) -> RunMeta:
        """Return the state with a `result.json` that it lacks; nothing is written."""
        result = None if meta.status.is_terminal else read_result(run)
        if result is None:
            return meta
        return apply(meta, self._ending(result, run), now, self.usage_below(run.run_id))

    def _write_state(self, run: RunPaths, meta: RunMeta) -> None:
        """Replace the state. Only the end of a run may take the reserved room."""
        data = meta.to_json()
        try:
            durable.write_durably(run.meta, data)
        except StorageFailed as error:
            if not (meta.status.is_terminal and durable.is_full(error) and run.spare.exists()):
                raise
            durable.write_reserved(run.meta, run.spare, data)
        if meta.status.is_terminal:
            durable.discard(run.spare)
        elif run.spare.exists():
            durable.reserve(run.spare, len(data) + SPARE_BYTES)

    def roll_forward(self, run_id: str, now: datetime) -> RunMeta:
        """Apply a `result.json` not yet in the state, if there is any, and return the state."""
        run = self._existing(run_id)
        with exclusive(run.meta_lock):
            return self.rolled_forward(run, now)

    def newest_first(self) -> Iterator[str]:
        """Yield the names in the root that may be runs: only reading shows whether one really is."""
        try:
            names = self.paths.open().names()
        except (FileNotFoundError, NotADirectoryError):
            return
        names.sort(reverse=True)  # run ids begin with their time
        yield from filter(is_run_id, names)

    def run_ids(self) -> list[str]:
        """Return the ids of all run directories, the newest first, also of those without a state."""
        return [run_id for run_id in self.newest_first() if self.paths.run(run_id).files.exists()]

    def live_ids(self) -> list[str]:
        """Return the ids of the runs whose tree is not recorded as gone, by their marks.

        If there are very many marks, only those with a run directory count.
        """
        marks = self.paths.marks()
        there = None if len(marks) < _MANY_MARKS else set(self.paths.open().names())
        return [name for name in marks if is_run_id(name) and (there is None or name in there)]

    def is_marked(self, run_id: str) -> bool:
        """Whether a run is among the `live_ids` of a root that is ours; the other marks are not read."""
        return is_run_id(run_id) and self.paths.change_mark(run_id).exists()

    def children_of(self, run_id: str) -> list[str]:
        """Return the ids of the runs started by this run."""
        try:
            names = self.paths.run(run_id).children.names()
        except OSError:  # none, or none that could be trusted
            return []
        return sorted(name for name in names if is_run_id(name))

    def usage_below(self, run_id: str) -> Usage | None:
        """Return the cost of the runs below this run, by their states on disk; None without such runs.

        A child with an unreadable state adds nothing: totals only grow, so its earlier share is kept.
        """
        total: Usage | None = None
        for child in self.children_of(run_id):
            with suppress(UnknownRun, UnreadableMeta):
                meta = self.read(child)
                if meta.parent_run_id == run_id != child:
                    cost = meta.with_descendants
                    total = cost if total is None else total.plus(cost)
        return total

    def _existing(self, run_id: str) -> RunPaths:
        """Return the paths of a run with a state: nothing is made for a run without."""
        run = self.paths.run(run_id)
        with storing(run.meta.path):
            if run.meta.exists():
                return run
        raise UnknownRun(run_id, self.paths.root)

    def _ending(self, result: RunResult, run: RunPaths) -> RunEvent:
        """Return the event of a stored result, with the cost of the run by its journal."""
        usage = recorded_usage(run)
        if result.outcome is Status.STOPPED:
            return transitions.StopRequested(usage=usage)
        payload = read_payload(run)
        stored = None if payload is None else PayloadInfo(size=len(payload), path=run.payload.name)
        if result.outcome is Status.COMPLETED:
            return transitions.Finished(summary=result.headline, payload=stored, usage=usage)
        silent = Failure(code="agent_error", message="The run failed without saying why.")
        failure = result.error or silent
        return transitions.RunFailed(failure=failure, summary=result.summary, payload=stored, usage=usage)


# -- The marks of runs whose end no parent was shown, in `.unseen`: a file for each run.
#
# A server makes the mark when it starts a run, and whichever server shows the end removes it. So a server
# that replaces another shows the ends that its client may not have seen. Each mark may be lost: the
# run is in lists all the same.


MAX_UNSEEN = 100
MAX_UNSEEN_SECONDS = 86_400.0
"""How many marks count, the newest, and how old their runs may be: nobody waits for an older end."""


def mark_unseen(run: RunPaths) -> None:
    """Note that no parent was shown the end of this run."""
    with suppress(OSError):
        run.root.unseen.make()
        run.root.unseen.entry(run.run_id).touch()


def mark_seen(run: RunPaths) -> None:
    """Note that the end of this run was shown."""
    with suppress(OSError, ForeignRoot):
        run.root.unseen.entry(run.run_id).unlink()


def newest_unseen(root: RootPaths, now: datetime) -> list[str]:
    """Return the ids of the runs whose end no parent was shown, the newest first."""
    oldest = f"{now - timedelta(seconds=MAX_UNSEEN_SECONDS):%Y%m%d-%H%M%S}"  # run ids begin so, in UTC
    with suppress(OSError):
        if root.is_ours:
            names = (name for name in root.unseen.names() if name >= oldest and is_run_id(name))
            return heapq.nlargest(MAX_UNSEEN, names)
    return []
