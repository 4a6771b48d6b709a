"""Fixtures that tests of several rooms share, and the processes that a session shares."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from subagent_server.run.store import RunStore
from tests.helpers import forked, warm
from tests.helpers.api_checks import check_strictly
from tests.helpers.starter import forget_starter
from tests.helpers.world import World

_WARM = pytest.StashKey[Path]()
_TESTS = Path(__file__).parent
_PROCESS_FOLDERS = frozenset(
    (
        *("browser", "clients", "end_to_end", "faults", "hosts", "http", "nodes", "page", "process"),
        *("programs", "sandbox", "soak", "worktrees"),
    )
)
_PROCESS_FIXTURES = frozenset(("cli", "world"))
_NOT_FAST = ("process", "npm", "install")
_is_refused = False
_STARTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"))


def pytest_configure(config: pytest.Config) -> None:
    """Set the process up, and name the directory of the zygote: workers get it with their environment."""
    forget_starter()
    check_strictly()
    # else the signing, hooks and filters of whoever runs the tests would be at work in their repositories
    os.environ.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    os.environ["LANG"] = "C.UTF-8"  # that of all worlds: forks of one zygote have one
    for name in ("LC_ALL", "LC_CTYPE"):
        os.environ.pop(name, None)
    settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")  # a busy machine is slow: that is not a fault of an example
    is_fast, has_workers = "not process" in config.option.markexpr, config.getoption("numprocesses", None)
    sys.addaudithook(_refuse_processes)
    if not hasattr(config, "workerinput"):
        config.stash[_WARM] = warm.begin()
        if has_workers and not is_fast:  # else the first run has it started, and starts plainly
            warm.spawn(config.stash[_WARM])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the zygote of the session, if there is one."""
    if _WARM in config.stash:
        warm.end(config.stash[_WARM])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Look for no garbage among what is imported and collected: nothing of it is, now or later."""
    gc.disable()
    config = session.config
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if runs_tests and "not process" not in config.option.markexpr:
        forked.import_everything()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that may start processes, by folder or fixture; begin with those that take longest.

    These have a timeout of their own: at the end all others would wait for them.
    """
    for item in items:
        folders = Path(item.path).relative_to(_TESTS).parts[:-1]
        fixtures: Sequence[str] = getattr(item, "fixturenames", ())
        if (
            not folders
            or not _PROCESS_FOLDERS.isdisjoint(folders)
            or not _PROCESS_FIXTURES.isdisjoint(fixtures)
        ):
            item.add_marker("process")
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let no test start a process that `make test-fast` would run."""
    global _is_refused
    _is_refused = not any(map(item.get_closest_marker, _NOT_FAST))
    try:
        return (yield)
    finally:
        _is_refused = False


def _refuse_processes(event: str, _: tuple[object, ...]) -> None:
    if _is_refused and event in _STARTS:
        raise RuntimeError(f"{event} in a test without the mark `process`, which `make test-fast` runs")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty runs root of its own, made already."""
    runs = RunStore(tmp_path / "runs")
    runs.make_root()
    return runs


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world of its own; what is left of it is stopped and checked when the test is over."""
    made = World(tmp_path)
    yield made
    made.close()
