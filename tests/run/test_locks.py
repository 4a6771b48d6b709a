"""Locks on descriptors: probing disturbs nobody, handing over never unlocks, and the kernel gives back."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from subagent_server.run import locks
from subagent_server.run.files import Entry
from tests.helpers.files import open_descriptors
from tests.helpers.processes import Child

HOLD = """
    import sys
    from pathlib import Path
    from subagent_server.run.files import Entry
    from subagent_server.run import locks
    descriptor = locks.take(Entry.at(Path(sys.argv[1])))
    print("held" if descriptor is not None else "refused", flush=True)
    sys.stdin.readline()
"""
KEEP = """
    import os, sys
    print("here", flush=True)
    if sys.stdin.readline() == "close\\n":
        os.close(int(sys.argv[1]))
        print("closed", flush=True)
        sys.stdin.readline()
"""
PROBE = """
    import sys
    from pathlib import Path
    from subagent_server.run.files import Entry
    from subagent_server.run import locks
    path, seen = Path(sys.argv[1]), set()
    print("ready", flush=True)
    while not seen or not Path(sys.argv[2]).exists():
        seen.add(locks.is_held(Entry.at(path)))
    print(sorted(seen), flush=True)
"""


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Hold the lock of `path` in this process."""
    descriptor = locks.take(Entry.at(path))
    assert descriptor is not None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Where a lock file may lie; there is none yet."""
    return tmp_path / "live.lock"


def test_a_lock_that_nobody_made_is_held_by_nobody_and_a_probe_does_not_make_it(lock: Path) -> None:
    assert not locks.is_held(Entry.at(lock))
    assert not lock.exists()


def test_a_taken_lock_is_held_until_its_descriptor_is_closed(lock: Path) -> None:
    with held(lock):
        assert locks.is_held(Entry.at(lock))
        assert locks.take(Entry.at(lock)) is None
    assert not locks.is_held(Entry.at(lock))
    with held(lock):
        assert locks.is_held(Entry.at(lock))


def test_a_refused_taker_leaves_no_descriptor_open(lock: Path) -> None:
    with held(lock):
        before = open_descriptors()
        assert [locks.take(Entry.at(lock)) for _ in range(20)] == [None] * 20
        assert [locks.is_held(Entry.at(lock)) for _ in range(20)] == [True] * 20
        assert open_descriptors() == before


def test_a_disk_without_locks_leaves_no_descriptor_open(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    file = Entry.at(lock)
    assert not locks.is_held(file)
    before = open_descriptors()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="locks"):
        locks.take(file)
    assert open_descriptors() == before


def test_giving_back_unlocks_for_every_copy(lock: Path) -> None:
    descriptor = locks.take(Entry.at(lock))
    assert descriptor is not None
    copy = os.dup(descriptor)
    locks.give_back(descriptor)
    assert not locks.is_held(Entry.at(lock))
    os.close(copy)


@pytest.mark.process
def test_a_holder_that_is_killed_gives_the_lock_back(lock: Path) -> None:
    with Child(HOLD, lock) as holder:
        assert holder.hear() == "held"
        assert locks.is_held(Entry.at(lock))
        holder.kill()
        assert not locks.is_held(Entry.at(lock))


@pytest.mark.process
@pytest.mark.race
def test_probes_of_several_processes_never_take_each_other_for_holders(lock: Path, tmp_path: Path) -> None:
    os.close(locks.open_lock(Entry.at(lock)))
    enough = tmp_path / "enough"
    with Child(PROBE, lock, enough) as one, Child(PROBE, lock, enough) as other:
        assert [one.hear(), other.hear()] == ["ready", "ready"]
        assert not any(locks.is_held(Entry.at(lock)) for _ in range(3000))
        enough.touch()
        assert [one.hear(), other.hear()] == ["[False]", "[False]"]


@pytest.mark.process
def test_a_taker_is_never_refused_because_somebody_probes(lock: Path, tmp_path: Path) -> None:
    os.close(locks.open_lock(Entry.at(lock)))
    enough = tmp_path / "enough"
    with Child(PROBE, lock, enough) as one, Child(PROBE, lock, enough) as other:
        assert [one.hear(), other.hear()] == ["ready", "ready"]
        for _ in range(3000):
            descriptor = locks.take(Entry.at(lock))
            assert descriptor is not None
            os.close(descriptor)
        enough.touch()


@pytest.mark.process
@pytest.mark.race
def test_of_several_takers_exactly_one_gets_the_lock(lock: Path) -> None:
    for _ in range(3):
        with Child(HOLD, lock) as one, Child(HOLD, lock) as other:
            assert sorted([one.hear(), other.hear()]) == ["held", "refused"]


@pytest.mark.process
def test_a_lock_that_was_handed_over_lives_on_with_the_heir(lock: Path) -> None:
    descriptor = locks.take(Entry.at(lock))
    assert descriptor is not None
    with Child(KEEP, descriptor, pass_fds=[descriptor]) as heir:
        heir.hear()
        os.close(descriptor)
        assert locks.is_held(Entry.at(lock))
        assert locks.take(Entry.at(lock)) is None
        heir.tell("close")
        assert heir.hear() == "closed"
        assert not locks.is_held(Entry.at(lock))


@pytest.mark.process
def test_a_child_that_execs_does_not_inherit_a_lock_that_it_was_not_given(lock: Path) -> None:
    descriptor = locks.take(Entry.at(lock))
    assert descriptor is not None
    with Child(KEEP, 0) as stranger:
        stranger.hear()
        os.close(descriptor)
        assert not locks.is_held(Entry.at(lock))


@pytest.mark.process
def test_who_waits_for_a_lock_goes_on_when_it_falls(lock: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from subagent_server.run import locks
        from subagent_server.run.files import Entry
        print("waiting", flush=True)
        locks.wait_until_free(Entry.at(Path(sys.argv[1])))
        print("free", flush=True)
        sys.stdin.readline()
    """
    with Child(HOLD, lock) as holder:
        assert holder.hear() == "held"
        with Child(code, lock) as waiter:
            assert waiter.hear() == "waiting"
            holder.kill()
            assert waiter.hear() == "free"
            assert not locks.is_held(Entry.at(lock))


def test_waiting_for_a_lock_that_is_not_there_is_over_at_once(lock: Path) -> None:
    locks.wait_until_free(Entry.at(lock))
    locks.wait_while_held(Entry.at(lock))
    assert not lock.exists()


@pytest.mark.process
def test_a_bounded_wait_ends_whoever_holds_the_lock_and_whatever_is_planted(lock: Path) -> None:
    with Child(HOLD, lock) as holder:
        assert holder.hear() == "held"
        locks.wait_while_held(Entry.at(lock), 0.05)
        assert locks.is_held(Entry.at(lock))
    lock.unlink()
    lock.mkdir()
    locks.wait_while_held(Entry.at(lock))
