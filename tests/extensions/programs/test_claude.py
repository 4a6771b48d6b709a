"""Claude Code as a runner, played by a script that speaks its stream as it was recorded."""

import json
import os
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run import processes
from subagent_server.run.errors import RunRefused, StorageFailed
from subagent_server.verbs.reconcile import observe
from tests.extensions.programs.direct import PROGRAMS, Worked
from tests.helpers.files import write_program
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

FAKE = """
import json, os, sys, time
if "--version" in sys.argv:
    sys.exit(print("2.1.330 (Claude Code)"))
with open("heard", "a") as file:
    file.write(json.dumps({"argv": sys.argv[1:], "first": json.loads(sys.stdin.readline())}) + "\\n")
    servers, system = (open(sys.argv[sys.argv.index(flag) + 1]).read()
                       for flag in ("--mcp-config", "--system-prompt-file"))
    file.write(json.dumps({"servers": json.loads(servers), "system": system}) + "\\n")
for step in json.load(open(os.environ["STEPS"])):
    if "ask" in step:
        sys.path.insert(0, step["helpers"])
        from asking_parent import Server
        server = json.loads(servers)["mcpServers"]["subagent"]
        Server([server["command"], *server["args"]]).ask(step["ask"])
        continue
    if "sleep" in step:
        time.sleep(step["sleep"])
        continue
    if "no_session" in step:
        if "--resume" in sys.argv:
            sys.exit(print(json.dumps(step["no_session"]), flush=True) or 1)
        continue
    if "raw" in step:
        sys.stdout.write(step["raw"])
    else:
        print(json.dumps(step), flush=True)
    sys.stdout.flush()
    if step.get("type") == "control_request":
        with open("heard", "a") as file:
            file.write(sys.stdin.readline())
"""
USAGE = {
    "input_tokens": 3,
    "output_tokens": 5,
    "cache_read_input_tokens": 7,
    "cache_creation_input_tokens": 1,
}
BASH = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "touch made"}}


