"""A person at a terminal answers the questions of a followed run."""

import re

import pytest

from tests.cli.command import BOUND, Cli, Model, asked
from tests.cli.terminal import person
from tests.helpers.turns import asks, calls, says, use
from tests.helpers.wait import wait_for

PROMPT = "Your answer"
QUESTION, THANKS = asks("Which\x1b[2J colour?", "blue", "red"), says("Thanks.")


@pytest.fixture
def asking(cli: Cli, model: Model) -> Cli:
    """The command with an agent that asks for a colour and then says thanks."""
    model(QUESTION, THANKS)
    return cli


def answer(cli: Cli) -> tuple[str | None, str | None]:
    """Return what the only question of the only run was answered, and by whom."""
    (run_id,) = cli.store.run_ids()
    (message,) = cli.meta(run_id).messages
    return message.answer_content, message.answered_by


TYPED = {
    "2\n": "red",
    "blue\n": "blue",
    "\n  a light green \n": "a light green",
    "3\n": "3",
    "first line\nsecond line\n": "first line\nsecond line",
}


def test_a_person_answers_with_a_number_or_words_and_repeats_a_number_without_an_option(
    cli: Cli, model: Model
) -> None:
    model(*[QUESTION] * len(TYPED), THANKS)
    with person(cli, "run", "worker", "Go") as terminal:
        for typed in TYPED:
            seen = terminal.hear(PROMPT)
            assert "? Which\\x1b[2J colour?" in seen and "2  red" in seen
            terminal.type(typed)
            if typed.strip() == "3":
                terminal.hear(f"or type 3 again to send it as it is.\r\n{PROMPT}")
                terminal.type(typed)
        code, out, _ = terminal.command.end()
    assert (code, out) == (0, "Thanks.\n")
    (run_id,) = cli.store.run_ids()
    answers = [(each.answer_content, each.answered_by) for each in cli.meta(run_id).messages]
    assert answers == [(recorded, "person") for recorded in TYPED.values()]


def test_a_line_that_the_terminal_has_cut_is_no_answer(asking: Cli) -> None:
    with person(asking, "run", "worker", "Go") as terminal:
        terminal.hear(PROMPT)
        terminal.type("x" * 5000 + "\n")
        assert "q1 - < FILE" in terminal.hear(PROMPT)
        terminal.type("2\n")
        assert terminal.command.end()[0] == 0
    assert answer(asking) == ("red", "person")


def test_the_log_of_a_followed_run_has_colours_on_a_terminal(asking: Cli) -> None:
    asking.environment["TERM"] = "xterm"
    with person(asking, "run", "worker", "Go") as terminal:
        assert re.search(r"(?m)^\x1b\[2m[0-9:]{8} \x1b\[0m\x1b\[1m▶ worker started", terminal.hear(PROMPT))


@pytest.mark.parametrize("begun", ["", "blu"])
def test_closing_the_input_leaves_the_question_open(asking: Cli, begun: str) -> None:
    with person(asking, "run", "worker", "Go") as terminal:
        terminal.hear(PROMPT)
        terminal.type(f"{begun}\x04")
        terminal.hear("q1 ANSWER")
        assert terminal.command.end()[0] == 5
    assert answer(asking) == (None, None)


def test_a_question_that_is_left_open_leads_to_the_next(cli: Cli, model: Model) -> None:
    model(calls(use("ask_parent", question="First?"), use("ask_parent", question="Second?")))
    with person(cli, "run", "worker", "Go") as terminal:
        terminal.hear(f"First?\r\n{PROMPT}")
        (run_id,) = cli.store.run_ids()
        wait_for(lambda: cli.meta(run_id).pending_questions == 2, BOUND, "the second question")
        terminal.type("\x04")
        terminal.hear(f"Second?\r\n{PROMPT}")
        terminal.type("\x04")
        assert "q1 ANSWER" in terminal.hear("q2 ANSWER")
        assert terminal.command.end()[0] == 5


def test_an_answer_from_elsewhere_ends_the_asking_and_what_was_begun(asking: Cli) -> None:
    with person(asking, "run", "worker", "Go") as terminal:
        terminal.hear(PROMPT)
        terminal.type("blu")
        assert asking("reply", "@last", "green").returncode == 0
        terminal.hear("q1 needs no answer any more.")
        assert terminal.command.end()[:2] == (0, "Thanks.\n")
        assert terminal.next_line() == "\n"
    assert answer(asking)[0] == "green"


def test_ctrl_c_at_the_question_leaves_it_open_and_names_the_command_that_answers(asking: Cli) -> None:
    with person(asking, "run", "worker", "Go") as terminal:
        terminal.hear(PROMPT)
        terminal.command.interrupt()
        said = terminal.hear("subagent stop")
        assert f"`subagent reply {asking.store.run_ids()[0]}` answers its question" in said
        assert terminal.command.end()[0] == 130
    assert answer(asking) == (None, None)


def test_a_missing_prompt_on_a_terminal_is_refused(cli: Cli) -> None:
    cli.agent("worker")
    with person(cli, "run", "worker") as terminal:
        assert "The prompt is missing" in terminal.hear("--help`")
        assert terminal.command.end()[0] == 2
    assert cli.store.run_ids() == []


def test_remarks_are_for_people_at_a_terminal(cli: Cli) -> None:
    with cli.living("aaaaaa", asked()), person(cli, "ls", "-n", "0") as terminal:
        seen = terminal.hear("ls -a`")
        assert terminal.command.end()[0] == 0
        assert cli("ls", "-n", "0").stderr == ""
    assert "1 needs an answer: `subagent inbox`" in seen and "There are more" in seen
