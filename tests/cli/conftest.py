"""The command in a home of its own, whose runs are stopped at the end of the test."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from subagent_server.extensions.simulator import Simulator
from tests.cli.command import BOUND, Cli, Model
from tests.helpers.turns import Turn
from tests.helpers.wait import wait_for

_HOMES_OF_CLIENTS = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME")


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


@pytest.fixture
def model(cli: Cli) -> Iterator[Model]:
    """Give the command an agent `worker` and a model with these turns."""
    cli.agent("worker")
    with ExitStack() as stack:

        def speak(*turns: Turn) -> Simulator:
            simulator = stack.enter_context(Simulator({"turns": list(turns)}))
            cli.environment |= {"ANTHROPIC_BASE_URL": simulator.base_url, "ANTHROPIC_API_KEY": "scripted"}
            return simulator

        yield speak


@pytest.fixture
def home(cli: Cli) -> Path:
    """The home directory of the command, which knows none of the usual variables."""
    home = cli.home / "home"
    home.mkdir()
    kept = {name: value for name, value in cli.environment.items() if name not in _HOMES_OF_CLIENTS}
    cli.environment = {**kept, "HOME": str(home)}
    return home