def says(*content: dict[str, Any], number: int = 1) -> dict[str, Any]:
    """Return an event with blocks of the model."""
    return {"type": "assistant", "message": {"id": f"m{number}", "content": list(content), "usage": USAGE}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(**facts: Any) -> dict[str, Any]:
    """Return the last event of a success, with these facts changed."""
    usual = {"type": "result", "subtype": "success", "is_error": False, "terminal_reason": "completed"}
    return {
        **usual,
        "result": "Done.",
        "usage": USAGE,
        "total_cost_usd": 0.25,
        "permission_denials": [],
        **facts,
    }


def wants(tool: str = "Bash", call_id: str = "t1") -> dict[str, Any]:
    """Return a request to use a tool."""
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": {"command": "touch made"}}
    return {"type": "control_request", "request_id": "r1", "request": {**request, "tool_use_id": call_id}}


def fake(place: Path, *steps: dict[str, Any]) -> dict[str, Any]:
    """Write a program that does these steps; return the keys of an agent with it."""
    program, script = place / "claude", place / "steps.json"
    write_program(program, f"#!{sys.executable}\n{FAKE}")
    script.write_text(json.dumps(steps), encoding="utf-8")
    return {"runner": "claude", "command": str(program)}


def plays(world: World, *steps: dict[str, Any], **keys: Any) -> None:
    """Let the program do these steps in every run that is started from now on."""
    world.environment["STEPS"] = str(world.home / "steps.json")
    world.agent("worker", "You paint.", **fake(world.home, *steps), **keys)


def direct(place: Path, *steps: dict[str, Any], **keys: Any) -> Worked:
    words = fake(place, *steps) | {"systemPrompt": "You paint."}
    return Worked(place, "Paint it.", {"STEPS": str(place / "steps.json")}, **words, **keys)


def heard(place: Path) -> list[dict[str, Any]]:
    """Return what the program was given and answered in a working directory."""
    return [json.loads(line) for line in (place / "heard").read_text(encoding="utf-8").splitlines()]


def test_its_events_become_those_of_every_run_and_its_keys_reach_it(world: World) -> None:
    thought = {"type": "thinking", "thinking": "Hm."}
    ended = {"type": "tool_result", "tool_use_id": "t1", "content": [text("made")], "is_error": False}
    keys = {"tools": ["Bash(touch *)"], "disallowedTools": ["WebSearch"], "model": "opus", "effort": "high"}
    steps = [
        says(thought, BASH),
        {"type": "user", "message": {"content": [ended]}},
        says(text("Done."), number=2),
    ]
    others: list[dict[str, Any]] = [
        {"type": "system", "subtype": "task_progress", "x": 1},
        {"type": "novel", "x": [1]},
    ]
    plays(world, *steps, *others, result(), limits={"maxTurns": 7, "budgetUsd": 0}, **keys)
    run_id = world.start("/clear it, and paint it.")
    assert world.completed_and_gone(run_id) == "Done."
    kinds = [event["type"] for event in world.events(run_id) if event["type"] != "usage"]
    middle = ["turn", "thought", "tool_call", "tool_result", "turn", "text", "program_event"]
    assert kinds == ["run_started", *middle, "run_ended"]
    usage = world.meta(run_id).usage
    assert (usage.turns, usage.tool_calls, usage.cost_usd) == (2, 1, Decimal("0.25"))
    assert (usage.input_tokens, usage.output_tokens) == (3, 5), (
        "the totals of the end, not a sum of the messages"
    )
    began, given = heard(world.work)
    line = " ".join(began["argv"])
    for words in (
        "--allowedTools mcp__subagent Bash(touch *)",
        "Workflow",
        "AskUserQuestion WebSearch",
        "--max-turns 7",
        "--max-budget-usd 0",
    ):
        assert words in line, line
    assert "--model opus" in line and "--effort high" in line
    task = began["first"]["message"]["content"][-1]["text"]
    assert task.strip() == "/clear it, and paint it." and task[0] != "/", "a command of the program"
    assert given["system"].startswith("You paint.") and "ask_parent" in given["system"]
    assert given["servers"]["mcpServers"]["subagent"]["args"][-1].isdecimal()
    assert world.meta(run_id).external_session_id in began["argv"]


@pytest.mark.parametrize("mode", [None, "acceptEdits"])
def test_no_name_of_a_tool_is_an_option_of_the_program(tmp_path: Path, mode: str | None) -> None:
    """Names of tools may change in a trusted directory; what starts a program asks."""
    names = ['--mcp-config={"mcpServers":{"(":{"command":"./x"}}}']
    keys = {"tools": names, "disallowedTools": names, "permissionMode": mode}
    direct(tmp_path, says(text("Done.")), result(), **keys)
    began, _ = heard(tmp_path)
    assert [word for word in began["argv"] if word.startswith("--mcp-config")] == ["--mcp-config"]


def test_tokens_of_its_own_agents_count(tmp_path: Path) -> None:
    used = {
        "large": {"inputTokens": 10, "outputTokens": 4},
        "small": {"inputTokens": 5, "outputTokens": None},
    }
    usage = direct(tmp_path, says(text("Done.")), result(model_usage_since_last_result=used)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (15, 4, 7)


BAD_ENDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, str]] = {
    "an error beside success": (
        [result(is_error=True, result="Not logged in")],
        {},
        "agent_error",
        "set ANTHROPIC_API_KEY",
    ),
    "an error of the API": (
        [result(is_error=True, terminal_reason="api_error", result="API Error: 529")],
        *({}, "model_error", "529 Look at run.log"),
    ),
    "a silent denial": (
        [result(permission_denials=[{"tool_name": "Write", "tool_use_id": "t9"}])],
        *({}, "agent_error", "denied Write, and nobody was asked"),
    ),
    "no output": ([result()], {"outputSchema": {"type": "object"}}, "invalid_output", "no output"),
    "an output that does not fit": (
        [result(structured_output={"n": "x"})],
        {"outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        *("invalid_output", "is not of type 'integer'"),
    ),
    "too many turns": ([result(subtype="error_max_turns", is_error=True)], {}, "max_turns", "turns"),
    "nothing": ([says(text("Half."))], {}, "agent_error", "ended with exit code 0 before it gave a result"),
    "forged fields": (
        [
            {"type": "assistant", "message": {"id": 7, "content": [{"type": "text", "text": [1]}, 3]}},
            {
                "type": "result",
                "subtype": ["success"],
                "usage": {"input_tokens": -5},
                "total_cost_usd": "many",
            },
        ],
        *({}, "agent_error", "with an error"),
    ),
    "endless retries": (
        [{"type": "system", "subtype": "api_retry", "attempt": 1, "error_status": 401}, {"sleep": 600}],
        *({"limits": {"idleTimeoutSeconds": 1}}, "timeout", "The API failed (401)"),
    ),
}


@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_word_of_success_alone_is_no_success(tmp_path: Path, name: str) -> None:
    steps, keys, code, words = BAD_ENDS[name]
    found = direct(tmp_path, *steps, **keys).failure
    assert found.code == code and words in f"{found.message} {found.hint}", found


def test_a_long_command_of_the_program_is_no_silence(tmp_path: Path) -> None:
    ended = {"type": "tool_result", "tool_use_id": "t1", "content": [], "is_error": False}
    steps = [says(BASH), {"sleep": 1.5}, {"type": "user", "message": {"content": [ended]}}, result()]
    assert direct(tmp_path, *steps, limits={"idleTimeoutSeconds": 0.2}).outcome.text == "Done."


def test_an_empty_result_of_the_program_gives_its_last_text_with_a_warning(tmp_path: Path) -> None:
    outcome = direct(tmp_path, says(text("I look."), BASH), result(result="")).outcome
    assert outcome.text == "I look." and "was empty" in outcome.warnings[0]


def test_tokens_that_were_told_of_stay_though_the_last_event_of_a_budget_has_none(tmp_path: Path) -> None:
    nothing = dict.fromkeys(USAGE, 0)
    end = result(subtype="error_max_budget_usd", is_error=True, usage=nothing)
    worked = direct(tmp_path, says(text("Half.")), end)
    assert worked.failure.code == "budget"
    assert worked.usage.output_tokens and worked.usage.cost_usd == Decimal("0.25")


@pytest.mark.parametrize(("answer", "behavior"), [("once", "allow"), ("no", "deny"), (None, "deny")])
def test_a_request_for_a_tool_is_a_question_and_silence_denies(
    tmp_path: Path, answer: str | None, behavior: str
) -> None:
    denials = [] if behavior == "allow" else [{"tool_name": "Bash", "tool_use_id": "t1"}]
    worked = direct(tmp_path, wants(), result(permission_denials=denials), answer=lambda _: answer)
    ((asked, _),) = worked.run.asked
    assert "touch made" in asked
    assert worked.outcome.text == "Done.", "a denial that somebody answered is no failure"
    given = heard(tmp_path)[-1]["response"]
    assert given["request_id"] == "r1" and given["response"]["behavior"] == behavior


def test_a_permission_without_an_answer_ends_the_run_if_its_agent_says_so(tmp_path: Path) -> None:
    late = RunRefused("ask_timeout", "Nobody has answered.")
    assert direct(tmp_path, wants(), {"sleep": 600}, unasked=late).failure.code == "ask_timeout"


def test_a_question_that_the_disk_refuses_ends_the_run(tmp_path: Path) -> None:
    full = StorageFailed(tmp_path, "No space left on device")
    with pytest.raises(StorageFailed):
        direct(tmp_path, wants(), {"sleep": 600}, unasked=full, limits={"idleTimeoutSeconds": 5})


def test_events_have_a_bound_together_whatever_their_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PROGRAMS}.program.MOST_CHARACTERS", 4 << 20)  # 32 MiB in earnest
    large = {"type": "novel", "x": ["y" * 1_000] * 875}
    worked = direct(tmp_path, *[large] * 6, says(text("Done.")), result())
    assert worked.outcome.text == "Done." and len(worked.run.recorded("program_event")) == 4
    assert "so much that the rest" in worked.run.recorded("warning")[0]["message"]


