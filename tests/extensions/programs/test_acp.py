"""Runs of agents that speak the Agent Client Protocol, Gemini CLI among them, played by a small program."""

import json
import sys
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from acp import schema

from subagent_server.extensions.programs.acp import AcpDialect
from subagent_server.extensions.programs.gemini import policy
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import StorageFailed
from subagent_server.run.records import Usage
from tests.extensions.programs.direct import Worked
from tests.extensions.programs.test_codex import told
from tests.helpers.files import write_program
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

FAKE = Path(__file__).with_name("fake_acp.py")


def acp(world: World, **keys: Any) -> None:
    """Write an agent whose program speaks the protocol."""
    env = keys.pop("env", {})
    words = {"command": sys.executable, "args": [str(FAKE)]}
    world.agent("worker", "You paint.", runner="acp", env=env, **words, **keys)


def fake_gemini(home: Path) -> dict[str, Any]:
    """Write a fake Gemini CLI, which notes its command line; return the keys of an agent with it."""
    words = f'printf "%s\\n" "$@" > {home}/argv; cat "$GEMINI_SYSTEM_MD" > {home}/system'
    version = '[ "$1" = --version ] && exec echo 0.61.0'
    program = write_program(home / "gemini", f"#!/bin/sh\n{version}\n{words}\nexec {sys.executable} {FAKE}\n")
    return {"runner": "gemini", "command": str(program)}


def test_a_run_over_the_protocol_has_the_events_of_every_run_and_no_guessed_figures(world: World) -> None:
    acp(world)
    run_id = world.start("say:Painted.")
    assert world.completed_and_gone(run_id) == "Painted."
    kinds = [event["type"] for event in world.events(run_id)]
    for kind in ("run_started", "thought", "text", "tool_call", "tool_result", "usage", "run_ended"):
        assert kind in kinds
    (call,) = world.events(run_id, "tool_call")
    assert (call["toolName"], call["arguments"]) == ("execute", {"command": "echo hi"})
    usage = world.meta(run_id).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (400, 40, None)
    (new,) = told(world.work, "session/new")
    (server,) = new["mcpServers"]
    assert server["args"][-1].isdecimal() and server["env"] == []
    words = told(world.work, "session/prompt")[0]["prompt"][0]["text"]
    assert "You paint." in words and run_id in words and not words.startswith("/")


@pytest.mark.parametrize(("answer", "option"), [("for this run", "once"), ("no", "cancel")])
def test_a_permission_request_is_a_question(tmp_path: Path, answer: str, option: str) -> None:
    worked = direct(tmp_path, "approve", answer=lambda _: answer)
    (call,), ((asked, _),) = worked.run.recorded("tool_call"), worked.run.asked
    shown = (call["toolName"], asked.splitlines()[0])
    assert shown == ("Bash", "May it use Bash?"), "one name, also for `for this run`"
    assert json.loads(worked.outcome.text) == {"outcome": "selected", "optionId": option}


def test_a_request_that_names_a_call_alone_shows_what_is_known_of_it(tmp_path: Path) -> None:
    ((asked, _),) = direct(tmp_path, "approve_by_id").run.asked
    assert asked.startswith("May it use execute?\n") and "echo hi" in asked and "command" in asked


@pytest.mark.parametrize("title", ["mcp__subagent__ask_parent", "subagent/ask_parent"])
def test_to_ask_its_parent_needs_no_permission(tmp_path: Path, title: str) -> None:
    assert json.loads(direct(tmp_path, f"approve:{title}").outcome.text)["outcome"] == "selected"


def test_a_question_that_the_disk_refuses_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        direct(tmp_path, "approve", unasked=StorageFailed(tmp_path, "No space left on device"))


def _modes(current: str, *offered: str) -> dict[str, str]:
    modes = [{"id": mode, "name": mode} for mode in offered]
    return {"FAKE_MODES": json.dumps({"modes": {"currentModeId": current, "availableModes": modes}})}


MODES: dict[str, tuple[dict[str, str], str | None, str | None]] = {
    "one that asks is offered": (_modes("auto", "auto", "plan", "default"), "default", None),
    "it is chosen already": (_modes("read-only", "full-access", "read-only"), None, None),
    "its id is an address": (_modes("a#autopilot", "a#autopilot", "a#ask"), "a#ask", None),
    "none asks": (_modes("build", "build", "plan"), None, "is in 'build'"),
    "there are none": ({}, None, "has no modes"),
}


