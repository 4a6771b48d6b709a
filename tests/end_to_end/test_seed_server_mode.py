"""What "Done when" of tasks 4 to 9 of the seed on server mode says, as far as it still applies.

Wrong configurations (tasks 1, 2 and 10) are in `tests/agents/` and `tests/verbs/test_check_agent.py`, the end
of a server (task 3) is in `tests/server/test_leaving.py`.

What does not apply: `serve` without `--config` serves a directory (SPEC section 14); the conversations of
task 7 are run directories, and `subagent ls` and `show` are their commands.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import call, says, tool_results
from tests.helpers.world import World
from tests.server.listening import Listener

SCHEMA = {"type": "object", "properties": {"verdict": {"type": "string"}}, "required": ["verdict"]}
LED = [call("review__run_review_changes", prompt="Review it for your leader.", waitSeconds=60), says("Led.")]
REVIEWS = [
    call("lookup", word="cause"),
    call("final_answer", verdict=5),
    call("final_answer", verdict="good"),
]


CONFIGURATION = {
    "version": "1.0",
    "models": [{"ref": "m", "id": "claude-haiku-5-5", "type": "anthropic"}],
    "subagent": {
        "name": "review_changes",
        "description": "Review a diff.",
        "outputSchemaPath": "./schemas/review.json",
    },
    "defaults": {"model": "m", "systemPromptPath": "./prompts/review.prompt"},
    "mcpServers": {"words": scripted("lookup", keys={"type": "stdio"})},
}


@dataclass
class Scene:
    """What happened once, for all the lines: a server for one configuration, a run of it, and its leader."""

    world: World
    config: Path
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    refusal: str = ""
    led: str = ""

    def play(self) -> None:
        """Serve the configuration to a client, and let a leader use it as one of its servers."""
        conversations = [{"when": {"prompt": "Lead"}, "turns": LED}]
        simulator = self.world.play(*REVIEWS, conversations=conversations)
        (self.world.work / "diff.txt").write_text("- old\n+ new\n", encoding="utf-8")
        with Listener(self.world, "older", "--config", str(self.config)) as client:
            client.ask("logging/setLevel", level="debug")
            self.tools = {tool["name"]: tool for tool in client.ask("tools/list")["tools"]}
            given: dict[str, Any] = {"prompt": "Review the change.", "inputs": ["diff.txt"]}
            self.view = client.call("run_review_changes", **given, waitSeconds=60)
            client.hears_event("run_ended", self.view["runId"])
            self.events = client.events()
            missing: dict[str, Any] = {
                "name": "run_review_changes",
                "arguments": {**given, "inputs": ["gone.txt"]},
            }
            self.refusal = client.ask("tools/call", **missing)["content"][0]["text"]
        self.requests = [each.body for each in simulator.requests]
        serve = {
            "command": sys.executable,
            "args": ["-m", "subagent_server", "serve", "--config", str(self.config)],
        }
        tools = {"enabledTools": ["run_review_changes"], "prefix": True}
        self.world.agent("leader", agents=["review_changes"], mcpServers={"review": {**serve, **tools}})
        self.led = self.world.start("Lead the review.", agent="leader")
        self.world.completed(self.led)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene, played once."""
    world = World(tmp_path_factory.mktemp("scene"))
    folder = world.home / "configs"
    for name, text in (("schemas/review.json", json.dumps(SCHEMA)), ("prompts/review.prompt", "You review.")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text, encoding="utf-8")
    config = folder / "review.cpe.yaml"
    config.write_text(yaml.safe_dump(CONFIGURATION), encoding="utf-8")
    made = Scene(world, config)
    try:
        made.play()
        yield made
    finally:
        world.close()


def test_exactly_one_tool_of_the_subagent_is_listed_with_its_schemas(scene: Scene) -> None:
    """Task 4."""
    (name,) = [name for name in scene.tools if name.startswith("run_")]
    tool = scene.tools[name]
    assert name == "run_review_changes" and "Review a diff." in tool["description"]
    properties = tool["inputSchema"]["properties"]
    assert tool["inputSchema"]["required"] == ["prompt"] and {"prompt", "inputs"} <= properties.keys()
    assert properties["inputs"]["items"]["type"] == "string"
    assert "verdict" in json.dumps(tool["outputSchema"])


def test_a_call_executes_the_subagent_by_its_configuration(scene: Scene) -> None:
    """Task 5."""
    assert scene.view["status"] == "completed" and scene.view["agent"] == "review_changes"
    first = scene.requests[0]
    assert "+ new" in json.dumps(first["messages"][0]), "inputs are in the context"
    assert first["model"] == "claude-haiku-5-5" and first["system"][0]["text"] == "You review."
    assert "lookup" in [tool["name"] for tool in first["tools"]]
    assert tool_results(scene.requests[1]) == ['{"word": "cause"}']
    assert "gone.txt" in scene.refusal, "an error is a tool error"


def test_final_answer_has_the_schema_and_ends_the_execution(scene: Scene) -> None:
    """Task 6."""
    (tool,) = [tool for tool in scene.requests[0]["tools"] if tool["name"] == "final_answer"]
    assert tool["input_schema"] == SCHEMA
    assert scene.view["output"] == {"verdict": "good"} and len(scene.requests) == len(REVIEWS)
    assert "does not fit its schema" in tool_results(scene.requests[2])[0]


def test_an_execution_leaves_a_trace_and_the_client_hears_of_it(scene: Scene) -> None:
    """Tasks 7 and 8."""
    run_id = scene.view["runId"]
    meta = scene.world.meta(run_id)
    assert (meta.agent_name, meta.parent_run_id) == ("review_changes", None)
    assert scene.world.events(run_id, "tool_call")[0]["toolName"] == "lookup"
    assert "lookup" in scene.world.cli("logs", run_id).stdout
    levels = {data["type"]: (level, logger) for level, logger, data in scene.events}
    assert levels["tool_call"] == ("info", "subagent.review_changes")
    assert {"tool_result", "run_ended"} <= levels.keys()


def test_a_parent_has_the_server_and_invokes_its_tool(scene: Scene) -> None:
    """Task 9."""
    (child,) = scene.world.store.children_of(scene.led)
    assert scene.world.meta(child).agent_name == "review_changes"
    (result,) = scene.world.events(scene.led, "tool_result")
    assert result["isError"] is False and '"verdict"' in result["text"]
