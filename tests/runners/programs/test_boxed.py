"""A program that carries out a run in a box: what it reaches there, and how it speaks with its parent."""

import json
import sys
from typing import Any

import pytest

from tests.helpers.world import API_KEY, World

CLIENT = """
import json, os, subprocess, sys

class Server:
    def __init__(self):
        with open(os.environ["SUBAGENT_MCP_CONFIG"]) as file:
            self.words = json.load(file)["mcpServers"]["subagent"]
        command = [self.words["command"], *self.words["args"]]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        self.call("initialize", **client)
        self.send(method="notifications/initialized")

    def send(self, **message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
        self.process.stdin.flush()

    def call(self, method, **params):
        self.send(id=1, method=method, params=params)
        while True:
            answer = json.loads(self.process.stdout.readline())
            if answer.get("id") == 1:
                return answer["result"]

    def ask(self, question):
        asked = self.call("tools/call", name="ask_parent", arguments={"question": question})
        return asked["structuredContent"]["answer"]
"""


def program(world: World, code: str, **keys: Any) -> None:
    """Write an agent whose program is this Python code, in a box, with a class `Server` for its questions."""
    script = world.home / "program.py"
    script.write_text(f"{CLIENT}\n{code}", encoding="utf-8")
    keys = {"sandbox": "bwrap", "sandboxRead": [str(script)], **keys}
    world.agent("worker", "", runner="command", command=sys.executable, args=[str(script)], **keys)


def test_it_asks_through_the_relay_by_one_server_after_the_other(world: World) -> None:
    program(
        world,
        "print(Server().ask('Which colour?')); second = Server(); second.process.stdin.close()\n"
        "print(second.process.wait(), Server().ask('Which shape?'))",
    )
    run_id = world.start()
    for answer in ("blue", "round"):
        world.asking(run_id)
        world.reply(run_id, answer)
        world.until(run_id, lambda meta: meta.pending_questions == 0)
    assert world.completed(run_id) == "blue\n0 round"
    (started,) = world.events(run_id, "run_started")
    assert started["sandbox"].startswith("bwrap (")