@pytest.mark.parametrize("name", MODES)
def test_the_mode_that_asks_is_chosen_or_the_view_says_so(tmp_path: Path, name: str) -> None:
    env, chosen, words = MODES[name]
    worked = direct(tmp_path, "parts", env)
    assert worked.outcome.text == "Painted.", "its last message alone"
    assert [event["text"] for event in worked.run.recorded("text")] == ["Be warned.", "Painted."]
    modes = [each["modeId"] for each in told(tmp_path, "session/set_mode")]
    assert modes == ([chosen] if chosen else [])
    assert [words in warning for warning in worked.outcome.warnings if words] == ([True] if words else [])


BAD_ENDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a refusal": ('end:{"stopReason": "refusal"}', {}, "agent_error", "refused"),
    "an unknown reason": ('end:{"stopReason": 7}', {}, "agent_error", "stopReason"),
    "its own limit": ('end:{"stopReason": "max_turn_requests"}', {}, "max_turns", "limit"),
    "an exit": (
        "quit",
        {},
        "agent_error",
        "exit code 3 in the middle of its work. Its last words: I am lost.",
    ),
    "no login": ("say", {"env": {"FAKE_LOGIN": "no"}}, "config", "log in"),
    "another version": ("say", {"env": {"FAKE_VERSION": "2"}}, "config", "version 2"),
    "too many turns": ("turns:9", {"limits": {"maxTurns": 2}}, "max_turns", "limit of 2 turns"),
}


def direct(place: Path, task: str, env: dict[str, str] | None = None, **keys: Any) -> Worked:
    words = {"runner": "acp", "command": sys.executable, "args": [str(FAKE)]}
    return Worked(place, task, env or {}, **words, **keys)


@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_run_over_the_protocol_that_ends_so_has_failed_and_says_why(tmp_path: Path, name: str) -> None:
    task, keys, code, words = BAD_ENDS[name]
    found = direct(tmp_path, task, **keys).failure
    assert found.code == code and words in f"{found.message} {found.hint}", found


EMPTY_REPLY = "Error: No response was returned. Send your message again to retry."


@pytest.mark.parametrize(
    ("command", "texts", "tokens", "why"),
    [
        ("copilot", ["Info: Retrying...", "Error: HTTP 401."], 0, "did not answer: Error: HTTP 401."),
        ("copilot", ["Error: ", "line 3."], 0, None),
        ("copilot", ["Error: line 3."], 1, None),
        ("copilot", [EMPTY_REPLY], 1, f"did not answer: {EMPTY_REPLY}"),
        ("codex-acp", ["Warning: old.\n\n", "High demand.\n\n"], 0, "did not answer: High demand."),
        ("codex-acp", ["Warning: old.\n\n", "Out of room.\n\n"], 1, "did not answer: Out of room."),
        ("other", ["Error: HTTP 401."], 0, None),
    ],
)
def test_a_text_about_a_model_that_did_not_answer_is_no_result(
    tmp_path: Path, command: str, texts: list[str], tokens: int, why: str | None
) -> None:
    program = write_program(tmp_path / command, f"#!/bin/sh\nexec {sys.executable} {FAKE}\n")
    task = f"texts:{json.dumps([texts, tokens])}"
    found = Worked(tmp_path, task, {}, runner="acp", command=str(program)).outcome.failure
    if why is None:
        assert found is None
    else:
        assert found is not None and found.code == "model_error" and why in found.message


@pytest.mark.parametrize(("note", "code"), [("Warning: old.", None), ("Out of room.", "model_error")])
def test_what_codex_acp_says_besides_its_model_is_no_text(
    tmp_path: Path, note: str, code: str | None
) -> None:
    program = write_program(tmp_path / "codex-acp", f"#!/bin/sh\nexec {sys.executable} {FAKE}\n")
    worked = Worked(tmp_path, f"noted:{note}", {}, runner="acp", command=str(program))
    found = worked.outcome.failure
    assert worked.outcome.text == "Painted." and (found and found.code) == code
    assert note in [event["message"] for event in worked.run.recorded("warning")]


def test_a_retry_that_is_said_amid_the_text_is_a_warning(tmp_path: Path) -> None:
    retry = "Info: Request failed due to a transient API error. Retrying..."
    program = write_program(tmp_path / "copilot", f"#!/bin/sh\nexec {sys.executable} {FAKE}\n")
    task = f"texts:{json.dumps([['Pain', retry, 'Pain', 'ted.'], 1])}"
    worked = Worked(tmp_path, task, {}, runner="acp", command=str(program))
    assert worked.outcome.text == "Painted."
    assert retry in [event["message"] for event in worked.run.recorded("warning")]


