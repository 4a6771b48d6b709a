"""`subagent show`: everything about one run, and how a run is named."""

import pytest

from subagent_server.run import transitions
from subagent_server.run.journal import Transcript
from subagent_server.run.processes import now
from subagent_server.run.records import Failure, LaunchInfo, RunResult, Usage
from subagent_server.run.states import Status
from tests.cli.command import Cli, asked
from tests.cli.families import family, pay


@pytest.mark.parametrize("name", ["20261122-093015-417-bbbbbb", "20261122-093015-417-b", "bbbbbb", "@last"])
def test_a_run_is_named_by_its_id_a_beginning_its_last_part_or_last(cli: Cli, name: str) -> None:
    cli.completed("aaaaaa")
    run_id = cli.completed("bbbbbb")
    assert cli.json("show", name)["runId"] == run_id


def test_last_is_the_last_run_that_no_other_run_started(cli: Cli) -> None:
    with family(cli) as tree:
        assert cli.json("show", "@last")["runId"] == tree.boss


def test_last_does_not_pass_over_a_run_whose_state_cannot_be_read(cli: Cli) -> None:
    cli.completed("aaaaaa")
    broken = cli.completed("bbbbbb")
    cli.store.paths.run(broken).meta.path.write_text("{")
    assert f"The state of run {broken} cannot be read" in cli("stop", "@last").stderr


@pytest.mark.parametrize(
    ("words", "command", "tool"),
    [
        (["show", "zzzzzz"], "`subagent ls` shows them", "list_runs"),
        (["reply", "@last", "yes"], "`subagent show`", "check_status"),
        (["continue", "@last"], "say in PROMPT what", "`prompt`"),
    ],
)
def test_an_error_names_commands_and_not_tools(cli: Cli, words: list[str], command: str, tool: str) -> None:
    cli.completed("aaaaaa")
    said = cli(*words).stderr
    assert command in said and tool not in said


def test_a_run_that_has_ended_is_shown_with_everything_about_it(cli: Cli) -> None:
    run_id = cli.made("aaaaaa", asked("Which colour?", "blue", "red"), prompt="Paint it.", label="a label")
    cli.record(run_id, ("run_started", {"sandbox": "unsandboxed: no bwrap"}))
    answer = transitions.ReplyGiven(message_id="q1", answer="red", answered_by="person")
    cli.store.update(run_id, answer, now())
    failure = Failure(code="agent_error", message="No paint left.", hint="Buy some.")
    result = RunResult(outcome=Status.FAILED, text="", error=failure)
    cli.store.update(run_id, transitions.RunFailed(failure=failure), now(), result=result, payload=b"ab")
    said = cli("show", run_id).stdout
    for words in (
        run_id,
        "reviewer",
        "a label",
        "✘ failed",
        "live      no",
        "sandbox   unsandboxed: no bwrap",
        "Paint it.",
        "? Which colour?",
        "blue | red",
        "(by the person)",
        "agent_error: No paint left.",
        "Buy some.",
        f"runs/{run_id}",
        "payload   2 bytes, in payload.gz",
        "0 turns, 0 tool calls, 0 tokens",
    ):
        assert words in said