def test_lines_that_are_no_events_and_all_that_comes_after_the_end_do_no_harm(tmp_path: Path) -> None:
    raw = {"raw": "Welcome!\n[1]\n" + "[" * 100_000 + "\n\x00\xff\n"}
    after = {"raw": json.dumps(result(result="Forged.", is_error=True)) + "\n" + "x" * 1_000_000}
    assert direct(tmp_path, raw, says(text("Done.")), result(), after).outcome.text == "Done."


def test_what_no_file_of_a_run_can_hold_is_left_out_of_its_events_and_its_output(world: World) -> None:
    too_deep = "[" * 300 + "]" * 300
    deep = json.dumps(says({**BASH, "input": {}})).replace("{}", too_deep)
    not_a_number = json.dumps(result(total_cost_usd=1)).replace(": 1,", ": NaN,")
    half = result(structured_output={"n": 1, "\ud83d": "\ud83d"})
    lines = [deep, not_a_number, json.dumps(half)]
    plays(world, *({"raw": f"{line}\n"} for line in lines), outputSchema={"type": "object"})
    run_id = world.completed_run()
    assert world.result(run_id).output == {"n": 1, "?": "?"}
    assert len(world.events(run_id, "warning")) == 2 and not world.events(run_id, "tool_call")


@pytest.mark.parametrize("victim", ["program", "worker", "shim"])
def test_after_a_kill_the_session_is_carried_on_and_told_what_is_not_known(world: World, victim: str) -> None:
    plays(world, says(text("I begin."), BASH), {"sleep": 600})
    run_id = world.start("Paint it.")
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "the call")
    os.kill(_pid(world, run_id, victim), signal.SIGKILL)
    wait_for(lambda: observe(world.store, run_id).meta.status.is_terminal, BOUND, "the end of the run")
    session, error = world.meta(run_id).external_session_id, world.meta(run_id).error
    assert session is not None and error is not None
    assert "too old" not in (error.hint or ""), "its death is no sign of that"
    plays(world, says(text("Done.")), result())
    second = world.continued(run_id, "And the door?")
    assert world.completed(second) == "Done."
    began = heard(world.work)[-2]
    told = json.dumps(began["first"])
    assert began["argv"][began["argv"].index("--resume") + 1] == session and "--fork-session" in began["argv"]
    assert "And the door?" in told and "touch made" in told and "It is not known what they did" in told
    assert world.meta(second).usage.cost_usd is None, "what the killed run has cost is not known"


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
def test_a_session_that_claude_has_deleted_is_continued_as_text(world: World, sandbox: str) -> None:
    keys = {"sandbox": sandbox, "sandboxRead": [str(world.home / "steps.json")], "env": {"STEPS": "${STEPS}"}}
    gone = result(subtype="error_during_execution", is_error=True, total_cost_usd=0, usage={})
    gone |= {"errors": ["No conversation found with session ID: 1"], "terminal_reason": None}
    plays(world, says(text("It is blue.")), result(result="It is blue."), **keys)
    run_id = world.completed_run("Paint it.")
    plays(world, {"no_session": gone}, says(text("Done.")), result(total_cost_usd=0.5), **keys)
    second = world.continued(run_id, "And the door?")
    assert world.completed(second) == "Done."
    begun = heard(world.work)[-2]
    told = json.dumps(begun["first"])
    assert "--resume" not in begun["argv"] and told.index("It is blue.") < told.index("And the door?")
    assert any("lost its session" in event["message"] for event in world.events(second, "warning"))
    meta = world.meta(second)
    assert meta.usage.cost_usd == Decimal("0.5"), "the new session has cost nothing before"
    assert meta.external_session_id == begun["argv"][begun["argv"].index("--session-id") + 1]


def test_the_cost_of_a_session_is_counted_once_however_often_it_is_carried_on(world: World) -> None:
    run_ids: list[str] = []
    for total in (0.5, 0.75, 0.1):
        plays(world, says(text("Paid.")), result(total_cost_usd=total))
        run_ids.append(world.continued(run_ids[-1], "Pay.") if run_ids else world.start())
        world.completed(run_ids[-1])
    costs = [world.meta(run_id).usage.cost_usd for run_id in run_ids]
    assert costs == [Decimal("0.5"), Decimal("0.25"), None], "less than the session had cost before"


def _pid(world: World, run_id: str, victim: str) -> int:
    if victim == "program":
        return processes.with_words(str(world.home / "claude").encode())[0]
    return (world.worker(run_id) if victim == "worker" else world.shim(run_id)).pid
