"""A run says what it leaves that other programs execute, however it ends."""

import pytest

from subagent_server.service.next_calls import AS_TOOLS
from subagent_server.service.views import run_view
from tests.helpers.repositories import make_repository
from tests.helpers.turns import says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill

HOOK = ".git/hooks/pre-commit"


@pytest.mark.parametrize("late", [False, True])
def test_what_a_run_has_left_that_can_run_code_is_in_its_result_and_its_view(
    world: World, late: bool
) -> None:
    make_repository(world.work)
    world.agent(tools="Bash")
    job = f"while [ -d .git ]; do echo x > {HOOK}; done &" if late else ""
    world.play(
        shell(f"{job} mkdir -p 'sub\n\x1b[31m/.vscode'; echo x > {HOOK}"),
        says("Done."),
    )
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    left = [HOOK, "sub\ufffd\ufffd[31m/.vscode/"]
    assert world.result(run_id).can_run_code == left
    (warning,) = run_view(world.store, world.look(run_id), AS_TOOLS).warnings or []
    assert HOOK in warning and "\x1b" not in warning and "before you use git" in warning
    assert world.events(run_id, "warning")[-1]["canRunCode"] == left


def test_a_run_that_leaves_nothing_of_the_kind_says_nothing(world: World) -> None:
    make_repository(world.work)
    world.agent(tools="Bash")
    world.play(
        shell("git -c user.name=a -c user.email=a@b commit --allow-empty -m x; mkdir src; date > src/x"),
        says("Done."),
    )
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    assert world.result(run_id).can_run_code is None
    assert run_view(world.store, world.look(run_id), AS_TOOLS).warnings is None


@pytest.mark.parametrize("end", ["stop", "kill", "kill all"])
def test_a_run_that_is_ended_says_what_it_has_left_too(world: World, end: str) -> None:
    make_repository(world.work)
    world.agent(tools="Bash")
    world.play(shell(f"echo x > {HOOK}; sleep 1000"))
    run_id = world.start()
    wait_for((world.work / HOOK).exists, BOUND, "the hook")
    if end == "stop":
        world.stop(run_id)
    else:
        if end == "kill all":
            kill(world.shim(run_id))
        kill(world.worker(run_id))
        wait_for(lambda: world.look(run_id).live is False, BOUND, "the end of the run")
    world.ended(run_id)
    world.gone(run_id)
    (warning,) = run_view(world.store, world.look(run_id), AS_TOOLS).warnings or []
    assert HOOK in warning
