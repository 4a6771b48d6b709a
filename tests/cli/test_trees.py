"""Trees of runs on the terminal: `ls --tree`, and watching them and the inbox."""

import json
import os
import re
import signal
from typing import Any

from subagent_server.process.slots import Ticket
from subagent_server.run import transitions
from subagent_server.run.processes import now
from subagent_server.run.records import Usage
from tests.cli.command import Cli, asked, run_name, until_watching
from tests.cli.families import family, pay
from tests.helpers.runs import make_meta, make_request


def test_a_tree_stands_below_its_first_run_and_is_listed_whole(cli: Cli) -> None:
    with family(cli) as runs:
        other = cli.completed("aaaaaa")
        lines = cli("ls", "--tree").stdout.splitlines()[1:]
        drawn = [re.sub(r" +(\d+[smhd])+( .*)?$", "", line)[12:].strip() for line in lines]
        assert drawn == [
            f"{runs.boss}  boss",
            f"{runs.helper}  └ helper",
            f"{runs.tester}    └ tester",
            f"{other}  reviewer",
        ]
        assert cli("ls", "--tree", "-q", "--agent", "tester").stdout.split() == [
            runs.boss,
            runs.helper,
            runs.tester,
        ]
        (tree, single) = cli.json("ls", "--tree")
        assert tree["children"][0]["children"][0]["runId"] == runs.tester and single["children"] == []
        assert tree["children"][0]["parentRunId"] == runs.boss and "parentRunId" not in tree


def test_a_tree_in_a_pipe_is_whole_and_a_dumb_terminal_gets_no_escapes(cli: Cli) -> None:
    label = "a very long label " * 8
    cli.completed("aaaaaa", label=label.strip())
    assert label.strip() in cli("ls", "--tree").stdout
    shown = cli.raw_screen("ls", "--tree", TERM="dumb")
    assert "reviewer" in shown and "\x1b" not in shown and max(map(len, shown.splitlines())) <= 80


def test_a_run_that_waits_for_a_slot_is_listed_as_such(cli: Cli) -> None:
    run_id = run_name("aaaaaa")
    cli.store.create(make_request(run_id))
    cli.store.publish(make_meta(run_id))
    descriptor = cli.hold(run_id)
    ticket = Ticket(cli.store.paths.slots, "root", run_id)
    try:
        assert cli("ls").stdout.splitlines()[1].endswith("waits for a slot")
        assert cli.json("ls")[0]["waitingForSlot"] is True
    finally:
        ticket.leave()
        os.close(descriptor)


def test_watching_shows_each_change_in_its_group_and_ctrl_c_ends_only_the_watching(cli: Cli) -> None:
    cli.completed("aaaaaa")
    with family(cli) as runs:
        pay(cli, runs.tester, Usage(input_tokens=4321))
        with cli.start("ls", "--watch", env={"COLUMNS": "120"}) as watching:
            frame = watching.hear("done (1)")
            assert frame.startswith("needs you (1)\n") and "4.3k" in frame and "└ tester" in frame
            until_watching(watching)
            cli.store.update(runs.tester, transitions.ReplyGiven(message_id="q1", answer="blue"), now())
            assert "● answered" in watching.hear("working (1)")
            watching.interrupt()
            code, _, said = watching.end()
            assert code == 130 and "the runs continue" in said
        assert cli.meta(runs.boss).status == "running"


def test_watching_for_programs_prints_a_line_for_each_change_and_each_question_once(cli: Cli) -> None:
    with (
        cli.start("ls", "-w", "--json") as lists,
        cli.start("inbox", "-w", "--json") as inbox,
        family(cli) as runs,
    ):
        letter = json.loads(inbox.hear("\n").splitlines()[0])
        assert letter["runId"] == runs.tester and letter["question"] == "Which colour?"
        below: list[dict[str, Any]] = []
        while not below:
            trees = json.loads(lists.hear("\n").splitlines()[-1])
            below = [low for tree in trees for run in tree["children"] for low in run["children"]]
        assert below[0]["runId"] == runs.tester
        cli.store.update(runs.tester, asked("How large?"), now())
        assert json.loads(inbox.hear("\n"))["messageId"] == "q2"
        for command in (lists, inbox):
            command.process.send_signal(signal.SIGINT)
            assert command.end()[0] == 130


def test_watching_a_missing_root_does_not_create_it(cli: Cli) -> None:
    with cli.start("ls", "--watch", "--runs", "elsewhere") as watching:
        assert "No runs in" in watching.hear("elsewhere")
    assert not (cli.home / "elsewhere").exists()
    assert cli("inbox", "--runs", "elsewhere").returncode == 0
    assert not (cli.home / "elsewhere").exists()
