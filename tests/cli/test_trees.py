"""Runs that started runs, as a person sees them: `ls --tree`, `show`, the inbox, and watching both."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from subagent_server.domain import events
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.host.clock import now
from subagent_server.launch.slots import Ticket
from tests.cli.command import Cli, asked, run_name, until_watching
from tests.helpers.runs import make_meta, make_request


@dataclass(frozen=True)
class Family:
    """A run, one that it started, and one that this one started."""

    boss: str
    helper: str
    tester: str


@contextmanager
def family(cli: Cli, question: str = "Which colour?") -> Iterator[Family]:
    """Make a living tree whose lowest run asks."""
    with cli.living("111111", agent_name="boss", label="the plan") as boss:
        below = {"root_run_id": boss, "agent_name": "helper"}
        with (
            cli.living("222222", parent_run_id=boss, depth=1, **below) as helper,
            cli.living(
                "333333",
                asked(question),
                parent_run_id=helper,
                depth=2,
                root_run_id=boss,
                agent_name="tester",
                prompt="Test the colours.\nAll of them.",
            ) as tester,
        ):
            yield Family(boss, helper, tester)


def pay(cli: Cli, run_id: str, usage: Usage) -> RunMeta:
    """Let a run have cost this much."""
    return cli.store.update(run_id, events.UsageSettled(usage=usage), now())


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


def test_the_inbox_says_what_a_question_is_about_and_where_in_its_tree_it_was_asked(cli: Cli) -> None:
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


def test_a_run_is_shown_with_what_its_tree_has_cost(cli: Cli) -> None:
    with family(cli) as runs:
        for run_id, tokens in ((runs.boss, 1), (runs.helper, 20), (runs.tester, 300)):
            pay(cli, run_id, Usage(input_tokens=tokens, turns=1))
        said = cli("show", runs.boss).stdout
        assert "usage     1 turn, 0 tool calls, 1 token\n" in said
        assert "tree      3 turns, 0 tool calls, 321 tokens, in 3 runs" in said
        assert f"{runs.helper}  ● running  helper" in said
        assert cli.json("show", runs.boss)["withDescendants"] == {"inputTokens": 321, "turns": 3}
        assert "withDescendants" not in cli.json("show", runs.tester)


def test_watching_shows_each_change_in_its_group_and_ctrl_c_ends_only_the_watching(cli: Cli) -> None:
    cli.completed("aaaaaa")
    with family(cli) as runs:
        pay(cli, runs.tester, Usage(input_tokens=4321))
        with cli.start("ls", "--watch", env={"COLUMNS": "120"}) as watching:
            frame = watching.hear("done (1)")
            assert frame.startswith("needs you (1)\n") and "4.3k" in frame and "└ tester" in frame
            until_watching(watching)
            cli.store.update(runs.tester, events.ReplyGiven(message_id="q1", answer="blue"), now())
            assert "● answered" in watching.hear("working (1)")
            watching.interrupt()
            code, _, said = watching.end()
            assert code == 130 and "the runs go on" in said
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


def test_looking_at_a_root_that_is_not_there_makes_none(cli: Cli) -> None:
    with cli.start("ls", "--watch", "--runs", "elsewhere") as watching:
        assert "No runs in" in watching.hear("elsewhere")
    assert not (cli.home / "elsewhere").exists()
    assert cli("inbox", "--runs", "elsewhere").returncode == 0
    assert not (cli.home / "elsewhere").exists()
