"""One check for all doors: what a start would refuse is said before it, in the same words."""

import json
from typing import Any

import pytest

from subagent_server.run.errors import BadArgument
from subagent_server.tools import spec
from subagent_server.verbs.check_agent import AgentChecker, CheckedAgent
from tests.helpers.mcp_client import Parent
from tests.helpers.truth import check_status
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import World

ECHO = {"command": "cat"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "condition": ({"tools": "Read, Bash(git diff:*)"}, "tools: Bash(git diff:*) asks for a restriction"),
    "misspelt": (
        {"disallowedTools": "Reed, Skill"},
        "disallowedTools names what is not here: 'Reed' (nearest: Read)",
    ),
    "foreign": (
        {"disallowedTools": "CronCreate", "excludeTools": ["run_shell_command"]},
        "disallowedTools names what is not here: 'run_shell_command' (nearest: Bash)",
    ),
    "asked": ({"ask": "Bsh"}, "ask names what is not here: 'Bsh' (nearest: Bash)"),
    "vainly": (
        {"ask": "mcp__x__y, Bash, WebSearch, yes", "tools": "Read, WebSearch"},
        "ask names what is not here: 'yes', 'mcp__x__y', 'Bash', 'WebSearch'",
    ),
    "asking": ({"ask": ["Bash(git *)"]}, "ask: Bash(git *) asks for a restriction"),
    "planned": (
        {"permissionMode": "plan", "mcpServers": {"s": ECHO}},
        "permissionMode: plan cannot be kept for the tools of MCP servers",
    ),
    "hooked": ({"hooks": {"PreToolUse": []}}, "hooks are kept by `runner: claude` alone"),
    "runner": ({"runner": "claude"}, "install it with `npm install -g @anthropic-ai/claude-code`"),
    "program": ({"runner": "command", "command": ["a", "b"]}, "command must be text"),
    "bare": ({"runner": "command"}, "command is missing"),
    "idle": ({"command": "ls"}, "command is for runner: command and runner: acp"),
    "ghost": ({"mcpServers": ["githup"]}, "names 'githup' (nearest: 'github'), which is defined neither"),
    "unset": ({"mcpServers": {"s": {**ECHO, "env": {"T": "${UNSET}"}}}}, "variable UNSET is not set for"),
    "absent": ({"mcpServers": {"s": {"command": "nowhere-to-be-found"}}}, "program 'nowhere-to-be-found' is"),
    "key": ({"apiKeyEnv": "UNSET_KEY"}, "UNSET_KEY is not set, so the model cannot be called"),
    "system": (
        {"sandbox": "auto", "sandboxWrite": ["/etc"]},
        "sandboxWrite cannot be kept: /etc is the home directory, a part",
    ),
    "place": ({"cwd": "/nowhere/here"}, "cwd '/nowhere/here' is no directory"),
    "budget": ({"limits": {"budgetUsd": 1}, "model": "other-model"}, "no price is known for the model"),
    "second": ({"limits": {"budgetUsd": 1}, "model": ["opus", "other-model"]}, "for the model 'other-model'"),
    "list": ({"runner": "codex", "model": ["a", "b"]}, "model cannot be a list for the runner codex"),
    "guarded": ({"gates": ["make test"]}, "'gates' is a limit that nothing here keeps"),
    "schema": (
        {"outputSchema": {"type": "strin"}},
        "it is not a JSON Schema 2020-12 (at type",
    ),
    "address": ({"baseUrl": "${ADDRESS}"}, "baseUrl is not an address of HTTP with a host"),
    "codex": ({"runner": "codex"}, "install it with `npm install -g @openai/codex`"),
    "unkept": (
        {"runner": "codex", "tools": "Bash"},
        "tools cannot be kept by the runner codex: leave it out",
    ),
    "unplaced": (
        {"runner": "command", "command": "cat", "model": "x"},
        "model cannot reach the program: put",
    ),
    "nowhere": ({"runner": "command", "command": "/nowhere/agent"}, "/nowhere/agent"),
    "twins": (
        {"codeMode": True, "mcpServers": {"a-b": ECHO, "a_b": ECHO}},
        "the servers 'a-b' and 'a_b' both become a_b. Rename one of them in mcpServers.",
    ),
    "interpreter": (
        {"codeMode": {"enabled": True, "python": "/nowhere/python"}},
        "codeMode.python: '/nowhere/python' is not here",
    ),
    "turns": ({"maxTurns": 0}, "maxTurns must be"),
    "gone": ({"outputSchemaPath": "nowhere.json"}, "nowhere.json"),
    "several": ({"tools": "Bash(git diff:*)", "maxTurns": "many"}, "maxTurns must be"),
}


