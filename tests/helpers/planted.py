"""Many runs that are alive, made quickly: a state, a journal and a held lock each, but no processes.

For what looks at many runs: a reader takes a run for alive as long as somebody holds its lock.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from subagent_server.run import locks, processes, transitions
from subagent_server.run.journal import RunJournal
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import WorkerIdentity
from subagent_server.run.states import make_run_id
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import apply
from tests.helpers.runs import make_meta, make_request

TURNS = 20
"""How many turns the journal of a run has, each with a call and its result."""


@contextmanager
def planted(root: Path, count: int) -> Iterator[list[str]]:
    """Give the ids of `count` runs that seem to work; at the end they are deleted."""
    store = RunStore(root)
    store.make_root()
    began = datetime.now(UTC) - timedelta(hours=1)
    ids = [make_run_id(began + timedelta(seconds=at), at.to_bytes(6, "big")) for at in range(count)]
    with ExitStack() as held:
        journal: dict[str, bytes] = {}
        for number, run_id in enumerate(ids):
            run = store.paths.run(run_id)
            _plant(run, number, began + timedelta(seconds=number))
            journal = journal or _written(run, began)
            for name, content in journal.items():
                (run.directory / name).write_bytes(content)
            lock = locks.take(run.live_lock)
            assert lock is not None
            held.callback(os.close, lock)
            store.paths.change_mark(run_id).touch()
        try:
            yield ids
        finally:
            for run_id in ids:
                shutil.rmtree(store.paths.run(run_id).directory)
                store.paths.change_mark(run_id).path.unlink(missing_ok=True)


def _written(run: RunPaths, at: datetime) -> dict[str, bytes]:
    """Return the journal and the log of a run that has worked for a while."""
    journal = RunJournal(run)
    journal.append("run_started", at, {"agent": "reviewer", "cwd": "/", "prompt": "Look."})
    for turn in range(1, TURNS + 1):
        journal.append("turn", at, {"turn": turn})
        journal.append("tool_call", at, {"turn": turn, "toolName": "bash", "input": {"command": "ls"}})
        journal.append("tool_result", at, {"toolName": "bash", "text": "a line of output\n" * 20})
        journal.append("usage", at, {"inputTokens": 1000 * turn, "outputTokens": 10 * turn, "turns": turn})
    return {entry.name: entry.path.read_bytes() for entry in (run.events, run.log)}


def _plant(run: RunPaths, number: int, created: datetime) -> None:
    run.files.make_new()
    run.request.path.write_bytes(make_request(run.run_id, created_at=created).to_json())
    here = {"host": processes.host_name(), "boot_id": processes.boot_id()}
    meta = make_meta(run.run_id, label=f"task {number}", created_at=created, launch=here)
    worker = WorkerIdentity.model_validate({"pid": 1, "start_time": number, **here})
    run.meta.path.write_bytes(apply(meta, transitions.WorkerStarted(worker=worker), created).to_json())