def test_the_view_for_programs_is_that_of_the_tools(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", "All good.", label="the label")
    view = cli.json("show", run_id)
    assert view.pop("elapsedSeconds") is not None
    assert view.pop("instructions") == "Done."
    assert view == {
        "runId": run_id,
        "agent": "reviewer",
        "label": "the label",
        "status": "completed",
        "revision": 2,
        "live": False,
        "usage": {},
        "summary": "All good.",
        "result": "All good.",
    }


def test_a_result_is_shown_whole_to_people(cli: Cli) -> None:
    run_id = cli.completed("bbbbbb", "", output={"verdict": "fine", "lines": list(range(30))})
    assert '"verdict": "fine"' in cli("show", run_id).stdout
    assert cli.json("show", run_id)["output"]["verdict"] == "fine"
    run_id = cli.completed("aaaaaa", "word " * 5_000 + "the end")
    assert "the end" in cli("show", run_id).stdout
    assert cli.json("show", run_id)["resultTruncated"] is True


def test_an_open_question_is_shown_with_the_command_that_answers_it(cli: Cli) -> None:
    with cli.living("aaaaaa", asked()) as run_id:
        said = cli("show", run_id).stdout
    assert "? needs you (waiting_parent_reply)" in said
    assert f"none yet: subagent reply {run_id} q1 ANSWER" in said
    assert "yes: its processes live" in said


def test_nothing_is_given_back_of_an_empty_quarantine(cli: Cli) -> None:
    cli.leaves_with(
        2, "is empty, so nothing can be given back", "show", cli.completed("aaaaaa"), "--restore", "1"
    )


def test_a_run_of_another_host_is_shown_as_unknown(cli: Cli) -> None:
    run_id = cli.made("aaaaaa", launch=LaunchInfo(host="far-away", boot_id="other"))
    said = cli("show", run_id).stdout
    assert "~ unknown (running)" in said and "unknown here: it runs on far-away" in said


def test_a_run_whose_request_is_gone_is_still_shown(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    cli.store.paths.run(run_id).request.unlink()
    done = cli("show", run_id)
    assert done.returncode == 0
    assert "✔ completed" in done.stdout and "cannot be read" in done.stdout


@pytest.mark.parametrize("words", [["show"], ["compare", "aaaaaa"], ["export", "-o", "a.html", "--html"]])
def test_a_run_whose_journal_is_no_file_is_still_shown(cli: Cli, words: list[str]) -> None:
    run_id = cli.completed("aaaaaa")
    request = cli.store.read_request(run_id)
    flow = request.model_copy(update={"agent": {**request.agent, "runner": "flow"}})
    cli.store.paths.run(run_id).request.path.write_bytes(flow.to_json())
    cli.store.paths.run(run_id).events.unlink()
    cli.store.paths.run(run_id).events.path.mkdir()
    done = cli(*words, run_id)
    assert done.returncode == 0, done.stderr


def test_control_characters_of_data_are_escaped(cli: Cli) -> None:
    bad = "a\x1b[31mb\x07\nc\u202ed"
    run_id = cli.made("aaaaaa", asked(bad, bad), prompt=bad, label=bad, agent_name=bad)
    cli.store.update(run_id, transitions.ReplyGiven(message_id="q1", answer=bad), now())
    failure = Failure(code="agent_error", message=bad, hint=bad)
    cli.store.update(run_id, transitions.RunFailed(failure=failure), now())
    said = cli("show", run_id).stdout
    assert all(c.isprintable() or c == "\n" for c in said)
    assert said.count("a\\x1b[31mb\\x07") >= 6


def test_other_peoples_scripts_and_spaces_are_left_as_they_are(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", "漢字\u3000と\u00a0Größe, « oui\u202f»")
    assert "漢字\u3000と\u00a0Größe, « oui\u202f»" in cli("show", run_id).stdout


def test_a_run_is_shown_with_the_cost_of_its_tree(cli: Cli) -> None:
    with family(cli) as runs:
        for run_id, tokens in ((runs.boss, 1), (runs.helper, 20), (runs.tester, 300)):
            pay(cli, run_id, Usage(input_tokens=tokens, turns=1))
        said = cli("show", runs.boss).stdout
        assert "usage     1 turn, 0 tool calls, 1 token\n" in said
        assert "tree      3 turns, 0 tool calls, 321 tokens, in 3 runs" in said
        assert f"{runs.helper}  ● running  helper" in said
        assert cli.json("show", runs.boss)["withDescendants"] == {"inputTokens": 321, "turns": 3}
        assert "withDescendants" not in cli.json("show", runs.tester)


def test_the_conversation_is_shown_whole_and_as_text(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    assert f"`subagent logs {run_id}`" in cli("show", run_id, "--transcript").stderr
    said: list[dict[str, object]] = [
        {"role": "user", "content": "Look\x1b[2J."},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "bash", "input": {"command": "ls"}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a\n" * 99}]}],
        },
        {"role": ["odd"], "content": {"type": 5}},
    ]
    Transcript(cli.store.paths.run(run_id)).begin(said)
    shown = cli("show", run_id, "--transcript").stdout
    assert "── user\n    Look\\x1b[2J." in shown and '→ bash {\n     "command": "ls"' in shown
    assert shown.count("\n    a\n") >= 49 and "── ['odd']" in shown
    assert cli.json("show", run_id, "--transcript")["messages"] == said


@pytest.mark.parametrize("verb", [["show", "aaaaaa"], ["inbox"]])
def test_words_are_not_cut_at_the_end_of_a_narrow_line(cli: Cli, verb: list[str]) -> None:
    question = "Which of the many colours that you like would be right for a door of this kind?"
    with cli.living("aaaaaa", asked(question)):
        shown = cli.on_screen(*verb, columns=40)
        whole = cli(*verb).stdout
    assert "\nq1        ? Which of the many colours\n          that you like would be right\n" in shown
    assert f"\nq1        ? {question}\n" in whole


def test_a_program_is_shown_with_calls_that_nobody_has_made(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    kept = cli.store.paths.run(run_id).code.path / "001"
    kept.mkdir(parents=True)
    (kept / "program.py").write_text("print(1)")
    (kept / "calls.jsonl").write_text(
        '{"call":[1],"function":"f"}\n{"call":[1],"isError":false,"text":"x"}\n'
    )
    shown = cli("show", run_id, "--code").stdout
    assert "print(1)" in shown and "→ [1]. f" in shown and "← x" in shown
    (program,) = cli.json("show", run_id, "--code")
    assert (program["code"], len(program["calls"])) == ("print(1)", 2)
