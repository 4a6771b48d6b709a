"""The cases of reconciliation: their order, and that lists and views see the same of a run."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run import locks, processes, transitions
from subagent_server.run.errors import UnreadableMeta
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import LaunchInfo, RunResult
from subagent_server.run.states import SCHEMA_VERSION, Status
from subagent_server.run.store import RunStore
from subagent_server.settings import read_settings
from subagent_server.verbs.list_runs import list_runs
from subagent_server.verbs.page_data import conversation
from subagent_server.verbs.reconcile import is_over, observe
from subagent_server.verbs.service import Service, open_service
from tests.helpers.runs import RUN_ID, STARTED, start_run
from tests.helpers.truth import check_status

ELSEWHERE = LaunchInfo(kind="local", host="another-host", boot_id="boot")
STOPPED = transitions.StopRequested(reason="enough")
Held = list[int]


@pytest.fixture
def held() -> Iterator[Held]:
    """The locks that a test holds."""
    descriptors: Held = []
    yield descriptors
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def made(root: Path, *happened: transitions.RunEvent, launch: LaunchInfo | None = None) -> RunPaths:
    """Make a run under `root`, and return its files."""
    store = RunStore(root)
    start_run(store, RUN_ID, *happened, launch=launch)
    return store.paths.run(RUN_ID)


def hold(run: RunPaths, held: Held) -> None:
    """Hold the lock of a run, as its shim does."""
    descriptor = locks.take(run.live_lock)
    assert descriptor is not None
    held.append(descriptor)


def record_exit(run: RunPaths, **more: object) -> None:
    """Record the end of the worker, as its shim does."""
    run.exit.path.write_text(json.dumps({"workerStarted": True, "exitCode": 0, **more}), encoding="utf-8")


def leave_result(run: RunPaths) -> None:
    """Leave a result, as a worker does that dies before the state has it."""
    result = RunResult(outcome=Status.COMPLETED, text="Done.", summary="Done.")
    run.result.path.write_bytes(result.to_json())


def lives(root: Path, held: Held) -> None:
    hold(made(root, STARTED), held)


def lives_without_its_mark(root: Path, held: Held) -> None:
    hold(made(root, STARTED), held)
    (root / ".changes" / RUN_ID).unlink()


def dead(root: Path, held: Held) -> None:
    made(root, STARTED)


def crashed(root: Path, held: Held) -> None:
    run = made(root, STARTED)
    hold(run, held)
    record_exit(run)


def left_its_result(root: Path, held: Held) -> None:
    run = made(root, STARTED)
    hold(run, held)
    leave_result(run)


def ended(root: Path, held: Held) -> None:
    record_exit(made(root, STARTED, STOPPED), treeGone=True)


def ended_and_being_swept(root: Path, held: Held) -> None:
    hold(made(root, STARTED, STOPPED), held)


def ended_without_its_shim(root: Path, held: Held) -> None:
    made(root, STARTED, STOPPED)


def runs_elsewhere(root: Path, held: Held) -> None:
    hold(made(root, STARTED, launch=ELSEWHERE), held)


def newer(root: Path, held: Held) -> None:
    run = made(root, STARTED)
    hold(run, held)
    state = json.loads(run.meta.path.read_bytes())
    run.meta.path.write_text(json.dumps({**state, "schemaVersion": SCHEMA_VERSION + 1}), encoding="utf-8")


SCENES = [
    *(lives, lives_without_its_mark, dead, crashed, left_its_result),
    *(ended, ended_and_being_swept, ended_without_its_shim, runs_elsewhere, newer),
]
EXPECTED: dict[str, tuple[str, bool | None]] = {
    "lives": ("running", True),
    "lives_without_its_mark": ("running", True),
    "dead": ("failed", False),
    "crashed": ("failed", True),
    "left_its_result": ("completed", True),
    "ended": ("stopped", False),
    "ended_and_being_swept": ("stopped", True),
    "ended_without_its_shim": ("stopped", False),
    "runs_elsewhere": ("running", None),
    "newer": ("running", True),
}


@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
def test_a_list_and_a_view_say_the_same_of_a_run_in_either_order(
    tmp_path: Path, held: Held, scene: Callable[[Path, Held], None]
) -> None:
    for first in ("list", "view"):
        (tmp_path / first).mkdir()
        service = open_service(read_settings(environment={}, cwd=tmp_path / first), LocalLauncher())
        scene(service.settings.runs_root, held)
        seen = [listed(service), viewed(service)] if first == "list" else [viewed(service), listed(service)]
        assert seen == [EXPECTED[scene.__name__]] * 2


def listed(service: Service) -> tuple[str, bool | None]:
    """Return status and liveness of the run by the list."""
    (row,) = list_runs(service.store).rows
    assert row.status is not None, row.unreadable
    return row.status.value, row.live


def viewed(service: Service) -> tuple[str, bool | None]:
    """Return status and liveness of the run by its view."""
    view = check_status(service, RUN_ID)
    return view.status.value, view.live


def test_a_run_whose_mark_was_left_is_not_over_and_the_next_list_takes_the_mark_away(
    tmp_path: Path, held: Held
) -> None:
    service = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    ended(service.settings.runs_root, held)
    run = service.store.paths.run(RUN_ID)
    assert is_over(run, Status.STOPPED, is_marked=False)
    assert not is_over(run, Status.STOPPED, is_marked=True)
    assert service.store.live_ids() == [RUN_ID]
    assert listed(service) == ("stopped", False) and service.store.live_ids() == []


def test_a_lost_run_keeps_no_file_that_only_a_live_one_needs(tmp_path: Path, held: Held) -> None:
    service = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    run = made(service.settings.runs_root, STARTED)
    for left in (run.spare, run.sealed, run.beat):
        left.path.write_bytes(b"x")
    os.mkfifo(run.wake(1 << 22).path)
    (run.directory / f".result.json.{processes.host_tag()}.{1 << 22}.0a0a.tmp").touch()
    assert viewed(service) == ("failed", False)
    kept = {"request.json", "run.meta.json", "run.meta.lock", "live.lock"}
    assert {*run.files.names()} <= kept | {"events.jsonl", "run.log", "exit.json"}
    assert service.store.live_ids() == []


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("No room.", "The run's worker never started. No room."),
        ({"a": 1}, "The run's worker never started: its process ended before."),
        ("\x1b[31mNo.", "The run's worker never started. \\x1b[31mNo."),
        ("x" * 100_000, "The run's worker never started: its process ended before."),
    ],
    ids=["a sentence", "no text", "an escape", "a flood"],
)
def test_why_a_worker_never_started_is_data(tmp_path: Path, reason: object, message: str) -> None:
    record_exit(made(tmp_path), workerStarted=False, reason=reason)
    failure = observe(RunStore(tmp_path), RUN_ID).meta.error
    assert failure is not None and failure.message == message


def test_a_result_that_cannot_be_read_is_a_warning_of_its_run(tmp_path: Path) -> None:
    service = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    run = made(service.settings.runs_root, STARTED, transitions.Finished(summary="Done."))
    run.result.path.write_text("{", encoding="utf-8")
    view = check_status(service, RUN_ID)
    assert (view.status, view.summary) == ("completed", "Done.")
    assert view.warnings is not None and "result.json" in view.warnings[0]


def test_a_conversation_that_is_no_file_is_unreadable(tmp_path: Path) -> None:
    service = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    made(service.settings.runs_root, STARTED).transcript.path.mkdir()
    with pytest.raises(UnreadableMeta, match=r"transcript\.jsonl: it is a directory"):
        conversation(service, RUN_ID, 10)
