"""`subagent logs`: the end of a log, the events, and following."""

import json
import os

from subagent_server.domain import events
from subagent_server.host.clock import now
from subagent_server.store.logs import RunJournal
from tests.cli.command import Cli, until_watching
from tests.helpers.wait import wait_for


def journal(cli: Cli, run_id: str, *texts: str) -> None:
    """Let the run say something, a line each."""
    writer = RunJournal(cli.store.paths.run(run_id))
    for text in texts:
        writer.append("text", now(), {"text": text})


def test_the_last_lines_are_printed_50_by_default(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    journal(cli, run_id, *(f"line {number}" for number in range(100)))
    cli("show", run_id)  # closes the journal
    short, some, every = (
        cli("logs", run_id),
        cli("logs", run_id, "-n", "5"),
        cli("logs", run_id, "-n", "9999"),
    )
    assert len(short.stdout.splitlines()) == 50
    assert some.stdout.splitlines() == short.stdout.splitlines()[-5:]
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
            cli.store.update(run_id, events.Finished(summary="done"), now())
            journal(cli, run_id, "after the end of the status")
            RunJournal(cli.store.paths.run(run_id)).append("run_ended", now(), {"status": "completed"})
            code, said, _ = command.end()
    assert code == 0
    assert "after the end of the status" in said and said.rstrip().endswith("0 tokens")


def test_following_with_n_0_prints_only_new_lines(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id:
        journal(cli, run_id, "early")
        with cli.start("logs", "-f", "-n", "0", run_id) as command:
            until_watching(command)
            journal(cli, run_id, "later")
            assert "early" not in command.hear("later")


def test_following_events_gives_events(cli: Cli) -> None:
    with cli.living("aaaaaa") as run_id, cli.start("logs", "-f", "--json", run_id) as command:
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
            wait_for(lambda: command.process.poll() is not None, 60, "the end of a command without a reader")
            assert command.process.returncode == 0
            assert command.process.stderr is not None and command.process.stderr.read() == b""


def test_control_characters_in_a_log_are_escaped_for_every_writer(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    with cli.store.paths.run(run_id).log.path.open("ab") as file:
        file.write(b"\x1b[2Jgone \xff\n")
    said = cli("logs", run_id).stdout
    assert "\\x1b[2Jgone" in said and "\x1b" not in said