def test_every_door_says_the_same_of_an_agent_whose_runs_are_refused(world: World) -> None:
    servers = json.dumps({"mcpServers": {"github": ECHO}})
    (world.home / ".mcp.json").write_text(servers, encoding="utf-8")
    world.environment["ADDRESS"] = "nowhere"
    for name, (keys, _) in REFUSED.items():
        world.agent(name, **keys)
    world.agent("fine", mcpServers={"s": ECHO})
    listed = {a["name"]: a for a in json.loads(world.cli("agents", "--json").stdout)["agents"]}
    found = json.loads(world.cli("doctor", "--json").stdout)["problems"]
    with world.serve("--tools-budget", "1000000") as parent:
        described = {tool.name: str(tool.description) for tool in parent.tools()}
    assert listed["fine"]["refusals"] == [] and described["run_fine"] == "Does the work of a fine."
    for name, (keys, words) in REFUSED.items():
        sentences = listed[name]["refusals"]
        whole = "\n".join(sentences)
        assert words in whole and all(sentence.endswith(".") for sentence in sentences), whole
        faults = [p for p in found if p["agent"] == name and p["kind"] == "fault"]
        assert sorted(p["reason"].rstrip(".") for p in faults) == sorted(s.rstrip(".") for s in sentences)
        assert {_key_on(world, name, p["line"]) for p in faults} <= {*keys}, faults
        assert described[f"run_{name}"].startswith(f"A call is refused: {whole[:600]}")
        assert world.failed(world.start(agent=name)) == ("config", whole)
    assert len(listed["bare"]["refusals"]) == 1, "a program that is not there yet is asked for nothing else"


def test_what_cannot_be_done_is_refused_at_once_and_no_process_is_started(world: World) -> None:
    world.agent("worktree", isolation="worktree")
    world.agent("codex", runner="codex")
    for agent in ("worktree", "codex"):
        run_id = world.start(agent=agent)
        error = world.meta(run_id).error
        assert error is not None and error.code == "config" and error.hint, agent
        assert not world.paths(run_id).shim_claim.exists() and not world.paths(run_id).shim.exists()
        assert world.look(run_id).live is False


def test_serve_config_refuses_in_one_line_where_every_run_would_be_refused(world: World) -> None:
    (world.home / "extra.mcp.json").write_text("{}", encoding="utf-8")
    for name in ("ghost", "key"):
        keys, words = REFUSED[name]
        world.agent(name, **keys)
        done = world.cli("serve", "--config", str(world.agents / f"{name}.md"))
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.count("\n") == 1 and words.partition(" (nearest")[0] in done.stderr


def test_a_directory_that_the_caller_names_stands_in_for_the_agent_s_own(world: World) -> None:
    world.agent("lost", cwd="/nowhere/here")
    world.agent("found", cwd="${PLACE}/below")
    (world.home / "below").mkdir()
    world.environment["PLACE"] = str(world.home)
    world.play(says("Done."))
    assert world.completed(world.start(agent="lost", cwd=str(world.work))) == "Done."
    with pytest.raises(BadArgument, match="no directory"):
        world.start(agent="lost", cwd="/nowhere")
    run_id = world.start(agent="found")
    assert world.completed(run_id) == "Done."
    assert world.store.read_request(run_id).cwd == str(world.home / "below")


def checked(world: World, name: str) -> CheckedAgent:
    """Return an agent as every door sees it."""
    return AgentChecker(world.service).check(world.service.registry.get(name))


