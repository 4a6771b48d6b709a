"""`subagent inbox`: the open questions of all trees, with their context."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.command import BOUND, Cli, asked
from tests.cli.families import family
from tests.helpers.files import write_program
from tests.helpers.wait import wait_for


def is_running(pid: int) -> bool:
    """Whether a process lives."""
    return Path(f"/proc/{pid}").exists()


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


HOSTILE = "Which `touch owned` $(touch owned); touch owned\n\x1b[2J' \" colour?"
TELL = """\
import json, os, subprocess, sys
facts = {name: value for name, value in os.environ.items() if name.startswith("SUBAGENT_")}
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
given = {"environment": facts, "stdin": sys.stdin.read(), "words": sys.argv[2:], "left": left.pid}
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(given, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


def test_a_program_is_started_at_a_question_which_it_gets_as_data(cli: Cli) -> None:
    told = cli.home / "told.json"
    (cli.home / "tell.py").write_text(TELL, encoding="utf-8")
    planted = write_program(cli.home / "bin" / "tell-me", f"#!/bin/sh\ntouch {cli.home}/owned\n")
    command = f"""/bin/sh -c 'tell-me; exec "$0" "$@"' {sys.executable} tell.py {told} 'two words'"""
    environment = {"SUBAGENT_RUN_TOKEN": "", "PATH": f"{planted.parent}:{os.environ['PATH']}"}
    with (
        cli.living("aaaaaa", asked(HOSTILE)) as run_id,
        cli.start("inbox", "--watch", "--bell", "--exec", command, env=environment) as inbox,
    ):
        inbox.hear("ANSWER")
        wait_for(told.exists, BOUND, "the program of --exec")
        given = json.loads(told.read_text(encoding="utf-8"))
        wait_for(lambda: not is_running(given["left"]), BOUND, "the end of what the program has left")
        assert given["words"] == ["two words"]
        assert given["environment"]["SUBAGENT_EVENT_RUN"] == run_id
        assert given["environment"]["SUBAGENT_RUNS"] == str(cli.store.paths.root)
        assert given["environment"]["SUBAGENT_EVENT_TEXT"].startswith("Which `touch owned` $(touch")
        assert "\x1b" not in given["environment"]["SUBAGENT_EVENT_TEXT"]
        assert json.loads(given["stdin"])["question"] == HOSTILE
        inbox.interrupt()
        assert inbox.end()[0] == 130
    assert not (cli.home / "owned").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--bell"], "belong to --watch"),
        (["--exec", "true"], "belong to --watch"),
        (["--watch", "--exec", "no-such-program-here"], "names no program"),
        (["--watch", "--exec", "'open"], "cannot be read"),
        (["--watch", "--exec", ""], "names no program"),
    ],
)
def test_a_bell_that_cannot_ring_is_refused(cli: Cli, words: list[str], why: str) -> None:
    done = cli("inbox", *words)
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
