"""The table of runners has the names that agent files may use."""

from typing import get_args

from subagent_server.run.agent_definition import RunnerName
from subagent_server.worker.runners import RUNNERS


def test_every_built_runner_has_a_row_and_a_name_that_agent_files_may_use() -> None:
    assert set(RUNNERS) == set(get_args(RunnerName))
