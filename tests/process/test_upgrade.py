"""Another version is installed while the program is in use: old and new never meet, and nothing is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from subagent_server.run import processes
from subagent_server.run.states import Status
from tests.helpers.installation import Installation
from tests.helpers.processes import REPOSITORY
from tests.helpers.raw_server import HELLO, READY, RawServer, tool_call
from tests.helpers.turns import asks, call, says
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import WarmPlace, forks_of
from tests.helpers.world import BOUND, World, kill


@contextmanager
def serving(world: World, installed: Installation) -> Iterator[RawServer]:
    command = [*installed.program, "serve", "--role", "parent"]
    with RawServer(command, world.environment, world.work, world.errors) as server:
        server.say(HELLO, READY)
        assert server.answer_to("hello")["result"]["serverInfo"]["version"] == installed.version
        yield server


def ordered(server: RawServer, number: int, agent: str = "worker") -> str:
    """Have a server start a run, and return its id."""
    return str(
        server.result_of(tool_call(number, f"run_{agent}", prompt="Go."))["structuredContent"]["runId"]
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation, which each test leaves whole: the first process of a version compiles for seconds."""
    return Installation(tmp_path_factory.mktemp("of") / "installed")


@contextmanager
def changed(installed: Installation, module: str, text: str) -> Iterator[None]:
    installed.add(module, text)
    yield
    installed.add(module, (REPOSITORY / "subagent_server" / module).read_text(encoding="utf-8"))


@pytest.mark.timeout(300)
def test_servers_from_before_an_upgrade_start_runs_after_it_and_those_from_after_never_meet_the_old(
    world: World, place: WarmPlace, installed: Installation
) -> None:
    world.agent()
    world.agent("asker")
    asker = {"when": {"system": "subagent asker"}, "turns": [asks("Go on?"), says("Done.")]}
    world.play(says("Done."), conversations=[asker])
    with serving(world, installed) as cold:
        old = place.zygote()
        with serving(world, installed) as warm:
            amid: list[str] = []
            installed.upgrade(lambda: amid.append(ordered(cold, 1)), part=0.75)
            with serving(world, installed) as late:
                for number, server in enumerate((late, cold, warm), start=2):
                    assert world.completed(ordered(server, number)) == "Done."
                wait_for(lambda: not processes.is_alive(old), BOUND, "the leave of the old warm process")
                new = place.zygote()
                run_id = ordered(late, 5, "asker")  # so that its processes are there to be looked at
                world.asking(run_id)
                assert forks_of(new)
                world.reply(run_id, "yes")
                assert world.completed(run_id) == "Done."
    world.judged(amid[0])
    assert world.meta(amid[0]).status in (Status.COMPLETED, Status.FAILED)


def test_a_server_whose_files_are_gone_makes_no_run_and_says_so(
    world: World, installed: Installation
) -> None:
    world.agent()
    with serving(world, installed) as server:
        order, amid = tool_call(1, "run_worker", prompt="Go."), list[dict[str, Any]]()
        installed.upgrade(lambda: amid.append(server.result_of(order)), part=0)
    assert amid[0]["isError"] and "the files of this program are gone" in amid[0]["content"][0]["text"]
    assert world.store.run_ids() == []


def test_a_run_writes_its_first_program_after_an_upgrade(world: World, installed: Installation) -> None:
    program = call("execute_python_code", code="print(6 * 7)", executionTimeout=60)
    world.agent_saying(asks("Which?"), program, says("Done."), codeMode=True)
    world.environment["SUBAGENT_WARM"] = "0"
    with serving(world, installed) as server:
        run_id = ordered(server, 1)
        world.asking(run_id)
        with changed(installed, "extensions/code_mode/inside.py", "def main(line): raise KeyError('new')"):
            world.reply(run_id, "yes")
            assert world.completed(run_id) == "Done."
    assert world.events(run_id, "tool_result")[-1]["text"] == "42"


def test_a_module_that_is_empty_while_it_is_written_never_passes_for_the_end_of_a_run(
    world: World, installed: Installation
) -> None:
    world.agent_saying(asks("Which?"))
    world.environment["SUBAGENT_WARM"] = "0"
    empty = world.home / "empty"
    with serving(world, installed) as server:
        run_id = ordered(server, 1)
        world.asking(run_id)
        with changed(installed, "worker/__main__.py", f"open({str(empty)!r}, 'w')"):
            kill(world.worker(run_id))
            wait_for(empty.exists, BOUND, "the module that does nothing")
    world.gone(run_id)
    assert world.failed(run_id)[0] == "crashed"
    assert world.events(run_id)[-1]["type"] == "run_ended"


def test_a_run_that_meets_a_file_of_another_version_says_so(world: World, installed: Installation) -> None:
    world.agent("early", codeMode=True)
    world.agent("late", runner="command", command="true", prompt="")
    cases = [  # before a run has begun, and when it begins
        ("early", "extensions/code_mode/__init__.py", "launch_failed"),
        ("late", "extensions/programs/command.py", "crashed"),
    ]
    world.environment["SUBAGENT_WARM"] = "0"
    with serving(world, installed) as server:
        for number, (agent, module, failure) in enumerate(cases):
            other = 'raise ImportError("it is of another version", name=__name__)\n'
            with changed(installed, module, other):
                run_id = ordered(server, number, agent)
                code, message = world.failed(run_id)
                assert code == failure and "as amid an upgrade: it is of another version" in message, message
                world.gone(run_id)
