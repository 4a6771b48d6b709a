"""The table of runners: a second runner is one file and one row, and its runs go through every door."""

import subprocess
from typing import get_args

from subagent_server.run.agent_definition import RunnerName
from subagent_server.worker.runners import RUNNERS
from tests.helpers.installation import Installation
from tests.helpers.world import BOUND, World

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


def test_a_second_runner_is_one_file_and_one_row_and_its_run_goes_from_the_command_to_the_result(
    world: World,
) -> None:
    installed = Installation(world.home / "installed")
    installed.add("worker/echo_runner.py", ECHO)
    installed.replace("extensions/__init__.py", TABLE, TABLE + ROW)
    installed.replace("run/agent_definition.py", '"flow"]', '"flow", "echo"]')
    world.environment |= {"SUBAGENT_WARM": "0"}
    world.agent("echo", runner="echo")

    command = [*installed.program, "run", "echo", "Say it.", "--detach"]
    done = subprocess.run(
        command,
        cwd=world.work,
        env=world.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    world.asking(run_id)
    world.reply(run_id, "hello")
    assert world.completed(run_id) == "echo hello"
    world.gone(run_id)
    assert world.meta(run_id).usage.turns == 1
    kinds = [event["type"] for event in world.events(run_id)]
    assert kinds == ["run_started", "question", "reply", "run_ended"] and (world.work / "closed").exists()
