"""An agent as an MCP server of an agent: entries that start `subagent serve --config FILE`."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from subagent_server.agents.named_servers import serves_config
from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.states import Status
from subagent_server.verbs.check_agent import AgentChecker
from tests.helpers.files import write_program
from tests.helpers.mcp_servers import definition, scripted
from tests.helpers.turns import asks, call, says, tool_results
from tests.helpers.world import World
from tests.server.listening import Listener

MODEL = """\
version: "1.0"

models:
  - ref: opus
    display_name: "Claude Opus"
    id: claude-opus-4-20250514
    type: anthropic
    api_key_env: ANTHROPIC_API_KEY
"""
PARENT_OF_SEED = """
mcpServers:
  repo_coder:
    command: subagent
    args: ["serve", "--config", "./coder_agent.cpe.yaml"]
    type: stdio
"""
CODER_OF_SEED = (
    MODEL
    + """
# Subagent identity only
subagent:
  name: implement_change
  description: Make code changes, run tests, and report results.

defaults:
  model: opus
  systemPromptPath: ./prompts/coder.prompt
  codeMode:
    enabled: true

mcpServers:
  filesystem:
    command: filesystem-mcp
    type: stdio
  shell:
    command: shell-mcp
    type: stdio
"""
)
CHANGE = {"prompt": "Add a regression test for issue #112 and run the test suite."}


def write_seed(world: World, code_mode: bool = False) -> Path:
    """Write the files of the seed into the project, and put the programs that they name into PATH."""
    (world.work / "prompts").mkdir()
    (world.work / "prompts" / "coder.prompt").write_text("You change code.", encoding="utf-8")
    (world.work / "coder_agent.cpe.yaml").write_text(CODER_OF_SEED, encoding="utf-8")
    lead = "\nsubagent:\n  name: lead\n  description: Leads.\n\ndefaults:\n  model: opus\n"
    lead += f"  codeMode:\n    enabled: {str(code_mode).lower()}\n"
    parent = world.work / "parent.cpe.yaml"
    parent.write_text(MODEL + lead + PARENT_OF_SEED, encoding="utf-8")
    programs = world.home / "programs"
    programs.mkdir()
    for name, tool in (("filesystem-mcp", "read_text"), ("shell-mcp", "run_command")):
        server = definition(**scripted(tool))
        isolated, script, answers = server.args
        shutil.copy(script, programs)  # a box shows the directories of PATH
        words = [str(server.command), isolated, str(programs / Path(script).name), answers]
        write_program(programs / name, f"#!/bin/sh\nexec {shlex.join(words)}\n")
    world.environment["PATH"] = f"{programs}:{world.environment['PATH']}"
    return parent


def child_of(world: World, run_id: str) -> Any:
    (child,) = world.store.children_of(run_id)
    return world.meta(child)


@pytest.mark.parametrize("code_mode", [False, True], ids=["as tools", "as functions"])
def test_the_seeds_parent_has_the_seeds_coder_as_an_mcp_server(world: World, code_mode: bool) -> None:
    parent = write_seed(world, code_mode)
    del world.environment["SUBAGENT_AGENTS"]
    given = {**CHANGE, "waitSeconds": 60}
    leading = call("run_implement_change", **given)
    if code_mode:
        code = f"repo_coder.run_implement_change(**{given!r}).json()['result']"
        leading = call("execute_python_code", code=code, executionTimeout=100)
    conversations = [{"when": {"prompt": "Lead"}, "turns": [leading, says("Led.")]}]
    simulator = world.play(says("Changed."), conversations=conversations)
    with Listener(world, "older", "--config", str(parent)) as client:
        listed = [tool["name"] for tool in client.ask("tools/list")["tools"]]
        assert [name for name in listed if name.startswith("run_")] == ["run_lead"], "the one of the file"
        view = client.call("run_lead", prompt="Lead.")
    assert world.completed(view["runId"]) == "Led."
    child = child_of(world, view["runId"])
    assert child.status is Status.COMPLETED, child.error
    assert (child.agent_name, child.depth) == ("implement_change", 1)
    assert child.root_run_id == view["runId"]
    assert world.store.read_request(child.run_id).cwd == str(world.work)
    (answer,) = tool_results(
        next(r.body for r in reversed(simulator.requests) if "Lead." in json.dumps(r.body))
    )
    assert "Changed." in answer
    offered = {tool["name"] for request in simulator.requests for tool in request.body["tools"]}
    assert {"reply_subagent", "wait_for_runs"} <= offered


def test_a_flow_that_has_no_other_server_has_the_agent_as_a_function(world: World) -> None:
    write_seed(world)
    served = {"command": "subagent", "args": ["serve", "--config", str(world.work / "coder_agent.cpe.yaml")]}
    program = (
        f"from subagent import coder\nSANDBOX = 'none'\nMCP_SERVERS = {{'coder': {served!r}}}\n"
        f"def run() -> str: return coder.run_implement_change(**{CHANGE!r}, waitSeconds=60).json()['result']"
    )
    (world.agents / "lead.flow.py").write_text(program, encoding="utf-8")
    world.play(says("Changed."))
    assert world.completed(world.start("", agent="lead")) == "Changed."


def test_it_asks_its_parent_and_stays_within_the_depth_of_the_tree(world: World) -> None:
    write_seed(world)
    served = {"command": "subagent", "args": ["serve", "--config=coder_agent.cpe.yaml"], "prefix": True}
    world.agent("lead", mcpServers={"coder": served})
    world.agent("boss", agents=["lead"])
    answer = call("reply_subagent", runId="${run}", answer="blue", waitSeconds=60)
    leads = [
        call("coder__run_implement_change", **CHANGE, waitSeconds=60),
        {**answer, "capture": {"run": '"runId": ?"([a-z0-9-]+)"'}},
        says("Led."),
    ]
    deep = [call("run_lead", prompt="Lead.", waitSeconds=60), says("Done.")]
    conversations = [
        {"when": {"prompt": "Lead"}, "turns": leads},
        {"when": {"prompt": "Boss"}, "turns": deep},
    ]
    simulator = world.play(asks("Which?"), says("Changed."), conversations=conversations)
    run_id = world.start("Lead.", agent="lead")
    assert world.completed(run_id) == "Led."
    assert child_of(world, run_id).messages[0].answer_content == "blue"
    world.environment["SUBAGENT_MAX_DEPTH"] = "1"
    boss = world.start("Boss.", agent="boss")
    assert world.completed(boss) == "Done."
    refused = [text for r in simulator.requests for text in tool_results(r.body) if "is the limit" in text]
    assert refused and not world.store.children_of(child_of(world, boss).run_id)


SERVED: dict[str, Any] = {"command": "subagent", "args": ["serve", "--config", "coder_agent.cpe.yaml"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"args": ["serve", "--config", "gone.yaml"]}, "gone.yaml"),
        ({"args": ["serve", "--config", "a" * 300]}, "it cannot be read (file name too long)"),
        ({"args": ["serve", "--config", "~nobody-here/a"]}, "no file can be found under this name"),
        ({"args": [*SERVED["args"], "--cwd", "/"]}, "leave the others out"),
        ({"sandbox": True}, "its agent's own file says where the agent works"),
    ],
)
def test_an_entry_that_cannot_be_kept_is_refused(world: World, changes: dict[str, Any], words: str) -> None:
    write_seed(world)
    world.agent("lead", mcpServers={"coder": {**SERVED, **changes}})
    checked = AgentChecker(world.service).check(world.service.registry.get("lead"))
    assert words in checked.sentences and not checked.agent.served


def test_another_program_called_subagent_is_not_taken_for_this_one(tmp_path: Path) -> None:
    write_program(tmp_path / "subagent", "#!/bin/sh\nexit 3\n")
    assert not serves_config(ServerDefinition(**SERVED), str(tmp_path))
    assert serves_config(ServerDefinition(**SERVED), str(Path(sys.executable).parent))


def test_trust_in_a_project_pins_what_its_served_agents_start(world: World) -> None:
    write_seed(world)
    del world.environment["SUBAGENT_AGENTS"]
    (world.work / "agents").mkdir(exist_ok=True)
    coder, parent = (world.work / f"{name}.cpe.yaml" for name in ("coder_agent", "parent"))
    text = parent.read_text(encoding="utf-8").replace(
        '"./coder_agent.cpe.yaml"]', '"${CODER}"]\n    env: {A: "${CODER}"}'
    )
    (world.work / "agents" / "parent.cpe.yaml").write_text(text, encoding="utf-8")
    world.environment["CODER"] = str(coder)
    conversations = [{"when": {"prompt": "Lead"}, "turns": [call("run_implement_change", **CHANGE)]}]
    world.play(says("Changed."), conversations=conversations)
    untrusted = world.cli("run", "lead", "Lead.")
    assert untrusted.returncode != 0 and "is not trusted" in untrusted.stderr
    trusted = world.cli("trust", "--yes", str(world.work))
    assert "agent implement_change of coder_agent.cpe.yaml: mcpServers.shell.command" in trusted.stdout
    assert "not_trusted" not in world.cli("run", "lead", "Lead.", "--json").stdout
    coder.write_text(CODER_OF_SEED.replace("shell-mcp", "./planted"), encoding="utf-8")
    changed = world.cli("run", "lead", "Lead.")
    assert changed.returncode != 0 and "mcpServers.shell.command" in changed.stderr


def test_an_agent_file_cannot_bring_the_verdict_of_the_judge_along(world: World) -> None:
    write_seed(world)
    agent = {"name": "planted", "systemPrompt": "Obey."}
    world.agent("lead", served={"coder": {"entry": {}, "agent": agent}}, verdict={"model": "x"})
    world.play(call("run_planted", prompt="x"), says("Done."))
    run_id = world.start(agent="lead")
    assert world.completed(run_id) == "Done." and not world.store.children_of(run_id)
