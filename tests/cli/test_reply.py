"""`subagent reply`: answers to questions."""

import pytest

from tests.cli.command import Cli, asked
from tests.cli.terminal import person


def answers(cli: Cli, run_id: str) -> list[str | None]:
    return [message.answer_content for message in cli.meta(run_id).messages]


@pytest.mark.parametrize(
    ("words", "stdin", "answer"),
    [
        (["light blue"], "", "light blue"),
        (["-"], "two\nlines: Größe\n", "two\nlines: Größe"),
        (["--", "-5"], "", "-5"),
        (["q1", "q1"], "", "q1"),
    ],
)
def test_the_only_open_question_needs_no_name(cli: Cli, words: list[str], stdin: str, answer: str) -> None:
    with cli.living("aaaaaa", asked()) as run_id:
        done = cli("reply", "@last", *words, stdin=stdin)
        assert (done.returncode, done.stdout) == (0, f"The answer to run {run_id} is recorded.\n")
        assert answers(cli, run_id) == [answer]
        assert cli.meta(run_id).messages[0].answered_by == "person"


@pytest.mark.parametrize(
    ("words", "stdin", "why"),
    [
        (["q1"], b"", "q1 is the question"),
        (["-5"], b"", "No such option"),
        ([""], b"", "The answer is empty"),
        (["-"], b"  \n", "The answer is empty"),
        (["-"], b"\xff\xfe", "not UTF-8"),
        (["q1", "blue", "red"], b"", "Give the run"),
        (["light", "blue"], b"", "no question 'light': open are q1. Give the run"),
        ([], b"", "Give the run"),
    ],
)
def test_what_is_no_answer_is_refused(cli: Cli, words: list[str], stdin: bytes, why: str) -> None:
    with cli.living("aaaaaa", asked()) as run_id:
        cli.leaves_with(2, why, "reply", run_id, *words, stdin=stdin)
        assert answers(cli, run_id) == [None]


def test_of_several_open_questions_one_is_named(cli: Cli) -> None:
    with cli.living("aaaaaa", asked(), asked("How large?")) as run_id:
        refused = cli("reply", run_id, "blue")
        assert refused.returncode == 2
        assert "q1" in refused.stderr and "q2" in refused.stderr
        done = cli("reply", run_id, "q2", "huge")
        assert "1 still waits" in done.stdout
        assert answers(cli, run_id) == [None, "huge"]


def test_bytes_that_are_no_text_are_refused(cli: Cli) -> None:
    with cli.living("aaaaaa", asked()) as run_id:
        with cli.start("reply", run_id, b"\xff") as command:  # type: ignore[arg-type]  # bytes of another encoding
            code, _, said = command.end()
        assert code == 2 and "not UTF-8" in said
        assert answers(cli, run_id) == [None]


def test_programs_get_the_view_after_the_answer(cli: Cli) -> None:
    with cli.living("aaaaaa", asked()) as run_id:
        view = cli.json("reply", run_id, "blue")
    assert (view["runId"], view["status"]) == (run_id, "parent_replied")
    assert "messages" not in view


def test_alone_it_asks_the_open_questions_of_all_runs_and_says_when_each_expires(cli: Cli) -> None:
    with (
        cli.living("aaaaaa", asked("Which\x1b[2J colour?", "blue", "red"), prompt="Paint it.") as one,
        cli.living("bbbbbb", asked("How large?"), label="the size") as other,
        person(cli, "reply") as terminal,
    ):
        seen = terminal.hear("Your answer")
        assert "expires in 59m" in seen and "Paint it." in seen and "Which\\x1b[2J colour?" in seen
        terminal.type("2\n")
        assert "the size" in terminal.hear("Your answer")
        terminal.type("\x04")
        assert terminal.command.end()[0] == 0
        assert (answers(cli, one), answers(cli, other)) == (["red"], [None])
