"""One writer at a time, across threads and processes, with a bound."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from subagent_server.run.errors import LockTimeout, StorageFailed
from subagent_server.run.files import Entry
from subagent_server.run.locks import exclusive
from tests.helpers.processes import Child

HOLD = """
    import sys
    from pathlib import Path
    from subagent_server.run.files import Entry
    from subagent_server.run.locks import exclusive
    with exclusive(Entry.at(Path(sys.argv[1]))):
        print("held", flush=True)
        sys.stdin.readline()
"""


def test_threads_of_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    lock = Entry.at(tmp_path / "lock")

    def is_kept_out() -> bool:
        try:
            with exclusive(lock, timeout=0.05):
                return False
        except LockTimeout:
            return True

    with ThreadPoolExecutor(1) as other:
        with exclusive(lock):
            assert other.submit(is_kept_out).result(60)
        assert not other.submit(is_kept_out).result(60)


@pytest.mark.process
def test_who_waits_too_long_is_told_so_and_disturbs_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "run.meta.lock"
    with Child(HOLD, lock) as holder:
        assert holder.hear() == "held"
        for seconds in (0.1, 0.05):
            told = rf"run\.meta\.lock was held by another process for {seconds} s: try again"
            with pytest.raises(LockTimeout, match=told), exclusive(Entry.at(lock), timeout=seconds):
                pass


def test_a_long_wait_looks_less_often(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = Entry.at(tmp_path / "lock")
    caplog.set_level("DEBUG", "filelock")
    with exclusive(lock), ThreadPoolExecutor(1) as other:
        caplog.clear()
        with pytest.raises(LockTimeout):
            other.submit(lambda: exclusive(lock, timeout=1.5).__enter__()).result(60)
    looks = [line for line in caplog.messages if line.startswith("Attempting")]
    assert 1 < len(looks) < 110  # 300, were all of them 5 ms apart


def test_a_program_that_takes_the_lock_by_the_library_keeps_out_and_is_kept_out(tmp_path: Path) -> None:
    lock, by_library = tmp_path / "lock", FileLock(tmp_path / "lock")
    with by_library, pytest.raises(LockTimeout), exclusive(Entry.at(lock), timeout=0.05):
        pass
    with exclusive(Entry.at(lock), timeout=1), pytest.raises(TimeoutError):
        by_library.acquire(timeout=0.05)


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(Entry.at(tmp_path / "lock")):
        raise ZeroDivisionError
    with exclusive(Entry.at(tmp_path / "lock"), timeout=1):
        pass


def test_a_directory_that_is_not_there_is_not_made_for_a_lock(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed), exclusive(Entry.at(tmp_path / "gone" / "lock")):
        pass
    assert list(tmp_path.iterdir()) == []
