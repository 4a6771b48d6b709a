"""`subagent inbox`: the open questions of all trees, with their context."""

from tests.cli.command import Cli, asked
from tests.cli.families import family


def test_a_question_is_listed_with_its_task_and_its_place_in_the_tree(cli: Cli) -> None:
    with cli.living("aaaaaa", asked("First?")) as first, family(cli, "Which\x1b[2J colour?") as runs:
        letters = cli.json("inbox")
        assert [letter["question"] for letter in letters] == ["First?", "Which\x1b[2J colour?"]
        assert "path" not in letters[0] and letters[0]["runId"] == first
        assert letters[1]["path"] == [
            {"runId": runs.boss, "agent": "boss"},
            {"runId": runs.helper, "agent": "helper"},
        ]
        assert letters[1]["prompt"] == "Test the colours."
        said = cli("inbox").stdout
        assert f"boss {runs.boss} → helper {runs.helper}" in said and "task      Test the colours." in said
        assert "\x1b" not in said
        assert cli("reply", runs.tester, "blue").returncode == 0
        assert cli.meta(runs.tester).messages[0].answered_by == "person"


def test_an_empty_inbox_says_so(cli: Cli) -> None:
    done = cli("inbox")
    assert (done.returncode, done.stdout) == (0, "")
    assert "No run waits" in done.stderr
    assert cli.json("inbox") == []


def test_the_inbox_lists_every_open_question_with_its_command(cli: Cli) -> None:
    cli.completed("aaaaaa")
    with (
        cli.living("bbbbbb", asked("Which\x1b[31m colour?", "blue", "red"), asked("How large?")) as one,
        cli.living("cccccc", asked("Now?"), label="the label") as other,
    ):
        said = cli("inbox").stdout
        letters = cli.json("inbox")
    for command in (f"reply {one} q1 ANSWER", f"reply {one} q2 ANSWER", f"reply {other} q1 ANSWER"):
        assert f"subagent {command}" in said
    assert "Which\\x1b[31m colour?" in said and "blue | red" in said
    assert [(letter["runId"], letter["messageId"]) for letter in letters] == [
        (one, "q1"),
        (one, "q2"),
        (other, "q1"),
    ], "the oldest first"
    assert letters[2]["label"] == "the label" and letters[0]["options"] == ["blue", "red"]
