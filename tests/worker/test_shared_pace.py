"""Runs that meet a busy API spare it together: their file, and the runs themselves (SPEC section 6)."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from subagent_server.domain.states import Status
from subagent_server.host.directory import Directory
from subagent_server.host.processes import boot_id
from subagent_server.simulator import Simulator
from subagent_server.worker.shared_pace import LONGEST_GROWN_SECONDS, LONGEST_SECONDS, SharedPace
from tests.helpers.turns import Turn, says
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World

URL = "https://user:hidden@api.example.com"


def pace(root: Path, url: str = URL, key_name: str = "ANTHROPIC_API_KEY") -> SharedPace:
    """Return the pace of one more run."""
    return SharedPace(Directory(root / ".backoff"), url, key_name)


def write(root: Path, **changes: Any) -> None:
    """Write a hold of half a minute, changed."""
    facts = {"bootId": boot_id(), "until": time.monotonic() + 30, "seconds": 30.0} | changes
    path = pace(root).file.path
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(facts), encoding="utf-8")


def test_all_runs_of_one_api_and_key_wait_as_long_as_the_api_asks_for_and_not_all_the_same(
    tmp_path: Path,
) -> None:
    assert pace(tmp_path).hold() == 0
    own = pace(tmp_path).busy(40, asked=True)
    others = [pace(tmp_path).hold() for _ in range(20)]
    assert all(20 < wait <= 60 for wait in (own, *others)), "40 s, less what the test took, half more at most"
    assert len(set(others)) > 10, "they do not come back all at once"
    assert pace(tmp_path, key_name="OTHER_KEY").hold() == 0
    assert pace(tmp_path, url="http://127.0.0.1:1").hold() == 0


def test_the_file_holds_neither_address_nor_key(tmp_path: Path) -> None:
    pace(tmp_path).busy(5, asked=False)
    (file,) = (tmp_path / ".backoff").iterdir()
    assert set(json.loads(file.read_bytes())) == {"bootId", "until", "seconds"}
    assert "example" not in file.name and "KEY" not in file.name


def test_a_hold_is_never_shortened_and_no_file_makes_it_longer_than_the_longest(tmp_path: Path) -> None:
    pace(tmp_path).busy(60, asked=True)
    assert pace(tmp_path).busy(1, asked=True) > 30
    assert pace(tmp_path).busy(10_000, asked=True) <= LONGEST_SECONDS * 1.5


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
    pace(tmp_path).file.path.write_bytes(data)
    assert pace(tmp_path).hold() == 0 and pace(tmp_path).busy(5, asked=False) >= 5


def test_a_directory_that_cannot_be_written_is_logged_and_the_run_waits_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".backoff").write_text("in the way", encoding="utf-8")
    assert pace(tmp_path).busy(5, asked=True) >= 5
    assert "this run goes on" in capsys.readouterr().err
    assert pace(tmp_path).hold() == 0


BUSY: Turn = says("Never said.", fault={"status": 429, "retry_after": 100, "times": "always"})


def test_a_run_that_the_api_makes_wait_holds_the_others_back_and_stop_and_time_end_the_wait(
    world: World,
) -> None:
    world.agent()
    world.agent("hasty", timeoutSeconds=2)
    simulator = world.play(BUSY)
    first = world.start()
    wait_for(lambda: world.events(first, "warning"), BOUND, "the first run to meet a busy API")
    assert "the API limits the rate (429); trying again in 1" in world.events(first, "warning")[0]["message"]
    second, hasty = world.start(), world.start(agent="hasty")
    wait_for(lambda: world.events(second, "warning"), BOUND, "the second run to be held back")
    assert "other runs met a busy API" in world.events(second, "warning")[0]["message"]
    assert "other runs met a busy API" in world.paths(second).log.path.read_text(encoding="utf-8")
    assert world.failed(hasty)[0] == "timeout"
    assert world.stop(second).meta.status is Status.STOPPED
    world.gone(second)
    world.gone(hasty)
    assert world.stop(first).meta.status is Status.STOPPED
    assert len(simulator.requests) == 1, "the others never called"
    (file,) = (world.runs / ".backoff").iterdir()
    assert API_KEY not in file.read_text(encoding="utf-8")


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
