"""Each line of "Done when" of tasks 1 to 10 of the seed on server mode that still applies, by its name.

What does not apply: `serve` without `--config` serves a directory (SPEC section 14); the conversations of
task 7 are run directories, and `subagent ls` and `show` are their commands.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from subagent_server.agents.formats import load_config, load_file
from subagent_server.agents.yaml_reader import AgentFileError
from tests.helpers.mcp_servers import scripted
from tests.helpers.raw_server import HELLO, READY, request
from tests.helpers.turns import call, says, tool_results
from tests.helpers.world import World
from tests.server.listening import Listener

SCHEMA = {"type": "object", "properties": {"verdict": {"type": "string"}}, "required": ["verdict"]}
LEAVES_WITHIN = 60.0
LED = [call("review__run_review_changes", prompt="Review it for your leader.", waitSeconds=60), says("Led.")]
REVIEWS = [
    call("lookup", word="cause"),
    call("final_answer", verdict=5),
    call("final_answer", verdict="good"),
]


def configuration(**changes: Any) -> dict[str, Any]:
    """Return a configuration of the seed; a change to None leaves a key out."""
    whole: dict[str, Any] = {
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
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name and value is None:
            del whole[part][name]
        elif name:
            whole[part][name] = value
        elif value is None:
            del whole[part]
    return whole


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

    def write(self, **changes: Any) -> Path:
        """Write a configuration beside the good one."""
        path = self.config.with_name("other.cpe.yaml")
        path.write_text(yaml.safe_dump(configuration(**changes)), encoding="utf-8")
        return path

    def refused(self, **changes: Any) -> str:
        """Return why a configuration cannot be served."""
        with pytest.raises(AgentFileError) as caught:
            load_config(self.write(**changes))
        return caught.value.sentence

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
    (folder / "schemas" / "broken.json").write_text("{", encoding="utf-8")
    config = folder / "review.cpe.yaml"
    config.write_text(yaml.safe_dump(configuration()), encoding="utf-8")
    made = Scene(world, config)
    try:
        made.play()
        yield made
    finally:
        world.close()


LINES: dict[str, Callable[[Scene], None]] = {}


def line(task: int, said: str) -> Callable[[Callable[[Scene], None]], None]:
    """Enter a check under a line of the seed."""

    def enter(check: Callable[[Scene], None]) -> None:
        LINES[f"{task}: {said}"] = check

    return enter


@line(1, "a config with a subagent block parses without error")
def _(scene: Scene) -> None:
    assert load_file(scene.config).definition.faults == []


@line(1, "validation rejects missing required fields (name, description)")
def _(scene: Scene) -> None:
    assert "subagent.name is missing" in scene.refused(subagent__name=None)
    assert "subagent.description is missing" in scene.refused(subagent__description=None)


@line(1, "validation verifies that outputSchemaPath points to a file")
def _(scene: Scene) -> None:
    assert "gone.json" in scene.refused(subagent__outputSchemaPath="./schemas/gone.json")


@line(1, "lint validates the subagent configuration (subagent doctor FILE)")
def _(scene: Scene) -> None:
    good = scene.world.cli("doctor", str(scene.config))
    bad = scene.world.cli("doctor", str(scene.write(subagent__description=None)))
    assert good.returncode == 0, good.stdout
    assert bad.returncode == 1 and "subagent.description is missing" in bad.stdout


@line(2, "serve --help displays usage")
def _(scene: Scene) -> None:
    done = scene.world.cli("serve", "--help")
    assert done.returncode == 0 and "--config FILE" in done.stdout


@line(2, "serve --config with a missing file prints an error about it")
def _(scene: Scene) -> None:
    done = scene.world.cli("serve", "--config", "./nonexistent.yaml")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "nonexistent.yaml" in done.stderr


@line(2, "serve --config without a subagent prints an error about it")
def _(scene: Scene) -> None:
    done = scene.world.cli("serve", "--config", str(scene.write(subagent=None)))
    assert (done.returncode, done.stdout) == (2, "") and "no 'subagent:' block" in done.stderr


@line(3, "the server starts, waits, ends cleanly at the end of input and at SIGINT, with a clean stdout")
def _(scene: Scene) -> None:
    for interrupt in (False, True):
        with scene.world.raw_server("--config", str(scene.config)) as server:
            server.say(HELLO, READY, request(1, "tools/list"))
            assert server.answer_to(1)["result"]["tools"]
            server.signal(signal.SIGINT) if interrupt else server.end_input()
            assert server.leaves(LEAVES_WITHIN) == 0
            server.rest()  # every line is a message


@line(4, "tools/list has exactly one tool of the subagent, with name, description and input schema")
def _(scene: Scene) -> None:
    (name,) = [name for name in scene.tools if name.startswith("run_")]
    tool = scene.tools[name]
    assert name == "run_review_changes" and "Review a diff." in tool["description"]
    properties = tool["inputSchema"]["properties"]
    assert tool["inputSchema"]["required"] == ["prompt"] and {"prompt", "inputs"} <= properties.keys()
    assert properties["inputs"]["items"]["type"] == "string"


@line(4, "the output schema is in the tool definition")
def _(scene: Scene) -> None:
    assert "verdict" in json.dumps(scene.tools["run_review_changes"]["outputSchema"])


@line(4, "an invalid outputSchemaPath (missing file, invalid JSON) causes startup failure")
def _(scene: Scene) -> None:
    done = scene.world.cli(
        "serve", "--config", str(scene.write(subagent__outputSchemaPath="schemas/broken.json"))
    )
    assert done.returncode == 2 and "broken.json" in done.stderr


@line(5, "a tool call executes the subagent and returns its response")
def _(scene: Scene) -> None:
    assert scene.view["status"] == "completed" and scene.view["agent"] == "review_changes"


@line(5, "inputs are included in the context")
def _(scene: Scene) -> None:
    assert "+ new" in json.dumps(scene.requests[0]["messages"][0])


@line(5, "the subagent uses model, system prompt and MCP servers of its config")
def _(scene: Scene) -> None:
    first = scene.requests[0]
    assert first["model"] == "claude-haiku-5-5" and first["system"][0]["text"] == "You review."
    assert "lookup" in [tool["name"] for tool in first["tools"]]
    assert tool_results(scene.requests[1]) == ['{"word": "cause"}']


@line(5, "errors are returned as MCP tool errors")
def _(scene: Scene) -> None:
    assert "gone.txt" in scene.refusal


@line(6, "a subagent with an output schema has final_answer")
def _(scene: Scene) -> None:
    (tool,) = [tool for tool in scene.requests[0]["tools"] if tool["name"] == "final_answer"]
    assert tool["input_schema"] == SCHEMA


@line(6, "final_answer ends the execution and its data is the tool result")
def _(scene: Scene) -> None:
    assert scene.view["output"] == {"verdict": "good"} and len(scene.requests) == len(REVIEWS)


@line(6, "an invalid final_answer results in an error")
def _(scene: Scene) -> None:
    assert "does not fit its schema" in tool_results(scene.requests[2])[0]


@line(7, "an execution leaves a trace that is told from others by label and agent")
def _(scene: Scene) -> None:
    meta = scene.world.meta(scene.view["runId"])
    assert (meta.agent_name, meta.parent_run_id) == ("review_changes", None)
    assert scene.world.events(scene.view["runId"], "tool_call")[0]["toolName"] == "lookup"


@line(7, "the trace can be listed and displayed")
def _(scene: Scene) -> None:
    run_id = scene.view["runId"]
    assert run_id in scene.world.cli("ls", "--json").stdout
    assert "lookup" in scene.world.cli("logs", run_id).stdout


@line(8, "the client receives log notifications with level, logger and data")
def _(scene: Scene) -> None:
    levels = {data["type"]: (level, logger) for level, logger, data in scene.events}
    assert levels["tool_call"] == ("info", "subagent.review_changes")
    assert {"tool_result", "run_ended"} <= levels.keys()


@line(9, "a parent config spawns the server with its config, and the parent invokes the tool")
def _(scene: Scene) -> None:
    (child,) = scene.world.store.children_of(scene.led)
    assert scene.world.meta(child).agent_name == "review_changes"
    (result,) = scene.world.events(scene.led, "tool_result")
    assert result["isError"] is False and '"verdict"' in result["text"]


@line(10, "error paths return actionable messages with enough context, and no panic")
def _(scene: Scene) -> None:
    for sentence in (scene.refusal, scene.refused(defaults__model="other"), scene.refused(defaults=None)):
        assert "Traceback" not in sentence and sentence.endswith(".") and len(sentence) > 40
    assert "other" in scene.refused(defaults__model="other")


@pytest.mark.parametrize("said", LINES)
def test_the_seed_says_that_task(scene: Scene, said: str) -> None:
    LINES[said](scene)
