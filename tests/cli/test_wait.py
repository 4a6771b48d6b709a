"""`subagent wait`: for one or several runs; the worst outcome is the exit code."""

import pytest

from subagent_server.run import transitions
from subagent_server.run.processes import now
from tests.cli.command import FAILED, STOPPED, Cli, asked, until_watching

DONE = transitions.Finished(summary="done")


@pytest.mark.parametrize(
    ("endings", "code", "why"),
    [
        ([DONE, DONE], 0, ""),
        ([DONE, STOPPED], 4, "was stopped. enough"),
        ([STOPPED, FAILED], 1, "failed (agent_error): It broke. Try again."),
        ([FAILED, DONE], 1, "failed (agent_error): It broke. Try again."),
    ],
)
def test_the_end_of_a_run_is_an_exit_code_and_of_several_the_worst_counts(
    cli: Cli, endings: list[transitions.RunEvent], code: int, why: str
) -> None:
    names = [cli.made(f"aaaaa{number}", ending) for number, ending in enumerate(endings, start=2)]
    cli.leaves_with(code, why, "wait", *names)


def test_it_exits_as_soon_as_the_last_run_has_ended(cli: Cli) -> None:
    with cli.living("aaaaaa") as one, cli.living("bbbbbb") as other, cli.start("wait", one, other) as command:
        until_watching(command)
        cli.store.update(one, DONE, now())
        cli.store.update(other, FAILED, now())
        code, said, _ = command.end()
    assert code == 1
    first, second = said.splitlines()
    assert first.startswith(f"✔ completed   {one}") and second.startswith(f"✘ failed      {other}")


def test_with_any_the_first_that_ends_is_enough(cli: Cli) -> None:
    with cli.living("aaaaaa") as one, cli.living("bbbbbb") as other:
        with cli.start("wait", "--any", one, other, "--json") as command:
            until_watching(command)
            cli.store.update(one, STOPPED, now())
            assert command.end()[0] == 4
        assert [view["status"] for view in cli.json("wait", "--any", one, other, code=4)] == [
            "stopped",
            "running",
        ]


@pytest.mark.parametrize("words", [[], ["--any"]])
def test_a_question_ends_the_wait_at_once(cli: Cli, words: list[str]) -> None:
    done = cli.made("cccccc", FAILED)
    with (
        cli.living("aaaaaa") as one,
        cli.living("bbbbbb") as other,
        cli.start("wait", one, other, *words) as command,
    ):
        until_watching(command)
        cli.store.update(other, asked(), now())
        code, _, said = command.end()
        assert code == 5
        assert f"subagent reply {other} q1 ANSWER" in said
        assert cli("wait", done, other, *words).returncode == 5


def test_a_question_after_an_unread_answer_counts_too(cli: Cli) -> None:
    with cli.living("aaaaaa", asked(), asked("And how large?")) as run_id:
        cli("reply", run_id, "q1", "blue")
        assert cli.meta(run_id).status == "parent_replied"
        assert cli("wait", run_id).returncode == 5


def test_programs_get_a_list_of_views_in_the_order_of_the_names(cli: Cli) -> None:
    good, bad = cli.made("aaaaaa", DONE), cli.made("bbbbbb", FAILED)
    views = cli.json("wait", bad, good, "bbbbbb", code=1)
    assert [view["runId"] for view in views] == [bad, good]
    assert views[0]["error"]["code"] == "agent_error"
