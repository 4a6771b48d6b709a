"""A poke wakes who sleeps on a FIFO, and never keeps anybody waiting."""

import fcntl
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.run import wake
from subagent_server.run.files import Entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the FIFO lies."""
    return tmp_path / "wake.1"


@pytest.fixture
def sleeper(path: Path) -> Iterator[int]:
    """The descriptor on which this process sleeps."""
    descriptor = wake.open_fifo(Entry.at(path))
    yield descriptor
    os.close(descriptor)


def is_woken(descriptor: int) -> bool:
    """Whether a sleeper would wake now."""
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_poke_wakes_its_sleeper(path: Path, sleeper: int) -> None:
    assert not is_woken(sleeper)
    wake.poke(Entry.at(path))
    assert is_woken(sleeper)


def test_drained_pokes_are_forgotten_and_later_ones_wake_again(path: Path, sleeper: int) -> None:
    for _ in range(3):
        wake.poke(Entry.at(path))
    wake.drain(sleeper)
    assert not is_woken(sleeper)
    wake.drain(sleeper)
    wake.poke(Entry.at(path))
    assert is_woken(sleeper)


def test_a_sleeper_that_never_looks_does_not_hold_up_who_pokes(path: Path, sleeper: int) -> None:
    size = fcntl.fcntl(sleeper, fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(size + 1):  # the pipe is full before
        wake.poke(Entry.at(path))
    assert is_woken(sleeper)
    wake.drain(sleeper)
    assert not is_woken(sleeper)


def test_a_fifo_that_nobody_reads_any_more_is_removed(path: Path) -> None:
    os.close(wake.open_fifo(Entry.at(path)))
    wake.poke(Entry.at(path))
    assert not path.exists()


def test_an_old_fifo_is_replaced(path: Path) -> None:
    old = wake.open_fifo(Entry.at(path))
    new = wake.open_fifo(Entry.at(path))
    wake.poke(Entry.at(path))
    assert (is_woken(old), is_woken(new)) == (False, True)
    os.close(old)
    os.close(new)
