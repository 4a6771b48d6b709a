"""Fixtures that tests of several rooms share, and the processes that a session shares."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from subagent_server.run.store import RunStore
from tests.helpers import warm
from tests.helpers.api_checks import check_strictly
from tests.helpers.forking import ADDRESS, Forker
from tests.helpers.starter import forget_starter
from tests.helpers.world import World

_WARM = pytest.StashKey[Path]()
_FORKER = pytest.StashKey[Forker]()


def pytest_configure(config: pytest.Config) -> None:
    """Set the process up, and name the directory of the zygote: workers get it with their environment."""
    forget_starter()
    check_strictly()
    settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")  # a busy machine is slow: that is not a fault of an example
    if not hasattr(config, "workerinput"):
        config.stash[_WARM] = warm.begin()
        config.stash[_FORKER] = Forker(config.stash[_WARM])
        os.environ[ADDRESS] = config.stash[_FORKER].address
        if config.getoption("numprocesses", None):  # else the first run has it started, and starts plainly
            warm.spawn(config.stash[_WARM])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes of the session: the one that forks commands, and the zygote if there is one."""
    if _FORKER in config.stash:
        config.stash[_FORKER].close()
    if _WARM in config.stash:
        warm.end(config.stash[_WARM])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among what is imported and collected: nothing of it is, now or later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, which have a timeout of their own: at the end the others would wait."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


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
