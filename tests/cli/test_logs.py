"""`subagent logs`: the end of a log, the events, and following."""

import json
import os
import time
from datetime import UTC, datetime

import pytest

from subagent_server.cli.console.terminal import moment, width_of, without_colours
from subagent_server.cli.logs import EventText
from subagent_server.run import transitions
from subagent_server.run.journal import render
from subagent_server.run.processes import now
from tests.cli.command import BOUND, Cli, until_watching
from tests.cli.families import family


def journal(cli: Cli, run_id: str, *texts: str) -> None:
    """Let the run say something, a line each."""
    cli.record(run_id, *(("text", {"text": text}) for text in texts))


def test_the_last_events_are_printed_50_by_default(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    journal(cli, run_id, *(f"line {number}" for number in range(100)))
    cli("show", run_id)  # closes the journal
    short, some, every = (
        cli("logs", run_id),
        cli("logs", run_id, "-n", "5"),
        cli("logs", run_id, "-n", "9999"),
    )
    assert len(short.stdout.splitlines()) == 51  # the end has two lines
    assert some.stdout.splitlines() == short.stdout.splitlines()[-6:]
    assert "line 0\n" in every.stdout and "✔ completed" in every.stdout
    assert cli("logs", run_id, "-n", "0").stdout == ""


def test_a_run_without_a_log_says_so_to_people(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        done = cli("logs", run_id)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"subagent logs -f {run_id}" in done.stderr


def test_events_are_one_json_object_a_line(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    journal(cli, run_id, "one", "tw\x1bo\u202e")
    with cli.store.paths.run(run_id).events.path.open("ab") as file:
        file.write(b'{"torn": \n')
    done = cli("logs", run_id, "--json")
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event.get("text") for event in seen[:2]] == ["one", "tw\x1bo\u202e"]
    assert seen[-1]["type"] == "run_ended"
    assert all(c.isprintable() or c == "\n" for c in done.stdout)


def test_following_prints_new_lines_until_the_run_has_ended(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        journal(cli, run_id, "early")
        with cli.start("logs", "-f", run_id) as command:
            command.hear("early")
            journal(cli, run_id, "later")
            command.hear("later")
            cli.store.update(run_id, transitions.Finished(summary="done"), now())
            journal(cli, run_id, "after the end of the status")
            cli.record(run_id, ("run_ended", {"status": "completed"}))
            code, said, _ = command.end()
    assert code == 0
    assert "after the end of the status" in said and said.rstrip().endswith("0 tokens")


def test_following_with_n_0_prints_only_new_lines(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        journal(cli, run_id, "early")
        with cli.start("logs", "-f", "-n", "0", "--json", run_id) as command:
            until_watching(command)
            journal(cli, run_id, "later")
            assert json.loads(command.hear("\n"))["text"] == "later"


def test_following_a_run_whose_shim_is_killed_ends_with_the_reason(cli: Cli) -> None:
    run_id = cli.made("aaaaaa")
    lock = cli.hold(run_id)
    with cli.start("logs", "-f", run_id) as command:
        until_watching(command)
        os.close(lock)  # it falls as the kernel lets it fall: nothing is written that could be heard
        code, said, _ = command.end()
    assert code == 0
    assert "✘ failed" in said


def test_ctrl_c_stops_the_following_and_never_the_run(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        journal(cli, run_id, "early")
        with cli.start("logs", "-f", run_id) as command:
            command.hear("early")
            until_watching(command)
            command.interrupt()
            code, _, said = command.end()
        assert code == 130
        assert said.startswith("subagent: ") and said.count("\n") == 1
        assert f"`subagent logs -f {run_id}`" in said and f"`subagent stop {run_id}`" in said
        assert cli.json("show", run_id)["status"] == "running"


def test_following_ends_when_the_reader_of_stdout_has_gone(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        journal(cli, run_id, "early")
        with cli.start("logs", "-f", run_id) as command:
            command.hear("early")
            assert command.process.stdout is not None
            command.process.stdout.close()
            assert command.process.wait(BOUND) == 0
            assert command.process.stderr is not None and command.process.stderr.read() == b""


def test_events_of_a_hostile_journal_are_shown_as_text(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    odd = [
        {"type": "text", "at": "\x1b[2J", "text": "\x1b[2Jgone\u202e"},
        {"type": ["turn"], "turn": "\x07"},
        {"type": "usage", "inputTokens": "many", "costUsd": "\x1b[2J"},
        {"type": "tool_result", "toolName": {"a": 1}, "text": 5, "seconds": "x"},
        {"type": "subagent_event", "subagentName": "kid\n\x1b[31m", "payload": "a\nb\nc"},
        {"type": "turn", "turn": 3},
    ]
    with cli.store.paths.run(run_id).events.path.open("ab") as file:
        file.write(b"".join(json.dumps(each).encode() + b"\n" for each in odd) + b"\xff\n[]\n")
    for options in ([], ["--full"], ["--tree"]):
        done = cli("logs", run_id, *options)
        assert done.returncode == 0
        assert "\\x1b[2Jgone\\u202e" in done.stdout and "── turn 3" in done.stdout
        assert all(c.isprintable() or c == "\n" for c in done.stdout)


def test_a_log_has_colours_on_a_terminal_that_wants_them(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    journal(cli, run_id, "Looks \x1b[31mfine.")
    cli.record(run_id, ("warning", {"message": "careful"}))
    assert "\x1b[33m⚠ careful\x1b[0m" in cli.raw_screen("logs", run_id)
    assert "\x1b" not in cli.raw_screen("logs", run_id, NO_COLOR="1")
    assert "\x1b" not in cli("logs", run_id).stdout


def test_tool_calls_that_are_shown_otherwise_and_book_keeping_are_left_out_unless_all_is_wanted(
    cli: Cli,
) -> None:
    run_id = cli.completed("aaaaaa")
    long = "\n".join(f"row {number}" for number in range(30))
    cli.record(
        run_id,
        ("turn", {"turn": 1}),
        ("usage", {"inputTokens": 200, "outputTokens": 40, "turns": 1, "costUsd": "0.0008"}),
        ("tool_call", {"toolName": "ask_parent", "arguments": {"question": "Which?"}}),
        ("question", {"messageId": "q1", "question": "Which?"}),
        ("tool_result", {"toolName": "bash", "text": long}),
        ("turn", {"turn": 2}),
        ("text", {"text": "All good.\nReally."}),
    )
    cli("show", run_id)  # closes the journal
    short, full = cli("logs", run_id).stdout, cli("logs", run_id, "--full").stdout
    assert short.count("Which?") == 1 and "ask_parent" not in short and "ask_parent" in full
    assert "── turn 2 · 240 tokens · $0.0008 so far" in short and "1 turn," not in short
    assert "row 29" not in short and "… 26 more lines" in short and "row 29" in full
    assert short.count("All good.") == 1  # the end does not repeat the last words


def test_each_line_of_several_runs_begins_with_its_run(cli: Cli) -> None:
    with family(cli) as ids:
        journal(cli, ids.boss, "I am\nthe boss")
        journal(cli, ids.tester, "I am\nthe tester")
        shown = cli("logs", ids.boss, "--tree").stdout.splitlines()
        assert [line.split() for line in shown if line.startswith("boss 111111")][1][3:] == ["the", "boss"]
        assert len([line for line in shown if line.startswith("tester 333333 │ ")]) == 2
        some = cli("logs", ids.tester, ids.boss, "--json").stdout.splitlines()
        assert {json.loads(line)["runId"] for line in some} == {ids.boss, ids.tester}


def test_each_piece_of_a_long_line_of_several_runs_begins_with_its_run_on_a_terminal(cli: Cli) -> None:
    one, other = cli.completed("aaaaaa"), cli.completed("bbbbbb")
    for run_id in (one, other):
        journal(cli, run_id, "漢字 words " * 30)
        cli.record(run_id, ("warning", {"message": "careful " * 30}))
    lines = cli.raw_screen("logs", one, other, COLUMNS="60").splitlines()
    assert len(lines) > 20 and all("│" in line for line in lines)
    assert max(width_of(without_colours(line)) for line in lines) <= 60
    assert all(line.count("\x1b[0m") == line.count("\x1b[") / 2 for line in lines), "no colour runs on"


def test_following_a_tree_shows_runs_that_are_started_meanwhile(cli: Cli) -> None:
    with cli.living("111111", agent_name="boss") as boss, cli.start("logs", "-f", boss, "--tree") as command:
        until_watching(command)
        below = {"parent_run_id": boss, "root_run_id": boss, "depth": 1, "agent_name": "helper"}
        with cli.living("222222", **below) as helper:
            journal(cli, helper, "I am new")
            journal(cli, boss, "I go on")
            assert "I am new" in command.hear("helper 222222 │")


def test_people_read_their_local_time_and_files_and_programs_utc(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"at": "2026-07-01T23:30:05.123Z", "type": "run_started", "agent": "a", "prompt": "Go."}
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        said = "\n".join(EventText().lines_of(json.dumps(event)))
        assert said.startswith("19:30:05 ▶ a started") and "2026-07-01 (times in EDT)" in said
        assert moment(datetime(2026, 1, 1, 3, tzinfo=UTC)) == "2025-12-31 22:00:00 EST"
        odd = json.dumps({"at": "never", "type": "text", "text": "x"})
        assert EventText().lines_of(odd)[0].endswith("x")
        assert render(event).startswith("23:30:05 ▶") and "(times in UTC)" in render(event)
    finally:
        monkeypatch.undo()
        time.tzset()
    run_id = cli.completed("aaaaaa")
    journal(cli, run_id, "one")
    assert json.loads(cli("logs", run_id, "--json").stdout.splitlines()[0])["at"].endswith("Z")
