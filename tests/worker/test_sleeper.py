"""Who sleeps is woken by a poke, or with all others at the slow poll."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from subagent_server.run import wake
from subagent_server.run.files import Entry
from subagent_server.worker.worker_run import Sleeper

FOREVER = 3_600.0
BOUND = 60.0


@asynccontextmanager
async def sleeping(fifo: Path) -> AsyncIterator[Sleeper]:
    """A sleeper, which is closed at the end."""
    sleeper = Sleeper(Entry.at(fifo))
    try:
        yield sleeper
    finally:
        sleeper.close()


async def asleep(sleeper: Sleeper, number: int) -> list[asyncio.Task[None]]:
    """Return tasks that fell asleep one after the other and sleep still, all of them."""
    tasks: list[asyncio.Task[None]] = []
    while not tasks or any(
        task.done() for task in tasks
    ):  # a machine may be so slow that some wake meanwhile
        tasks = []
        for _ in range(number):
            tasks.append(asyncio.create_task(sleeper.sleep(FOREVER)))
            await sleeper.sleep(0.05)
    return tasks


async def woken(tasks: list[asyncio.Task[None]]) -> int:
    """Return how many sleep no more when the first of them wakes."""
    done, _ = await asyncio.wait(tasks, timeout=BOUND, return_when=asyncio.FIRST_COMPLETED)
    return len(done)


@pytest.mark.race
def test_all_are_woken_together_by_a_poke(tmp_path: Path) -> None:
    async def play() -> int:
        async with sleeping(tmp_path / "wake.1") as sleeper:
            tasks = await asleep(sleeper, 3)
            wake.poke(Entry.at(tmp_path / "wake.1"))
            return await woken(tasks)

    assert asyncio.run(play()) == 3


@pytest.mark.race
def test_all_are_woken_together_by_the_slow_poll_whenever_they_fell_asleep(tmp_path: Path) -> None:
    async def play() -> list[int]:
        async with sleeping(tmp_path / "wake.1") as sleeper:
            return [await woken(await asleep(sleeper, 3)), await woken(await asleep(sleeper, 2))]

    assert asyncio.run(play()) == [3, 2]


def test_a_sleep_that_is_to_be_shorter_ends_alone(tmp_path: Path) -> None:
    async def play() -> None:
        async with sleeping(tmp_path / "wake.1") as sleeper:
            for seconds in (0.0, -1.0):
                (other,) = await asleep(sleeper, 1)
                brief = asyncio.create_task(sleeper.sleep(seconds))
                done, _ = await asyncio.wait(
                    [other, brief], timeout=BOUND, return_when=asyncio.FIRST_COMPLETED
                )
                assert brief in done

    asyncio.run(play())


def test_the_end_of_a_sleeper_leaves_nobody_asleep_and_no_file(tmp_path: Path) -> None:
    async def play() -> int:
        async with sleeping(tmp_path / "wake.1") as sleeper:
            tasks = await asleep(sleeper, 2)
        return await woken(tasks)

    assert asyncio.run(play()) == 2
    assert not list(tmp_path.iterdir())


def test_without_a_fifo_the_slow_poll_wakes_all(tmp_path: Path) -> None:
    (tmp_path / "wake.1").mkdir()  # nothing can be made under this name, as on a file system without FIFOs

    async def play() -> int:
        async with sleeping(tmp_path / "wake.1") as sleeper:
            tasks = await asleep(sleeper, 2)
            wake.poke(Entry.at(tmp_path / "wake.1"))
            return await woken(tasks)

    assert asyncio.run(play()) == 2
