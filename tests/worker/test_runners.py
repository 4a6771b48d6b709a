"""The table of runners: a second runner is one file and one row, and its runs go through every door."""

from typing import get_args

from subagent_server.run.agent_definition import RunnerName
from subagent_server.worker.runners import RUNNERS

ECHO = '''
from pathlib import Path

from subagent_server.run.records import Failure, Usage
from subagent_server.loop.runner import Outcome
from subagent_server.worker.runners import RunnerSetup


class EchoRunner:
    """Asks the parent, and ends with the answer."""

    def __init__(self, setup: RunnerSetup) -> None:
        self.setup, self.usage = setup, Usage(turns=1)

    async def work(self) -> Outcome:
        run = self.setup.run
        self.setup.record_start(run.store.read_request(run.run_id), sandbox="none")
        reply = await self.setup.run.ask("Which word?", None)
        return Outcome(f"echo {reply.answer}")

    def cut_short(self, failure: Failure) -> Outcome:
        return Outcome("", failure=failure)

    async def stop_programs(self) -> None:
        pass

    async def aclose(self) -> None:
        Path("closed").touch()


async def open_runner(setup: RunnerSetup) -> EchoRunner:
    return EchoRunner(setup)
'''
TABLE = "EXTENSIONS: Mapping[str, Extension] = {\n"
ROW = '    "echo": Extension(runners={"echo": "subagent_server.worker.echo_runner:open_runner"}),\n'


def test_every_built_runner_has_a_row_and_a_name_that_agent_files_may_use() -> None:
    assert set(RUNNERS) == set(get_args(RunnerName))
