"""Work in a process that can be killed: what it leaves, what it may touch, and with whom it dies."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run import locks, processes
from subagent_server.run.commands import WorkDied, killable
from subagent_server.run.files import Entry
from tests.helpers.processes import Child, identity_of
from tests.helpers.wait import wait_for

pytestmark = pytest.mark.process

PARENT = """
    import asyncio, os, signal
    from subagent_server.run.commands import killable

    def work():
        print(os.getpid(), flush=True)
        signal.pause()

    asyncio.run(killable(work, 600))
"""


def done(work: Callable[[], Any], seconds: float = 30) -> Any:
    return asyncio.run(killable(work, seconds))


def test_an_answer_comes_back_and_work_without_one_is_told_from_work_without_end() -> None:
    assert done(lambda: {"known": [1, None, "é"]}) == {"known": [1, None, "é"]}
    for without in (lambda: 1 / 0, lambda: os._exit(0), lambda: bytearray(2 << 30), lambda: {1, 2}):
        with pytest.raises(WorkDied):
            done(without)
    with pytest.raises(TimeoutError):
        done(lambda: signal.pause(), 0.1)


def test_the_work_holds_no_descriptor_of_its_parent_and_so_no_lock(tmp_path: Path) -> None:
    held = locks.take(Entry.at(tmp_path / "lock"))
    assert held is not None

    async def released() -> tuple[bool, Any]:
        working = asyncio.create_task(killable(signal.pause, 600))
        await asyncio.sleep(0)
        os.close(held)
        free = not locks.is_held(Entry.at(tmp_path / "lock")) or await _until_free()
        working.cancel()
        return free, await killable(lambda: len(list(Path("/proc/self/fd").iterdir())), 30)

    async def _until_free() -> bool:
        await asyncio.to_thread(
            wait_for, lambda: not locks.is_held(Entry.at(tmp_path / "lock")), 60, "the lock"
        )
        return True

    free, descriptors = asyncio.run(released())
    assert free and descriptors <= 5, "its own three, the answer's, and the one it looks with"


def test_a_signal_to_the_work_is_not_heard_by_its_parent() -> None:
    heard: list[int] = []

    async def signalled() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, 1)
        await killable(lambda: os.kill(os.getpid(), signal.SIGTERM), 30)

    with pytest.raises(WorkDied):
        asyncio.run(signalled())
    assert heard == []


def test_the_work_dies_with_its_parent() -> None:
    with Child(PARENT) as parent:
        worker = identity_of(int(parent.hear()))
        assert processes.is_alive(worker)
        parent.kill()
    wait_for(lambda: not processes.is_alive(worker), 60, "the end of the work")
