"""Ctrl-C at odd moments: amid imports, and in a finalizer, where Python drops what the handler raises."""

import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server import cli
from subagent_server.__main__ import main
from subagent_server.cli.console.app import Flags, Session
from subagent_server.cli.console.follow import watch
from subagent_server.cli.console.live_screen import LiveScreen
from subagent_server.cli.console.terminal import EarlyExit
from subagent_server.cli.logs import LogFollower
from subagent_server.run import locks
from subagent_server.run.store import RunStore
from tests.helpers.runs import RUN_ID, STARTED, start_run


class _Finalized:
    def __del__(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        assert callable(handler)
        handler(signal.SIGINT, None)  # a signal that is raised here may be handled a moment later


class Looks:
    """Looks at runs; Ctrl-C comes in the first one, and there has to be no second one."""

    def __init__(self) -> None:
        self.dropped: list[type[BaseException]] = []
        self._count = 0

    def show(self) -> None:
        """Show the runs."""
        self._count += 1
        assert self._count == 1, "Ctrl-C was lost"
        _Finalized()

    def is_last(self, _: object) -> bool:
        """Show a run, which asks nothing."""
        self.show()
        return False


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    """Looks, of which Python has dropped one KeyboardInterrupt by the end of the test."""
    made = Looks()
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: made.dropped.append(unraisable.exc_type))
    yield made
    assert made.dropped == [KeyboardInterrupt]


@pytest.fixture
def session(store: RunStore) -> Iterator[Session]:
    """A session over a root with a run that lives."""
    start_run(store, RUN_ID, STARTED)
    held = locks.take(store.paths.run(RUN_ID).live_lock)
    assert held is not None
    yield Session(Flags(runs=store.paths.root))
    os.close(held)


def test_an_interrupt_amid_the_imports_of_a_command_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert (main(), capfd.readouterr().err) == (130, "subagent: interrupted.\n")


def test_a_watch_ends_by_an_interrupt_that_a_finalizer_got(session: Session, looks: Looks) -> None:
    with pytest.raises(EarlyExit, match="only the watching has ended"):
        watch(session, looks.show)


def test_following_a_log_ends_by_an_interrupt_that_a_finalizer_got(session: Session, looks: Looks) -> None:
    with LogFollower(session) as follower, pytest.raises(KeyboardInterrupt):
        follower.add(RUN_ID, 0)
        follower.until(looks.is_last, lambda *_: None)


def test_the_screen_ends_by_an_interrupt_that_a_finalizer_got(
    session: Session, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_ids() -> list[str]:
        looks.show()
        return [RUN_ID]

    outer, inner = pty.openpty()
    with Path(os.ttyname(inner)).open("r+b", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)
        with pytest.raises(EarlyExit, match="only the watching has ended"):
            LiveScreen(session, run_ids).show()
    os.close(outer)
    os.close(inner)
