"""`subagent ls`: the list of runs, for people and for programs."""

import os
import shutil

import pytest

from subagent_server.cli.console.terminal import width_of
from subagent_server.run import transitions
from subagent_server.run.records import LaunchInfo
from subagent_server.verbs import list_runs
from tests.cli.command import FAILED, STOPPED, Cli, asked, run_name
from tests.helpers.stored import make_stored


def listed(cli: Cli, *words: str) -> list[str]:
    return cli("ls", "-q", *words).stdout.split()


def test_where_there_are_no_runs_nothing_is_printed_but_a_word_to_people(cli: Cli) -> None:
    done = cli("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "subagent run AGENT PROMPT" in done.stderr
    assert cli.json("ls") == []


def test_those_that_need_somebody_come_first_then_the_living_then_the_newest(cli: Cli) -> None:
    old, new = cli.completed("aaaaaa"), cli.made("bbbbbb", FAILED)
    with cli.living("222222") as works, cli.living("333333", asked()) as asks:
        assert listed(cli) == [asks, works, new, old]


def test_only_the_last_ten_that_ended_are_listed_unless_all_are_wanted(cli: Cli) -> None:
    every = [cli.completed(f"aaaa{number:02d}") for number in range(12)]
    newest_first = every[::-1]
    with cli.living("222222") as works:
        assert listed(cli) == [works, *newest_first[:10]]
        assert listed(cli, "-a") == [works, *newest_first]
        assert listed(cli, "-n", "2") == [works, newest_first[0]]
        assert listed(cli, "-n", "0") == []
        assert cli.json("ls", "-q") == [works, *newest_first[:10]]
    cli.leaves_with(2, "leave one of them out", "ls", "-q", "-w")


def test_runs_are_picked_by_status_and_agent(cli: Cli) -> None:
    good, bad = cli.completed("aaaaaa", agent_name="planner"), cli.made("bbbbbb", FAILED)
    stopped = cli.made("cccccc", STOPPED, agent_name="planner")
    assert listed(cli, "--status", "failed") == [bad]
    assert listed(cli, "--status", "failed", "--status", "completed") == [bad, good]
    assert listed(cli, "--agent", "planner") == [stopped, good]
    assert listed(cli, "--agent", "planner", "--status", "completed") == [good]
    assert listed(cli, "--agent", "nobody") == []
    with cli.living("222222", asked()) as asks:
        assert listed(cli, "--status", "waiting") == listed(cli, "--status", "waiting_parent_reply") == [asks]


def test_rows_for_programs_have_these_fields(cli: Cli) -> None:
    with cli.living("aaaaaa", asked(), label="the label") as run_id:
        (row,) = cli.json("ls")
    assert row.pop("elapsedSeconds") is not None and row.pop("createdAt").startswith("2026-")
    assert row == {
        "runId": run_id,
        "agent": "reviewer",
        "label": "the label",
        "status": "waiting_parent_reply",
        "pendingQuestions": 1,
        "live": True,
        "model": "claude-sonnet-5-5",
        "cwd": "/tmp",
    }
    for planted in (b'{"cwd": 5, "agent": {"model": []}}', b'{"cwd": "/x", "agent": 5}', b"["):
        cli.store.paths.run(run_id).request.path.write_bytes(planted)
        assert {"model", "cwd"}.isdisjoint(cli.json("ls")[0]), "a request is data"


def test_the_table_fits_80_columns_and_has_a_mark_and_a_word(cli: Cli) -> None:
    long = "All is well with the world and everything in it and what is around it. " * 3
    cli.completed("aaaaaa", long, agent_name="an-agent-with-quite-a-long-name", label="漢字" * 40)
    cli.made("bbbbbb", FAILED)
    cli.made("cccccc", STOPPED)
    with cli.living("222222"), cli.living("333333", asked()):
        header, *rows = cli.on_screen("ls").splitlines()
        narrow = cli.on_screen("ls", columns=60).splitlines()
        whole = cli("ls").stdout
    assert header.split() == ["STATUS", "RUN", "AGENT", "AGE", "TIME", "WHAT"]
    assert rows[4].split()[2] == "aaaaaa", "the last part of the id, which every command takes"
    assert [row[:11].strip() for row in rows] == [
        "? needs you",
        "● running",
        "■ stopped",
        "✘ failed",
        "✔ completed",
    ]
    assert "It broke." in rows[3]
    assert rows[4].endswith("…")
    assert max(map(width_of, [header, *rows])) <= 80
    assert max(map(width_of, narrow)) <= 60
    assert "漢字" * 40 in whole and run_name("aaaaaa") in whole, "a program that reads it gets all of it"


def test_what_a_run_is_about_is_never_empty(cli: Cli) -> None:
    never_began = cli.made("aaaaaa", transitions.StopRequested(), prompt="Look elsewhere.")
    with cli.living("222222") as works, cli.living("333333") as begins:
        cli.record(begins, ("run_started", {"prompt": "Look."}))
        cli.record(works, ("text", {"text": "Reading the change."}))
        rows = {row.split()[2]: row for row in cli("ls").stdout.splitlines()[1:]}
    assert rows[works].endswith("Reading the change.") and rows[begins].endswith("Look.")
    assert rows[never_began].endswith("Look elsewhere.")
    with cli.living("444444", transitions.ProgressReported(summary="Half."), asked()) as asks:
        cli.record(asks, ("question", {"question": "Which colour?"}))
        assert cli("ls").stdout.splitlines()[1].endswith("Which colour?"), "not what was reported before"


def test_a_run_that_cannot_be_read_is_listed_as_such(cli: Cli) -> None:
    broken, fine = cli.completed("bbbbbb"), cli.completed("aaaaaa")
    cli.store.paths.run(broken).meta.path.write_bytes(b"\x00\xff{")
    first, second = cli("ls").stdout.splitlines()[1:]
    assert first.startswith(f"! unreadable  {broken}") and second.startswith(f"✔ completed   {fine}")
    row = cli.json("ls")[0]
    assert row["runId"] == broken and "cannot be read" in row["unreadable"] and "status" not in row


def test_a_run_of_another_host_is_unknown_and_left_alone(cli: Cli) -> None:
    run_id = cli.made("aaaaaa", launch=LaunchInfo(host="far-away", boot_id="other"))
    assert cli("ls").stdout.splitlines()[1].startswith("~ unknown")
    assert cli.meta(run_id).status == "running"
    assert "live" not in cli.json("ls")[0]


def test_a_start_that_never_was_is_not_listed(cli: Cli) -> None:
    cli.store.paths.run(run_name("aaaaaa")).directory.mkdir()
    (cli.home / "runs" / "not a run").mkdir()
    assert listed(cli, "-a") == []


def test_the_mark_of_a_run_that_was_deleted_by_hand_goes_with_the_next_list(cli: Cli) -> None:
    kept, deleted = cli.made("aaaaaa"), cli.made("bbbbbb")
    begun = run_name("cccccc")  # a start that has its directory and its mark, and no state yet
    cli.store.paths.run(begun).files.make_new()
    lock = cli.hold(begun)
    cli.store.paths.change_mark(begun).touch()
    shutil.rmtree(cli.store.paths.run(deleted).directory)
    assert listed(cli) == [kept]
    assert cli.store.paths.marks() == [begun]
    os.close(lock)
    assert listed(cli) == [kept] and cli.store.paths.marks() == [], "it was killed before it had one"


def test_control_characters_of_data_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.completed(
        "aaaaaa", "sum\x1b[2Jmary\u202e\nnext", label="la\x1b]0;bel\x07\r\n", agent_name="a\x9bgent"
    )
    for words in (["ls"], ["ls", "--json"]):
        said = cli(*words).stdout
        assert all(c.isprintable() or c == "\n" for c in said)
    assert "la\\x1b]0;bel\\x07" in cli("ls", env={"COLUMNS": "200"}).stdout
    assert cli.json("ls")[0]["label"] == "la\x1b]0;bel\x07\r\n"


def test_a_root_of_many_runs_is_listed_searched_and_summed_up(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_runs, "MAX_SEARCHED", 300)  # 5,000 in earnest
    stored = make_stored(cli.home / "runs", 301)
    oldest = cli.store.paths.run(stored[0]).meta.path
    oldest.write_bytes(oldest.read_bytes().replace(b'"reviewer"', b'"forgotten"'))
    done = cli("ls", "-q", "--agent", "forgotten")
    assert done.stdout == "" and "Only the newest 5,000 runs were looked at" in done.stderr
    everything = cli("ls", "-a", "-q", "--agent", "forgotten")
    assert everything.stdout.split() == [stored[0]] and everything.stderr == ""
    assert cli("ls").stderr == "", "a list without a filter has enough before"
    failed = [run_id for number, run_id in enumerate(stored) if number % 10 in (7, 8)]
    with cli.living("222222", asked()) as asks:
        assert listed(cli) == [asks, *stored[:-11:-1]]
        assert listed(cli, "--status", "failed", "-a") == failed[::-1]
        assert listed(cli, "--status", "failed", "-n", "3") == failed[:-4:-1]
        assert listed(cli, "--status", "waiting") == [asks]
        assert cli.json("stats")["total"]["runs"] == 302
        cli.store.paths.run(failed[-1]).meta.path.write_bytes(b"{")
        assert listed(cli, "--status", "failed", "-n", "1") == [failed[-2]]
        assert cli("show", stored[5][:-1]).returncode == cli("show", "@last").returncode == 0


def test_a_list_without_a_run_that_fits_and_a_root_that_is_not_there_say_so(cli: Cli) -> None:
    cli.completed("aaaaaa")
    done = cli("ls", "--status", "failed", "--agent", "scout")
    assert (done.returncode, done.stdout) == (0, "") and "No run fits" in done.stderr
    nowhere = cli("--runs", "nowhere\x1b[2J", "ls")
    assert "There is no directory" in nowhere.stderr and "nowhere\\x1b[2J:" in nowhere.stderr
    assert not (cli.home / "nowhere").exists()
