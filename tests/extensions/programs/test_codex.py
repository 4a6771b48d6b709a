"""Runs that Codex carries out, played by a program that speaks as its app-server does."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.programs.direct import Worked
from tests.helpers.files import write_program
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

FAKE = Path(__file__).with_name("fake_codex.py")
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def fake(home: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Write the fake Codex; return the keys of an agent with it, and the environment that it needs.

    It has a state of its own outside the temporary directory.
    """
    program, state, temporary = home / "codex", home / "state", home / "tmp"
    write_program(program, f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    for directory in (state, temporary):
        directory.mkdir(exist_ok=True)
    env = {"CODEX_HOME": str(state), "TMPDIR": str(temporary)}
    return {"runner": "codex", "command": str(program)}, env


def codex(world: World, prompt: str = "You paint.", **keys: Any) -> None:
    """Write an agent whose Codex is the fake one."""
    words, env = fake(world.home)
    world.agent("worker", prompt, env=env, **words, **keys)


def direct(place: Path, task: str, env: dict[str, str] | None = None, **keys: Any) -> Worked:
    """Return what the fake Codex has done with a task."""
    words, own = fake(place)
    return Worked(place, task, own | (env or {}), **words, **keys)


def told(place: Path, method: str) -> list[dict[str, Any]]:
    lines = (place / "told.jsonl").read_text(encoding="utf-8").splitlines()
    return [m.get("params", {}) for m in map(json.loads, lines) if m.get("method") == method]


def test_a_run_of_codex_has_the_events_and_figures_of_every_run_and_its_settings_go_over_the_pipe(
    world: World,
) -> None:
    paint = {"command": "sh", "args": ["--blue"], "env": {"COLOUR": "blue"}}
    codex(world, model="gpt-6", effort="low", mcpServers={"paint": paint}, outputSchema=SCHEMA)
    run_id = world.start('say:{"n": 7}')
    assert world.completed(run_id) == '{"n": 7}' and world.result(run_id).output == {"n": 7}
    world.gone(run_id)
    kinds = [event["type"] for event in world.events(run_id)]
    for kind in ("run_started", "turn", "thought", "tool_call", "tool_result", "text", "usage", "run_ended"):
        assert kind in kinds
    usage = world.meta(run_id).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (120, 80, 20)
    assert (usage.turns, usage.tool_calls, usage.cost_usd) == (2, 1, None)
    (opened,) = told(world.work, "thread/start")
    assert "cwd" not in opened, "Codex would trust it"
    assert opened["model"] == "gpt-6" and opened["approvalsReviewer"] == "user"
    assert (
        opened["developerInstructions"].startswith("You paint.") and run_id in opened["developerInstructions"]
    )
    assert opened["config"]["model_reasoning_effort"] == "low"
    assert opened["config"]["mcp_servers"]["paint"]["env"] == {"COLOUR": "blue"}
    assert opened["config"]["mcp_servers"]["subagent"]["args"][-1].isdecimal()
    assert world.given_to(run_id)["SUBAGENT_RUN_TOKEN"] not in (world.work / "told.jsonl").read_text(
        encoding="utf-8"
    )
    assert told(world.work, "turn/start")[0]["outputSchema"] == SCHEMA


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the state of Codex lie outside of the temporary directory of this process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(("answer", "decision"), [("once", "accept"), ("no", "decline"), ("why?", "decline")])
def test_an_approval_of_codex_is_a_question(tmp_path: Path, answer: str, decision: str) -> None:
    worked = direct(tmp_path, "approve", answer=lambda _: answer)
    ((asked, options),) = worked.run.asked
    assert "touch /x" in asked and "need it" in asked and options == ["once", "for this run", "no"]
    assert json.loads(worked.outcome.text) == {"decision": decision}


@pytest.mark.usefixtures("temporary")
def test_a_yes_for_the_run_widens_nothing_that_comes_later(tmp_path: Path) -> None:
    worked = direct(tmp_path, "widen", answer=lambda asked: "no" if "fileSystem" in asked else "for this run")
    wanted = ("apply_patch", "/a", "/b", "network", "fileSystem")
    for words, (asked, options) in zip(wanted, worked.run.asked, strict=True):
        assert words in asked and ("for this run" in (options or [])) is (words == "apply_patch")
    assert json.loads(worked.outcome.text) == [*["accept"] * 4, {"network": True}, {}]


BAD_ENDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a failed turn": (
        'end:{"status": "failed", "error": {"message": "unexpected status 401 Unauthorized"}}',
        *({}, "model_error", "401"),
    ),
    "an interrupted turn": ('end:{"status": "interrupted"}', {}, "agent_error", "interrupted"),
    "a success without a word": ('end:{"status": "completed"}', {}, "agent_error", "without an answer"),
    "an exit in the middle": ("quit", {}, "agent_error", "exit code 3"),
    "words instead of the output": ("say:done", {"outputSchema": SCHEMA}, "invalid_output", "not JSON"),
    "no login": ("say", {"env": {"FAKE_LOGIN": "no"}}, "config", "not logged in"),
    "a state below the temporary directory": ("say", {}, "config", "CODEX_HOME"),
    "a server that does not start": (
        "server",
        {"mcpServers": {"paint": {"command": "sh"}}},
        "config",
        "paint",
    ),
    "too many turns": ("turns:9", {"limits": {"maxTurns": 2}}, "max_turns", "limit of 2 turns"),
    "retries alone": ("retry", {"limits": {"idleTimeoutSeconds": 0.5}}, "timeout", "Reconnecting... 1/5"),
}


