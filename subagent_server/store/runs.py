"""The run directories: making, reading, listing, and the only function that changes a run's state."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from subagent_server.domain import events
from subagent_server.domain.apply import apply
from subagent_server.domain.errors import NewerSchema, StorageFailed, UnknownRun, UnreadableMeta
from subagent_server.domain.events import RunEvent
from subagent_server.domain.ids import is_run_id
from subagent_server.domain.records import (
    SCHEMA_VERSION,
    Failure,
    PayloadInfo,
    RunMeta,
    RunRequest,
    RunResult,
    Usage,
)
from subagent_server.domain.states import Status
from subagent_server.host import atomic
from subagent_server.host.directory import Entry
from subagent_server.host.failpoints import failpoint
from subagent_server.host.locks import exclusive
from subagent_server.host.removing import remove_tree
from subagent_server.store import change_marks, run_files
from subagent_server.store.logs import recorded_usage
from subagent_server.store.packing import Packed
from subagent_server.store.paths import RootPaths, RunPaths
from subagent_server.store.root import make_root

SPARE_BYTES = 16 * 1024
"""How much an end may add to a state: its failure, its summary, its last steps."""


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
        with _storing(self.paths.root):
            for name in (self.paths.changes.path.name, self.paths.slots.path.name):
                root.below(name).make()
            root.keep_out_of_repositories()

    def create(self, request: RunRequest) -> RunPaths:
        """Make the directory of a run, exclusively, with its mark in its parent's and its `request.json`.

        Raises:
            InvalidRunId, ForeignRoot: nothing is made.
            StorageFailed: nothing of it is left behind.
        """
        run = self.paths.run(request.run_id)
        parent = None if request.parent_run_id is None else self.paths.run(request.parent_run_id)
        self.make_root()
        with _storing(run.directory):  # a directory that is there already is another run: it stays
            run.files.make_new()
        failpoint("store.made")
        try:
            with _storing(run.directory):
                if parent is not None:
                    parent.children.make()
                    parent.children.entry(run.run_id).touch()
                atomic.write_new(run.request, request.to_json())  # `publish` makes its name durable
                self.paths.open().sync()
        except StorageFailed:
            self.discard(run, request.parent_run_id)
            raise
        return run

    def publish(self, meta: RunMeta) -> None:
        """Write the first state of a run: from here on it exists for everybody.

        Raises:
            StorageFailed: there is no run then.
        """
        run = self.paths.run(meta.run_id)
        with exclusive(run.meta_lock), _storing(run.meta.path):
            self.paths.change_mark(meta.run_id).touch()
            atomic.write_durably(run.meta, meta.to_json())

    def reserve(self, run: RunPaths) -> None:
        """Reserve room for the end of a run: the end can then be written on a full disk."""
        atomic.reserve(run.spare, SPARE_BYTES)

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
        return self.read_state(self.paths.run(run_id))

    def read_state(self, run: RunPaths) -> RunMeta:
        """Return the state of a run whose directory is at hand. Raises UnknownRun, UnreadableMeta."""
        return run_files.decode_state(run, run_files.read_raw_state(run))

    def read_request(self, run_id: str) -> RunRequest:
        """Return the task of a run. Raises InvalidRunId, UnreadableMeta."""
        return run_files.read_request(self.paths.run(run_id))

    def read_result(self, run_id: str) -> RunResult | None:
        """Return the result of a run, or None if it left no result. Raises InvalidRunId, UnreadableMeta."""
        return run_files.read_result(self.paths.run(run_id))

    def read_payload(self, run_id: str) -> bytes | None:
        """Return the payload of a run, uncompressed, or None. Raises InvalidRunId, UnreadableMeta."""
        return run_files.read_payload(self.paths.run(run_id))

    def update(
        self,
        run_id: str,
        event: RunEvent,
        now: datetime,
        *,
        result: RunResult | None = None,
        payload: bytes | Iterable[bytes] | None = None,
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
        packed = None if payload is None else Packed(payload)
        prepared: list[tuple[Entry, Entry]] = []
        below = self.usage_below(run_id)
        try:
            if packed is not None:
                prepared.append((atomic.prepare(run.payload, packed), run.payload))
                event = _with_payload(event, PayloadInfo(size=packed.size, path=run.payload.name))
            if result is not None:
                prepared.append((atomic.prepare(run.result, result.to_json()), run.result))
            with exclusive(run.meta_lock):
                before = self.rolled_forward(run, now)
                after = apply(before, event, now, below)
                if after is before:
                    return after
                if after.status.is_terminal and not before.status.is_terminal:
                    for temporary, file in prepared:
                        atomic.commit(temporary, file)
                    failpoint("store.result_named")
                self._write_state(run, after)
                failpoint("store.written")
        finally:
            for temporary, _ in prepared:
                atomic.discard(temporary)
        change_marks.announce(run)
        return after

    def rolled_forward(self, run: RunPaths, now: datetime) -> RunMeta:
        """Return the state, with a missing `result.json` applied first. Call under the lock."""
        meta = self.read_state(run)
        if meta.schema_version > SCHEMA_VERSION:
            raise NewerSchema(run.run_id, meta.schema_version, SCHEMA_VERSION)
        if meta.status.is_terminal:
            return meta
        result = run_files.read_result(run)
        if result is None:
            return meta
        meta = apply(meta, self._ending(result, run), now, self.usage_below(run.run_id))
        self._write_state(run, meta)
        change_marks.announce(run)
        return meta

    def _write_state(self, run: RunPaths, meta: RunMeta) -> None:
        """Replace the state. Only the end of a run may take the reserved room."""
        data = meta.to_json()
        try:
            atomic.write_durably(run.meta, data)
        except StorageFailed as error:
            if not (meta.status.is_terminal and atomic.is_full(error) and run.spare.exists()):
                raise
            atomic.write_reserved(run.meta, run.spare, data)
        if meta.status.is_terminal:
            atomic.discard(run.spare)
        elif run.spare.exists():
            atomic.reserve(run.spare, len(data) + SPARE_BYTES)

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

    def run_ids(self, *, newest_first: bool = True) -> list[str]:
        """Return the ids of all run directories, also of those without a state."""
        try:
            names = [
                entry.name
                for entry in os.scandir(self.paths.root)
                if is_run_id(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
        except FileNotFoundError:
            return []
        return sorted(names, reverse=newest_first)

    def live_ids(self) -> list[str]:
        """Return the ids of the runs whose tree is not recorded as gone, by their marks."""
        return list(self.paths.live_marks())

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
        with _storing(run.meta.path):
            if run.meta.exists():
                return run
        raise UnknownRun(run_id, self.paths.root)

    def _ending(self, result: RunResult, run: RunPaths) -> RunEvent:
        """Return the event of a stored result, with the cost of the run by its journal."""
        usage = recorded_usage(run)
        if result.outcome is Status.STOPPED:
            return events.StopRequested(usage=usage)
        size = run_files.payload_size(run)
        stored = None if size is None else PayloadInfo(size=size, path=run.payload.name)
        if result.outcome is Status.COMPLETED:
            return events.Finished(summary=result.summary, payload=stored, usage=usage)
        silent = Failure(code="agent_error", message="The run failed without saying why.")
        failure = result.error or silent
        return events.RunFailed(failure=failure, summary=result.summary, payload=stored, usage=usage)


def _with_payload(event: RunEvent, payload: PayloadInfo) -> RunEvent:
    """Return an event with the facts of its stored payload, if it has a payload."""
    return replace(event, payload=payload) if isinstance(event, events.Finished | events.RunFailed) else event


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Translate an error of the disk."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