@pytest.mark.parametrize(
    ("facts", "tool"),
    [
        ({"kind": "execute", "title": "echo hi"}, "execute"),
        ({"kind": "other", "title": "mcp__subagent__ask_parent"}, "mcp__subagent__ask_parent"),
        ({"kind": "execute", "title": "mcp__subagent__ask_parent; rm -r x"}, "execute"),
        ({"kind": "execute", "title": "mcp__subagent__ask_parent"}, "execute"),
        ({"kind": "other", "title": "{}", "_meta": {"toolName": "mcp__subagent__ask_parent"}},
         "mcp__subagent__ask_parent"),
        ({"kind": "other", "title": "mcp__subagent__ask_parent", "_meta": {"toolName": "task"}}, "task"),
        ({"title": "mcp__subagent__ask_parent"}, "mcp__subagent__ask_parent"),
        ({"kind": "other", "title": "subagent/ask_parent"}, "subagent/ask_parent"),
        ({"kind": "edit", "title": "subagent/ask_parent"}, "edit"),
        ({"kind": "other", "title": "paint_mix"}, "paint_mix"),
        ({"kind": "other", "title": "paint_mix; rm -r x"}, "other"),
        ({"kind": "execute", "_meta": {"claudeCode": {"toolName": "Bash"}}}, "Bash"),
    ],
)  # fmt: skip
def test_a_tool_has_the_name_that_the_agent_gives_beside_its_kind(facts: dict[str, Any], tool: str) -> None:
    call = schema.ToolCallUpdate.model_validate({"toolCallId": "1", **facts})
    assert object.__new__(AcpDialect).tool_of(call) == tool


def test_an_agent_that_takes_no_stdio_server_gets_a_file_and_no_server_of_the_agent_file(
    tmp_path: Path,
) -> None:
    words = {"runner": "acp", "command": sys.executable, "args": [str(FAKE), "@{mcpConfig}"]}
    assert Worked(tmp_path, "say:Done.", {}, **words).outcome.text == "Done."
    written = json.loads((tmp_path / "mcp.json").read_text(encoding="utf-8"))
    assert written["mcpServers"]["subagent"]["command"] == "false"
    servers = {"paint": {"command": "paint"}, "web": {"type": "http", "url": "http://127.0.0.1:9"}}
    refused = Worked(tmp_path, "say:Done.", {}, **words, mcpServers=servers).failure
    assert refused.code == "config" and "mcpServers.paint" in refused.message


def test_whatever_an_agent_says_the_run_goes_on(tmp_path: Path) -> None:
    worked = direct(tmp_path, "babble")
    assert worked.outcome.text == "Done."
    assert Usage.model_validate_json(worked.usage.to_json()).cost_usd == 0, "a figure that no file can hold"


def test_a_stop_cancels_and_a_continuation_takes_the_session_up_without_its_old_words(world: World) -> None:
    acp(world)
    run_id = world.start("sleep")
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "the command")
    world.stop(run_id)
    world.gone(run_id)
    assert told(world.work, "session/cancel")
    second = world.continued(run_id, "say:Again.")
    assert world.completed(second) == "Again."
    assert world.meta(second).external_session_id == world.meta(run_id).external_session_id
    assert not any("before" in event["text"] for event in world.events(second, "text"))


@pytest.mark.parametrize("capabilities", ['{"loadSession": true}', "3"])
def test_a_session_that_the_agent_has_lost_is_carried_on_in_words(tmp_path: Path, capabilities: str) -> None:
    env, retold = {"FAKE_CAPABILITIES": capabilities}, "It was blue.\n\nsay:Again."
    worked = direct(tmp_path, "say:Again.", env, resumes="lost", retold=retold)
    assert worked.outcome.text == "Again." and worked.run.session != "lost"
    assert told(tmp_path, "session/prompt")[0]["prompt"][0]["text"].endswith(retold)
    warned = any("lost its session" in event["message"] for event in worked.run.recorded("warning"))
    assert warned is (capabilities != "3")


