"""Runs that meet a busy API spare it together: their file, and the runs themselves (SPEC section 6)."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from subagent_server.extensions.simulator import Simulator
from subagent_server.run import locks
from subagent_server.run.agent_definition import Limits
from subagent_server.run.files import Directory, Entry
from subagent_server.run.processes import DeadlineReader, boot_id
from subagent_server.run.states import Status
from subagent_server.toolbox.run_context import LONGEST_WAIT_SECONDS
from subagent_server.worker.messages_runner import LONGEST_GROWN_SECONDS, LONGEST_SECONDS, SharedPace
from subagent_server.worker.worker_run import WorkerRun
from tests.helpers.turns import Turn, says
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World

URL = "https://user:hidden@api.example.com"


KEY = "sk-ant-of-this-parent"


def pace(root: Path, url: str = URL, key: str = KEY) -> SharedPace:
    root.mkdir(exist_ok=True)
    return SharedPace(Directory(root / ".backoff"), url, key)


def file_of(root: Path) -> Path:
    (file,) = (root / ".backoff").glob("*.json")
    return file


def write(root: Path, **changes: Any) -> None:
    """Write a hold of half a minute, changed."""
    facts = {"bootId": boot_id(), "until": time.monotonic() + 30, "seconds": 30.0} | changes
    pace(root).busy(0, asked=True)
    file_of(root).write_text(json.dumps(facts), encoding="utf-8")


def test_all_runs_of_one_api_and_key_wait_as_long_as_the_api_asks_for_and_not_all_the_same(
    tmp_path: Path,
) -> None:
    assert pace(tmp_path).hold() == 0
    own = pace(tmp_path).busy(40, asked=True)
    others = [pace(tmp_path).hold() for _ in range(20)]
    assert all(20 < wait <= 60 for wait in (own, *others)), "40 s, less what the test took, half more at most"
    assert len(set(others)) > 10, "they do not come back all at once"
    assert pace(tmp_path, key="sk-ant-of-another-parent").hold() == 0
    assert pace(tmp_path, url="http://127.0.0.1:1").hold() == 0


def test_no_file_holds_the_address_or_the_key_or_a_digest_that_another_root_has(tmp_path: Path) -> None:
    for root in (tmp_path / "one", tmp_path / "other"):
        pace(root).busy(5, asked=False)
        assert set(json.loads(file_of(root).read_bytes())) == {"bootId", "until", "seconds"}
        for file in (root / ".backoff").iterdir():
            assert file.stat().st_mode & 0o777 == 0o600
            assert b"example" not in file.read_bytes() and KEY.encode() not in file.read_bytes()
    assert file_of(tmp_path / "one").name != file_of(tmp_path / "other").name


def test_a_hold_is_never_shortened_and_no_file_makes_it_longer_than_the_longest(tmp_path: Path) -> None:
    pace(tmp_path).busy(60, asked=True)
    assert pace(tmp_path).busy(1, asked=True) > 30
    for asked in (10_000, 1e308, math.inf, 600, 599, 500, 400):
        waits = [pace(tmp_path / str(asked)).busy(asked, asked=True) for _ in range(50)]
        waits += [pace(tmp_path / str(asked)).hold() for _ in range(50)]
        assert max(waits) <= LONGEST_WAIT_SECONDS and min(waits) >= min(asked, LONGEST_SECONDS) - 10


def test_an_api_that_is_still_busy_after_a_hold_is_spared_twice_as_long_by_all_runs(tmp_path: Path) -> None:
    write(tmp_path, until=time.monotonic() - 1, seconds=8)
    assert pace(tmp_path).hold() == 0
    assert 16 <= pace(tmp_path).busy(0.5, asked=False) <= 24
    write(tmp_path, until=time.monotonic() - 1, seconds=100)
    assert pace(tmp_path).busy(0.5, asked=False) <= LONGEST_GROWN_SECONDS * 1.5
    write(tmp_path, until=time.monotonic() - 1, seconds=8)
    assert pace(tmp_path).busy(2, asked=True) < 8, "a wait that the API names is not made longer"
    write(tmp_path, until=time.monotonic() - 100, seconds=8)
    assert pace(tmp_path).busy(0.5, asked=False) < 8, "that was long ago"


@pytest.mark.parametrize(
    "changes",
    [
        {"bootId": "another-boot"},
        {"until": 1e15},
        {"until": -1e9},
        {"until": "soon"},
        {"until": float("nan")},
        {"until": True},
        {"seconds": 0},
        {"seconds": 1e6},
        {"seconds": None},
    ],
    ids=str,
)
def test_a_file_of_another_clock_or_out_of_bounds_holds_no_run_back(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    write(tmp_path)
    assert pace(tmp_path).hold() > 0
    write(tmp_path, **changes)
    assert pace(tmp_path).hold() == 0
    assert pace(tmp_path).busy(5, asked=False) < 10, "and is replaced"
    assert pace(tmp_path).hold() > 0


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"until": 1}'], ids=repr)
def test_a_torn_file_holds_no_run_back(tmp_path: Path, data: bytes) -> None:
    write(tmp_path)
    file_of(tmp_path).write_bytes(data)
    assert pace(tmp_path).hold() == 0 and pace(tmp_path).busy(5, asked=False) >= 5


def test_a_directory_that_cannot_be_written_is_logged_and_the_run_waits_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".backoff").write_text("in the way", encoding="utf-8")
    assert pace(tmp_path).busy(5, asked=True) >= 5
    assert "this run continues" in capsys.readouterr().err
    assert pace(tmp_path).hold() == 0


BUSY: Turn = says("Never said.", fault={"status": 429, "retry_after": 100, "times": "always"})


def test_a_run_that_the_api_makes_wait_holds_the_others_back_and_stop_ends_the_wait(world: World) -> None:
    simulator = world.agent_saying(BUSY)
    first = world.start()
    wait_for(lambda: world.events(first, "warning"), BOUND, "the first run to meet a busy API")
    assert "the API limits the rate (429); trying again in 1" in world.events(first, "warning")[0]["message"]
    second = world.start()
    wait_for(lambda: world.events(second, "warning"), BOUND, "the second run to be held back")
    assert "other runs met a busy API" in world.events(second, "warning")[0]["message"]
    assert "other runs met a busy API" in world.paths(second).log.path.read_text(encoding="utf-8")
    assert world.stop(second).meta.status is Status.STOPPED
    world.gone(second)
    assert world.stop(first).meta.status is Status.STOPPED
    assert len(simulator.requests) == 1, "the other never called"
    assert all(API_KEY.encode() not in file.read_bytes() for file in (world.runs / ".backoff").iterdir())


def test_the_wait_for_a_busy_api_is_no_working_time_of_any_run(world: World) -> None:
    world.agent_saying(says("Done.", fault={"status": 429, "retry_after": 7}), timeoutSeconds=6)
    first = world.start()
    wait_for(lambda: world.events(first, "warning"), BOUND, "the first run to meet a busy API")
    second = world.start()
    assert world.completed(first) == world.completed(second) == "Done."
    assert world.events(second, "warning"), "it was held back"


def test_the_shim_ends_no_worker_that_waits_for_a_busy_api_and_its_slot_stays_its_own(
    tmp_path: Path,
) -> None:
    deadline, slot = DeadlineReader(), locks.take(Entry.at(tmp_path / "slot"))
    assert slot is not None
    run = WorkerRun(tmp_path / "20261122-093015-417-k3f9qz", [slot], deadline.writer)
    run.limit(Limits(timeout_seconds=60))
    with run.clock.working():
        assert deadline.seconds_left() < 60
        with run.clock.pausing(time.monotonic() + 100):
            assert deadline.seconds_left() > 90
            assert locks.is_held(Entry.at(tmp_path / "slot"))
        assert deadline.seconds_left() < 60
        with run.clock.waiting():
            assert not locks.is_held(Entry.at(tmp_path / "slot")), "as when it waits for its parent"


def test_runs_go_on_by_themselves_when_the_hold_is_over(world: World) -> None:
    world.agent()
    seen: list[Any] = []

    def answer(body: dict[str, Any]) -> Turn:
        seen.append(body)
        return says("Done.", fault={"status": 529, "retry_after": 1} if len(seen) == 1 else [])

    with Simulator(answer) as simulator:
        world.environment["ANTHROPIC_BASE_URL"] = simulator.base_url
        runs = [world.start() for _ in range(3)]
        assert [world.completed(run_id) for run_id in runs] == ["Done."] * 3
        assert len(simulator.requests) == 4
    warnings = [event["message"] for run_id in runs for event in world.events(run_id, "warning")]
    assert any("overloaded (529)" in message for message in warnings)