@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_run_of_codex_that_ends_so_has_failed_and_says_why(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, keys, code, words = BAD_ENDS[name]
    if words != "CODEX_HOME":  # the state is below the directory of temporary files of this process
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    found = direct(tmp_path, task, **keys).failure
    assert found.code == code and words in f"{found.message} {found.hint}", found


OPEN: dict[str, Any] = {"type": ["object", "null"], "properties": {"a": {"type": "string"}}}
CLOSED = {**OPEN, "additionalProperties": False, "required": ["a"]}
NESTED: list[tuple[dict[str, Any], bool]] = [
    (CLOSED, True),
    ({"type": ["array", "null"], "items": CLOSED}, True),
    (OPEN, False),
    ({"properties": OPEN["properties"]}, False),
    ({"type": ["array", "null"], "items": OPEN}, False),
    ({"items": OPEN}, False),
]


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(("part", "is_strict"), NESTED)
def test_codex_gets_a_schema_only_if_the_api_takes_all_of_it(
    tmp_path: Path, part: dict[str, Any], is_strict: bool
) -> None:
    direct(tmp_path, "say:{}", outputSchema={**SCHEMA, "properties": {"n": part}})
    assert ("outputSchema" in told(tmp_path, "turn/start")[0]) is is_strict


@pytest.mark.usefixtures("temporary")
def test_whatever_codex_says_the_run_goes_on_and_a_refused_command_is_in_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert direct(tmp_path, "babble").outcome.text == "Done."
    assert caplog.messages == [], "the library logs what the dialect does not foresee"
    (result,) = direct(tmp_path, "refused").run.recorded("tool_result")
    assert result["text"] == "bwrap: no"


def test_a_stop_interrupts_the_turn_and_a_continuation_resumes_the_thread_with_its_own_figures(
    world: World,
) -> None:
    codex(world)
    run_id = world.start("sleep")
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "the command")
    world.stop(run_id)
    world.gone(run_id)
    assert told(world.work, "turn/interrupt")
    thread = world.meta(run_id).external_session_id
    second = world.continued(run_id, "say:Again.")
    assert world.completed(second) == "Again."
    (resumed,) = told(world.work, "thread/resume")
    assert resumed["threadId"] == thread == world.meta(second).external_session_id
    usage = world.meta(second).usage
    assert (usage.turns, usage.output_tokens) == (2, 20), "without what the thread had used before"


@pytest.mark.usefixtures("temporary")
def test_the_turns_and_calls_of_a_resumed_thread_are_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "thread-7").write_text("5", encoding="utf-8")
    worked = direct(tmp_path, "turns:9", resumes="thread-7", limits={"maxTurns": 2})
    assert worked.failure.code == "max_turns"
    usage = worked.usage
    assert (usage.turns, usage.tool_calls) == (2, 2), "a resumed thread tells of no raw events"


@pytest.mark.usefixtures("temporary")
def test_a_thread_that_codex_has_lost_is_continued_as_text(tmp_path: Path) -> None:
    retold = "It was blue.\n\nsay:Again."
    worked = direct(tmp_path, "say:Again.", resumes="lost", retold=retold)
    assert worked.outcome.text == "Again." and worked.run.session != "lost"
    assert told(tmp_path, "turn/start")[0]["input"][0]["text"] == retold
