"""The command in a home of its own; whatever it has started is ended with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from subagent_server.service.reconcile import observe
from subagent_server.service.stop import stop_run
from tests.cli.command import BOUND, Cli
from tests.helpers.wait import wait_for


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The command, with an empty runs root and no agents."""
    command = Cli(tmp_path)
    command.store.make_root()
    yield command
    for run_id in command.store.live_ids():
        if (command.store.paths.run(run_id).shim).exists():
            stop_run(command.store, run_id, "the test is over")
            wait_for(lambda run=run_id: not observe(command.store, run).live, BOUND, f"the end of {run_id}")
