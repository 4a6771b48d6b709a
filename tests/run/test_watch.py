"""Listeners hear of changes in a directory; where the system refuses, nothing is raised."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from subagent_server.run import durable
from subagent_server.run.files import Entry
from subagent_server.run.watch import Watcher
from tests.helpers.processes import run_python
from tests.helpers.wait import wait_for

NO_MORE_OBSERVERS = """
    import resource, sys
    from pathlib import Path
    from subagent_server.run.watch import Watcher
    watcher = Watcher()
    before = [(kind, resource.getrlimit(kind)) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)]
    {limited}
    end = watcher.watch(Path(sys.argv[1]), print)
    observer = watcher._observer
    print("active" if observer is not None and observer.emitters else "left to the slow poll")
    end()
    watcher.close()
    for limit in before:  # for what a measured interpreter writes at its exit
        resource.setrlimit(*limit)
"""

NO_FILES = """
    used = len(__import__("os").listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[0][1][1]))"""
NO_THREADS = """
    __import__("threading").stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, before[1][1][1]))"""


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """All that have changed, in their order."""

    def __call__(self, name: str) -> None:
        self.names.append(name)

    def hears(self, wanted: str) -> None:
        """Wait until a change of `wanted` was reported."""
        wait_for(lambda: wanted in self.names, 60, f"a change of {wanted}")


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    """A watcher that is closed in the end."""
    watcher = Watcher()
    yield watcher
    watcher.close()


def test_a_listener_hears_of_a_file_that_is_made_touched_replaced_and_removed(
    watcher: Watcher, tmp_path: Path
) -> None:
    ear = Ear()
    watcher.watch(tmp_path, ear)
    path = tmp_path / "r1"
    path.touch()
    ear.hears("r1")
    changes: list[Callable[[], None]] = [
        lambda: os.utime(path),
        lambda: durable.write_durably(Entry.at(path), b"x"),
        lambda: path.unlink(),
    ]
    for change in changes:
        ear.names.clear()
        change()
        ear.hears("r1")


def test_a_listener_of_one_directory_hears_nothing_of_another(watcher: Watcher, tmp_path: Path) -> None:
    one, other = Ear(), Ear()
    for name, ear in (("a", one), ("b", other)):
        (tmp_path / name).mkdir()
        watcher.watch(tmp_path / name, ear)
    (tmp_path / "b" / "in-b").touch()
    other.hears("in-b")
    (tmp_path / "a" / "in-a").touch()
    one.hears("in-a")
    assert "in-b" not in one.names


def test_a_flat_watch_does_not_look_into_directories(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    flat, deep = Ear(), Ear()
    watcher.watch(tmp_path, flat)
    watcher.watch(tmp_path, deep, recursive=True)
    (tmp_path / "deep" / "hidden").touch()
    deep.hears("hidden")
    (tmp_path / "open").touch()
    flat.hears("open")
    assert "hidden" not in flat.names


def test_a_watch_that_has_ended_says_nothing_more_and_can_begin_again(
    watcher: Watcher, tmp_path: Path
) -> None:
    one, other = Ear(), Ear()
    end = watcher.watch(tmp_path, one)
    end()
    end()
    watcher.watch(tmp_path, other)
    (tmp_path / "first").touch()
    other.hears("first")
    assert "first" not in one.names


def test_a_directory_that_vanishes_ends_its_watch_quietly(watcher: Watcher, tmp_path: Path) -> None:
    ear = Ear()
    (tmp_path / "soon-gone").mkdir()
    end = watcher.watch(tmp_path / "soon-gone", ear)
    (tmp_path / "soon-gone").rmdir()
    end()
    watcher.watch(tmp_path, ear)
    (tmp_path / "after").touch()
    ear.hears("after")


@pytest.mark.process
@pytest.mark.parametrize("limited", [NO_FILES, NO_THREADS])
def test_where_the_system_has_no_observer_left_nothing_is_raised(tmp_path: Path, limited: str) -> None:
    done = run_python(NO_MORE_OBSERVERS.format(limited=limited), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left to the slow poll\n", "")
