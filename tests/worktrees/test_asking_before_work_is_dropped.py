"""`subagent rm` asks a person before changes that nobody has merged go."""

from tests.cli.command import BOUND, Cli, Model
from tests.cli.conftest import cli, model
from tests.cli.terminal import person
from tests.helpers.repositories import make_repository
from tests.helpers.turns import says, shell
from tests.helpers.wait import wait_for

__all__ = ["cli", "model"]


def test_a_person_is_asked_and_a_no_keeps_the_run(cli: Cli, model: Model) -> None:
    make_repository(cli.home)
    model(shell("echo new > new.txt"), says("Done."))
    cli.agent("worker", isolation="worktree", sandbox="none")
    done = cli("run", "worker", "Go.")
    assert done.returncode == 0, done.stderr
    (run_id,) = cli.store.run_ids()
    with person(cli, "rm", run_id) as terminal:
        assert "1 commit of it is not merged" in terminal.hear("Drop these changes?")
        terminal.type("n\n")
        terminal.hear("subagent merge")
    assert cli.store.run_ids() == [run_id]
    with person(cli, "rm", run_id) as terminal:
        terminal.hear("Drop these changes?")
        terminal.type("y\n")
        wait_for(lambda: cli.store.run_ids() == [], BOUND, "the removal")
