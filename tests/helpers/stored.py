"""Many runs that have ended, made quickly: the files of real runs with other ids, times, agents and figures.

`python -m tests.helpers.stored ROOT COUNT` makes them in a root.
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from subagent_server.run import processes, transitions
from subagent_server.run.journal import RunJournal
from subagent_server.run.paths import RunPaths, make_root, run_at
from subagent_server.run.records import Failure, RunMeta, RunResult, Usage, WorkerIdentity
from subagent_server.run.states import Status, make_run_id
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import apply
from tests.helpers.runs import make_meta, make_request

AGENTS = ("reviewer", "scout", "triage", "changelog")
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(seconds=37)
_SHARED = ("request.json", "result.json", "events.jsonl", "run.log", "exit.json")


def make_stored(root: Path, count: int, *, first: datetime = FIRST, step: timedelta = STEP) -> list[str]:
    """Make `count` runs that have ended, `step` apart, and return their ids, the oldest first.

    Of ten runs seven completed, two failed and one was stopped. The state of each is made by the real
    records; the files that lists do not read are copies of those of a few models.
    """
    store = RunStore(root)
    store.make_root()
    ids: list[str] = []
    with TemporaryDirectory(prefix="models-") as place:
        make_root(Path(place))
        models = [_model(run_at(Path(place, str(kind))), kind) for kind in range(3)]
        ids += [_copy(store, models, number, first + number * step) for number in range(count)]
    return ids


def _model(run: RunPaths, kind: int) -> dict[str, bytes]:
    """Make what runs of one kind share."""
    run.files.make_new()
    request = make_request("model", agent={"name": AGENTS[kind]}, created_at=FIRST)
    run.request.path.write_bytes(request.to_json())
    outcome = (Status.COMPLETED, Status.FAILED, Status.STOPPED)[kind]
    run.result.path.write_bytes(RunResult(outcome=outcome, text="All is well. " * 20).to_json())
    journal = RunJournal(run)
    journal.append("run_started", FIRST, {"agent": AGENTS[kind], "cwd": "/", "prompt": request.prompt})
    journal.append("run_ended", FIRST, {"status": outcome.value})
    run.exit.path.write_text(
        json.dumps({"workerStarted": True, "exitCode": 0, "treeGone": True}), encoding="utf-8"
    )
    return {name: (run.directory / name).read_bytes() for name in _SHARED}


def _copy(store: RunStore, models: list[dict[str, bytes]], number: int, created: datetime) -> str:
    meta = _ended(make_run_id(created, number.to_bytes(6, "big")), number, created)
    kind = {Status.COMPLETED: 0, Status.FAILED: 1}.get(meta.status, 2)
    run = store.paths.run(meta.run_id)
    run.directory.mkdir(mode=0o700)
    for name, content in models[kind].items():
        (run.directory / name).write_bytes(content)
    run.meta.path.write_bytes(meta.to_json())
    run.live_lock.touch()
    return meta.run_id


def _ended(run_id: str, number: int, created: datetime) -> RunMeta:
    """Return the state of a run after all that happened to it."""
    earlier = {"host": processes.host_name(), "boot_id": "an earlier one"}
    named = {"agent_name": AGENTS[number % len(AGENTS)], "label": f"task {number}" if number % 3 else None}
    meta = make_meta(run_id, created_at=created, launch=earlier, **named)
    worker = WorkerIdentity.model_validate({"pid": 1, "start_time": number, **earlier})
    for event in (transitions.WorkerStarted(worker=worker), _end(number)):
        created += timedelta(seconds=3 + number % 60)
        meta = apply(meta, event, created)
    return meta


def _end(number: int) -> transitions.RunEvent:
    usage = Usage(input_tokens=1_000 + number % 500, output_tokens=200, cache_read_tokens=5_000, turns=3)
    if number % 10 < 7:
        return transitions.Finished(summary="All is well.", usage=usage)
    if number % 10 < 9:
        return transitions.RunFailed(
            failure=Failure(code="max_turns", message="Too many turns."), usage=usage
        )
    return transitions.StopRequested(reason="enough", usage=usage)


if __name__ == "__main__":
    made = make_stored(Path(sys.argv[1]), int(sys.argv[2]))
    print(f"{len(made)} runs in {sys.argv[1]}")
