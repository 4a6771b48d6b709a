"""The command in a home of its own; whatever it has started is ended with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import BOUND, Cli
from tests.helpers.wait import wait_for


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The command, with an empty runs root and no agents, in a directory that is trusted."""
    command = Cli(tmp_path)
    command.store.make_root()
    command.trust()
    yield command
    paths = command.store.paths
    if left := [run_id for run_id in command.store.live_ids() if paths.run(run_id).shim_claim.exists()]:
        wait_for(lambda: command("stop", *left).returncode == 0, BOUND, "the end of what was started")
