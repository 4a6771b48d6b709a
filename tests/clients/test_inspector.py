"""MCP Inspector calls the server in both eras of the protocol and finds its schemas portable."""

import json
import subprocess
from typing import Any

import pytest

from subagent_server.tools.tool_table import PARENT_TOOLS
from tests.clients.driver import BOUND, SCRIPT
from tests.clients.installed import Installed
from tests.clients.scene import Scene

ERAS = ["legacy", "modern"]
SERVER = [str(SCRIPT), "serve", "--role", "parent"]


class Inspector:
    """The Inspector's command line: each call starts the server anew."""

    def __init__(self, clients: Installed, scene: Scene, era: str) -> None:
        self._words = [*clients.inspector, *SERVER, "--protocol-era", era]
        self._world = scene.world

    def __call__(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        given = {
            name: value for name, value in self._world.environment.items() if name not in ("PATH", "HOME")
        }
        passed = [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
        return subprocess.run(
            [*self._words, *passed, *words],
            cwd=self._world.work,
            env=self._world.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=BOUND,
            check=False,
        )

    def asked(self, *words: str) -> Any:
        """Run it and return what the server has answered."""
        done = self(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def called(self, tool: str, **arguments: object) -> Any:
        """Call a tool and return its structured content."""
        pairs = [word for name, value in arguments.items() for word in ("--tool-arg", f"{name}={value}")]
        return self.asked("--method", "tools/call", "--tool-name", tool, *pairs)["structuredContent"]


@pytest.fixture(params=ERAS)
def inspector(request: pytest.FixtureRequest, clients: Installed, scene: Scene) -> Inspector:
    """The Inspector in each era."""
    return Inspector(clients, scene, request.param)


def test_it_lists_the_tools_and_finds_no_schema_that_is_not_portable(inspector: Inspector) -> None:
    done = inspector("--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stderr
    names = [tool["name"] for tool in json.loads(done.stdout)["tools"]]
    assert names == ["run_painter", *(tool.name for tool in PARENT_TOOLS)]


def test_it_starts_a_run_and_gets_its_result_from_another_server(inspector: Inspector) -> None:
    view = inspector.called("run_painter", prompt="Paint it.")
    assert view["status"] in ("ready", "running")
    view = inspector.called("check_status", runId=view["runId"], waitSeconds=30)
    assert (view["status"], view["result"]) == ("completed", "Painted.")


def test_it_is_refused_in_a_sentence(inspector: Inspector) -> None:
    done = inspector("--method", "tools/call", "--tool-name", "check_status", "--tool-arg", "runId=none")
    answer = json.loads(done.stdout)
    assert answer["isError"] is True and "There is no run 'none'" in answer["content"][0]["text"]
