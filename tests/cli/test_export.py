"""`subagent export`: a run in one archive."""

import io
import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from subagent_server.cli.console.app import Session
from subagent_server.cli.export import _written
from subagent_server.run.errors import BadArgument
from subagent_server.run.records import Usage
from subagent_server.run.stderr import VARIABLE
from tests.cli.command import BOUND, Cli
from tests.cli.families import family
from tests.helpers.forked import PROGRAM, run

SECRET = "sk-this-is-the-secret-of-the-test-0123456789"


def test_a_run_is_packed_without_secrets_locks_and_what_is_no_file_of_it(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", f"The result. {SECRET}")
    run = cli.store.paths.run(run_id)
    outputs = run.directory / "outputs"
    outputs.mkdir(mode=0o700)
    (outputs / "one.txt").write_text(f"long output {SECRET}", encoding="utf-8")
    (outputs / "odd.txt").write_bytes(b"\xff " + SECRET.encode())
    (outputs / "raw.bin").write_bytes(b"\xff\x00")
    (outputs / "planted").symlink_to("/etc/passwd")
    os.mkfifo(outputs / "pipe", 0o600)
    run.worktree.path.write_text('{"phase": "kept"}', encoding="utf-8")
    done = cli("export", "aaaaaa", "-o", "run.tgz", env={"MY_API_KEY": SECRET})
    assert done.returncode == 0 and "run.tgz is written" in done.stderr
    with tarfile.open(cli.home / "run.tgz") as archive:
        names = archive.getnames()
        texts = {name: (archive.extractfile(name) or io.BytesIO()).read() for name in names}
    states = ("request.json", "run.meta.json", "result.json", "worktree.json")
    assert {f"{run_id}/{name}" for name in states} <= set(names)
    assert texts[f"{run_id}/outputs/one.txt"] == b"long output ***"
    assert texts[f"{run_id}/outputs/odd.txt"] == b"\xff ***"
    assert texts[f"{run_id}/outputs/raw.bin"] == b"\xff\x00"
    assert not any(SECRET.encode() in text for text in texts.values())
    assert not any("lock" in name or "planted" in name or "pipe" in name for name in names)
    assert "outputs/planted is left out" in done.stderr and "outputs/pipe is left out" in done.stderr


def test_a_tree_goes_to_stdout_and_nothing_is_written_over(cli: Cli) -> None:
    with family(cli) as ids:
        command = [*PROGRAM, "export", ids.boss, "--tree", "-o", "-"]
        done = run(command, cli.environment, cwd=cli.home, seconds=BOUND)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            assert {name.split("/")[0] for name in archive.getnames()} == {ids.boss, ids.helper, ids.tester}
        (cli.home / "mine").write_text("mine", encoding="utf-8")
        cli.leaves_with(2, "is there already", "export", ids.boss, "-o", "mine")
        assert (cli.home / "mine").read_text(encoding="utf-8") == "mine"
        both = cli("export", ids.boss, "-o", "-", "--json")
        assert both.returncode == 2 and "both write stdout" in both.stderr and both.stdout == ""
        cut = cli("export", ids.boss, "-o", "other", env={VARIABLE: "export.written"})
        assert cut.returncode == -9 and not (cli.home / "other").exists(), "a name has a whole file"
        made = cli.json("export", ids.boss, "-o", "other")
        assert made == {"file": str(cli.home / "other"), "bytes": (cli.home / "other").stat().st_size}


def test_a_file_that_comes_during_an_export_stays(tmp_path: Path) -> None:
    session = cast("Session", SimpleNamespace(settings=SimpleNamespace(cwd=tmp_path)))
    with pytest.raises(BadArgument, match="is there already"):
        _written(session, "mine", lambda _: (tmp_path / "mine").write_text("mine", encoding="utf-8"))
    assert [file.read_text(encoding="utf-8") for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("form", [["-o", "-"], ["--html", "-o", "-"], ["--inspect", "-"], ["--otlp", "-"]])
def test_nothing_is_exported_to_a_terminal(cli: Cli, form: list[str]) -> None:
    cli.completed("aaaaaa", "\x9b2J\u202e")
    assert cli.raw_screen("export", "aaaaaa", *form) == ""


def test_a_run_becomes_a_log_of_inspect_and_spans_without_secrets(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", f"The result. {SECRET}", label="the plan")
    cli.record(
        run_id,
        ("run_started", {"model": "claude-test"}),
        ("turn", {"turn": 1}),
        ("thought", {"text": "Let me see."}),
        ("tool_call", {"toolCallId": "t1", "toolName": "bash", "arguments": {"command": "ls"}}),
        ("tool_result", {"toolCallId": "t1", "toolName": "bash", "isError": True, "text": f"no {SECRET}"}),
        ("turn", {"turn": 2}),
        ("text", {"text": "Done."}),
    )
    for words in (("--inspect", "run.json"), ("--otlp", "run.otlp.json")):
        done = cli("export", "aaaaaa", *words, env={"MY_API_KEY": SECRET})
        assert done.returncode == 0 and f"{words[1]} is written" in done.stderr
        assert SECRET not in (cli.home / words[1]).read_text(encoding="utf-8")
    log = json.loads((cli.home / "run.json").read_text(encoding="utf-8"))
    (sample,) = log["samples"]
    assert (log["status"], log["eval"]["model"], sample["id"]) == ("success", "claude-test", run_id)
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert sample["messages"][1]["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert sample["messages"][2]["error"]["message"] == "no ***"
    assert len(json.loads((cli.home / "run.otlp.json").read_text(encoding="utf-8"))["resourceSpans"]) == 1
    for port, why in ((9, "(Connection refused)"), ("none", "(nonnumeric port: 'none')")):
        export = ("export", "aaaaaa", "--otlp", f"http://127.0.0.1:{port}")
        cli.leaves_with(6, f"{why}: see that a collector", *export)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--otlp", "a", "--inspect", "b"], "exclude each other"),
        (["--inspect", "a", "-o", "b"], "leave -o out"),
        (["--html", "--tree", "-o", "a"], "leave --tree out"),
    ],
)
def test_forms_that_exclude_each_other_write_nothing(cli: Cli, words: list[str], why: str) -> None:
    cli.completed("aaaaaa")
    cli.leaves_with(2, why, "export", "aaaaaa", *words)
    assert not (cli.home / "a").exists() and not (cli.home / "b").exists()


def test_a_run_without_a_model_is_exported_with_its_result(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa", "The result.")
    cli.record(run_id, ("subagent_event", {"event": "subagent_start", "model": "of-another-run"}))
    (sample,) = json.loads(cli("export", "aaaaaa", "--inspect", "-").stdout)["samples"]
    assert sample["output"]["choices"][0]["message"]["content"] == "The result."
    assert sample["output"]["model"] == "none/unknown"
    assert "of-another-run" not in cli("export", "aaaaaa", "--otlp", "-").stdout


def test_a_call_of_a_model_that_is_told_in_parts_is_one_span(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    cli.record(
        run_id,
        ("turn", {"turn": 1}),
        ("usage", {"inputTokens": 30, "outputTokens": 1}),
        ("text", {"text": "One."}),
        ("text", {"text": "Two."}),
        ("tool_call", {"toolCallId": "", "toolName": "bash", "arguments": True}),
        ("usage", {"inputTokens": 30, "outputTokens": 5}),
        ("turn", {"turn": 2}),
        ("usage", {"inputTokens": 70, "outputTokens": 9}),
    )
    with cli.store.paths.run(run_id).events.path.open("a", encoding="utf-8") as file:
        file.write('{"type": "usage", "inputTokens": "damaged"}\n{"type": "turn", "turn": "\\ud800"}\n')
    asked = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    done = cli("export", "aaaaaa", "--otlp", "-", env=asked)
    (scope,) = json.loads(done.stdout)["resourceSpans"][0]["scopeSpans"]
    whole, first, second, _, call = scope["spans"]
    for span in scope["spans"]:
        keys = [attribute["key"] for attribute in span["attributes"]]
        assert len(keys) == len(set(keys)), keys
    assert len({span["spanId"] for span in scope["spans"]}) == 5
    assert [_told(span, "gen_ai.usage.output_tokens") for span in (first, second)] == ["5", "4"]
    messages = _told(first, "gen_ai.output.messages")
    assert "One." in messages and "Two." in messages
    assert _told(call, "gen_ai.tool.call.arguments") == "true" and call["parentSpanId"] == whole["spanId"]


def test_a_call_that_the_next_model_answers_is_a_span_of_its_own(cli: Cli) -> None:
    run_id = cli.completed("aaaaaa")
    cli.record(
        run_id,
        ("run_started", {"model": "first"}),
        ("turn", {"turn": 1}),
        ("usage", {"inputTokens": 3}),
        ("warning", {"message": "The next model, second, is tried.", "model": "second"}),
        ("usage", {"inputTokens": 10}),
    )
    (scope,) = json.loads(cli("export", "aaaaaa", "--otlp", "-").stdout)["resourceSpans"][0]["scopeSpans"]
    _, failed, answered = scope["spans"]
    assert (failed["name"], _told(failed, "error.type")) == ("chat first", "model_error")
    assert _told(answered, "gen_ai.request.model") == "second" and "status" not in answered
    assert [_told(span, "gen_ai.usage.input_tokens") for span in (failed, answered)] == ["3", "7"]


def test_the_log_of_a_tree_sums_up_the_tokens_of_all_its_runs(cli: Cli) -> None:
    parent = cli.completed("aaaaaa", usage=Usage(input_tokens=5, output_tokens=1))
    below: dict[str, Any] = {"parent_run_id": parent, "root_run_id": parent, "depth": 1}
    cli.completed("bbbbbb", usage=Usage(input_tokens=7, output_tokens=2), **below)
    assert cli("export", "aaaaaa", "--tree", "--inspect", "tree.json").returncode == 0
    log = json.loads((cli.home / "tree.json").read_text(encoding="utf-8"))
    assert [sample["output"]["usage"]["total_tokens"] for sample in log["samples"]] == [6, 9]
    (total,) = log["stats"]["model_usage"].values()
    assert (total["input_tokens"], total["output_tokens"]) == (12, 3)


def _told(span: dict[str, Any], key: str) -> str:
    """Return the value of an attribute of a span."""
    (value,) = (attribute["value"] for attribute in span["attributes"] if attribute["key"] == key)
    (text,) = value.values()
    return str(text)