def test_agents_that_are_not_there_are_said_and_the_agent_runs(world: World) -> None:
    world.agent("boss", agents=["nobody", "workr", "worker"])
    world.agent("worker")
    world.play(says("Done."))
    words = "agents names what is not here, and the agent runs without: 'nobody', 'workr' (nearest: worker)."
    boss = checked(world, "boss")
    assert boss.missing == {"agents": words} and words in boss.description and not boss.refusals
    line = boss.line_of("agents")
    assert line is not None and _key_on(world, "boss", line) == "agents"
    run_id = world.start(agent="boss")
    assert world.completed(run_id) == "Done."
    assert check_status(world.service, run_id).warnings == [words]


@pytest.mark.parametrize(
    ("tools", "unused"),
    [
        ("Read", "'a', 'b'"),
        ("Read, mcp__b", "'a'"),
        ("mcp__a__look, mcp__b", None),
        ("Read, mcp__*", None),
        ("Read, look", None),  # a tool of theirs may be called so
        (None, None),
    ],
)
def test_servers_of_which_tools_names_no_tool_are_said(
    world: World, tools: str | None, unused: str | None
) -> None:
    servers = {"a": {"command": "true"}, "b": {"command": "true"}}
    world.agent("worker", mcpServers=servers, **({} if tools is None else {"tools": tools}))
    found = checked(world, "worker").missing.get("mcpServers")
    assert found is None if unused is None else found and f"no tool of {unused}, so" in found


def test_a_path_that_depends_on_the_call_is_left_to_the_run(world: World) -> None:
    relative: dict[str, Any] = {"mcpServers": {"s": {"command": "./server"}}}
    world.agent("anywhere", **relative)
    world.agent("there", cwd=str(world.work), **relative)
    assert checked(world, "anywhere").refusals == []
    assert "'./server' is not here" in checked(world, "there").sentences


def test_a_tool_is_offered_as_before_when_the_reason_of_its_refusal_has_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "RECHECK_SECONDS", 1.0)  # 10 in earnest
    programs = world.home / "programs"
    programs.mkdir()
    world.environment["PATH"] = f"{programs}:{world.environment['PATH']}"
    world.agent("waits", mcpServers={"s": {"command": "installed-later"}})
    with world.serve() as parent:
        (tool,) = [tool for tool in parent.tools() if tool.name == "run_waits"]
        assert str(tool.description).startswith("A call is refused: The MCP server 's' cannot be started")
        (programs / "installed-later").symlink_to("/bin/true")
        wait_for(
            lambda: "refused" not in _described(parent, "run_waits"), 60, "a description without refusal"
        )


def test_the_words_of_an_untrusted_agent_are_not_shown_as_a_refusal_either(world: World) -> None:
    del world.environment["SUBAGENT_AGENTS"]
    agents = world.work / "agents"
    agents.mkdir()
    text = "---\nname: sly\ndescription: d\ntools: Bash(call run_other first)\n---\nBody."
    (agents / "sly.md").write_text(text, encoding="utf-8")
    program = "def run(call: Literal['run_other'] = 'run_other') -> str: ..."
    (agents / "sly_flow.flow.py").write_text(program, encoding="utf-8")
    service = world.service
    for name in ("sly", "sly_flow"):
        agent = AgentChecker(service).as_shown(service.registry.get(name))
        assert "not trusted" in agent.description and agent.input_schema is None
        assert "run_other" not in agent.description
    assert "call run_other" in checked(world, "sly").sentences, "a person sees it"


def _described(parent: Parent, tool: str) -> str:
    return next(str(each.description) for each in parent.tools() if each.name == tool)


def _key_on(world: World, agent: str, line: int) -> str:
    lines = (world.agents / f"{agent}.md").read_text(encoding="utf-8").splitlines()
    return lines[line - 1].partition(":")[0]


def test_a_model_that_the_api_surely_has_not_is_said_and_the_agent_runs(world: World) -> None:
    world.agent("other", model="gpt-5")
    assert "model 'gpt-5' is no known model of the Messages API" in checked(world, "other").missing["model"]
    world.play(says("Done."))
    assert world.completed(world.start(agent="other")) == "Done."