@pytest.mark.parametrize(
    ("command", "read", "total", "counted"),
    [
        ("claude-agent-acp", 300, 540, 300),
        ("copilot", 500, 540, 300),  # with what its cache has
        ("opencode", 300, 540, None),  # of its last call alone
    ],
)
def test_cached_tokens_count_once_and_those_of_one_call_not_at_all(
    tmp_path: Path, command: str, read: int, total: int, counted: int | None
) -> None:
    program = write_program(tmp_path / command, f"#!/bin/sh\nexec {sys.executable} {FAKE}\n")
    usage = {"inputTokens": read, "outputTokens": 40, "cachedReadTokens": 200, "totalTokens": total}
    worked = Worked(tmp_path, f"spend:{json.dumps(usage)}", {}, runner="acp", command=str(program))
    assert worked.usage.input_tokens == counted


@pytest.mark.parametrize(("total", "cost"), [("0.75", Decimal("0.25")), ("0.1", None)])
def test_what_a_session_had_cost_before_is_no_cost_of_the_run(
    tmp_path: Path, total: str, cost: Decimal | None
) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "kept").touch()
    worked = direct(tmp_path, f"pay:{total}", resumes="kept", spent=Decimal("0.5"))
    assert worked.usage.cost_usd == cost


def test_gemini_gets_model_policy_and_system_prompt_by_its_own_means(world: World) -> None:
    keys = {"tools": ["Read", "mcp__paint"], "disallowedTools": ["WebFetch"], **fake_gemini(world.home)}
    world.agent("worker", "You paint.", model="gemini-2.5-flash", **keys)
    run_id = world.start("approve")
    message = world.asking(run_id).messages[0]
    assert "run_shell_command" in message.question_content
    world.reply(run_id, "once")
    world.completed(run_id)
    argv = (world.home / "argv").read_text(encoding="utf-8").splitlines()
    assert argv[:3] == ["--acp", "--approval-mode", "default"] and "gemini-2.5-flash" in argv
    assert "--allowed-mcp-server-names=subagent" in argv and "--skip-trust" in argv
    policy = Path(argv[argv.index("--policy") + 1]).read_text(encoding="utf-8")
    for rule in (
        'toolName = "read_file"\ndecision = "allow"',
        'toolName = "web_fetch"\ndecision = "deny"',
        'mcpName = "paint"',
        'toolName = "*"\ndecision = "ask_user"',
    ):
        assert rule in policy
    assert (world.home / "system").read_text(encoding="utf-8").startswith("You paint.")


def test_the_policy_of_gemini_has_names_as_they_are() -> None:
    agent = AgentDefinition(name="worker", tools=["mcp__paint\U0001f3a8"])
    rules = tomllib.loads(policy(agent, "subagent"))["rule"]
    assert [rule.get("mcpName") for rule in rules] == ["subagent", "paint\U0001f3a8", None]


def in_work(home: Path, home_as: Path | None = None) -> Worked:
    """Return what the fake Gemini CLI of a home has done in the directory `work` of it."""
    (home / "work").mkdir(exist_ok=True)
    return Worked(home / "work", "say", {"HOME": str(home_as or home)}, **fake_gemini(home))


@pytest.mark.parametrize("name", [".env", ".gemini/settings.json"])
def test_what_came_with_a_directory_does_not_decide_where_the_key_of_gemini_goes(
    tmp_path: Path, name: str
) -> None:
    planted, rules = tmp_path / "work" / name, tmp_path / ".gemini" / "trustedFolders.json"
    planted.parent.mkdir(parents=True)
    planted.write_text("GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9\n", encoding="utf-8")
    assert in_work(tmp_path).failure.code == "config"
    rules.parent.mkdir()
    rules.write_text(json.dumps({str(tmp_path / "work"): "TRUST_FOLDER"}), encoding="utf-8")
    assert in_work(tmp_path).outcome.text == "Done."
    assert "--skip-trust" not in (tmp_path / "argv").read_text(encoding="utf-8")


def test_a_home_that_is_a_link_has_the_user_s_own_settings_of_gemini(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / ".gemini").mkdir()
    assert in_work(tmp_path, tmp_path / "link").outcome.text == "Done."


def test_in_a_box_its_session_is_not_kept_and_the_conversation_goes_on_in_words(world: World) -> None:
    acp(world, sandbox="bwrap", sandboxRead=[str(FAKE)])
    run_id = world.start("say:Painted.")
    assert world.completed(run_id) == "Painted."
    second = world.continued(run_id, "say:Again.")
    assert world.completed(second) == "Again."
    assert len(told(world.work, "session/new")) == 2 and not told(world.work, "session/load")
    words = told(world.work, "session/prompt")[1]["prompt"][0]["text"]
    assert "This is what was said before" in words and "Painted." in words
    assert told(world.work, "session/new")[0]["mcpServers"][0]["env"] == [], "the token of the run"
