"""Each host as a parent: connect, run, asked, reply, result, a wait that is cut, server killed, stop."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import subagent_server
from subagent_server.run import processes
from subagent_server.run.states import Status
from tests.helpers.processes import REPOSITORY
from tests.helpers.turns import asks, says, shell
from tests.helpers.world import BOUND, World
from tests.hosts.table import HOSTS, Host

PACKAGE = Path(subagent_server.__file__).parent
ADAPTERS = Path(__file__).with_name("adapters")
FOLDER = Path(os.environ.get("HOSTS") or REPOSITORY / ".cache" / "hosts").absolute()
RUN_ID = re.compile(r"\d{8}-\d{6}-\d{3}-[a-z0-9]{6}")
SHORT_SECONDS = 15.0
"""The bound of a call, set where a host lets one set it, else by the test. Some connect within it."""
_QUIET = {
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "MCP_USE_ANONYMIZED_TELEMETRY": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "AGNO_TELEMETRY": "false",
    "MASTRA_TELEMETRY_DISABLED": "1",
}
"""By these variables hosts report nothing to their makers."""


@pytest.fixture(params=HOSTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> Host:
    """Each host; one that is not installed fails."""
    found: Host = request.param
    assert (FOLDER / found.name / ".installed").exists(), (
        f"{found.name} is missing: `make test-hosts` installs it"
    )
    return found


class Bridge:
    """A host with a server of its own, in a process."""

    def __init__(self, host: Host, world: World, timeout: float | None) -> None:
        server = {"command": sys.executable, "args": ["-m", "subagent_server", "serve", "--role", "parent"]}
        order = json.dumps({**server, "env": world.environment, "timeout": timeout})
        place = FOLDER / host.name
        if host.is_npm:
            for file in ADAPTERS.glob("*.mjs"):  # modules are looked up beside the file that imports them
                (place / file.name).write_bytes(file.read_bytes())
            words = ["node", str(place / "bridge.mjs"), str(place / host.adapter), order]
        else:
            words = [
                str(place / "bin" / "python"),
                str(ADAPTERS / "bridge.py"),
                Path(host.adapter).stem,
                order,
            ]
        environment = {**os.environ, **_QUIET, "HOME": str(world.home)}
        self._errors = world.home / "host.err"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=world.work,
                env=environment,
            )
        self.names: list[str] = self._heard()["names"]

    def call(self, tool: str, bound: float = BOUND, **arguments: Any) -> str:
        """Return the text of a result; an error of the host fails."""
        told = self.tried(tool, bound, **arguments)
        assert "text" in told, told
        return str(told["text"])

    def tried(self, tool: str, bound: float = BOUND, **arguments: Any) -> dict[str, Any]:
        """Return the text of a result, or what the host has raised."""
        assert self._process.stdin is not None
        order = {"tool": tool, "arguments": arguments, "bound": bound}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._heard()

    def kill_server(self) -> None:
        """Kill the server that it has started."""
        below = processes.descendants([self._process.pid])
        servers = [each for each in below if b"serve" in processes.command_of(each.pid)]
        for server in servers:
            processes.send_signal(server, signal.SIGKILL)

    def close(self) -> None:
        """End it."""
        for each in processes.descendants([self._process.pid]):
            if b"serve" in processes.command_of(each.pid):
                processes.send_signal(each, signal.SIGTERM)
        self._process.kill()
        self._process.communicate()
        # a host may write a traceback of its own, of a server that was killed
        assert f'File "{PACKAGE}' not in self._errors.read_text(encoding="utf-8")

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the host has ended: its last words are in host.err"
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def bridge(host: Host, world: World, timeout: float | None) -> Iterator[Bridge]:
    """Give a host with a server."""
    opened = Bridge(host, world, timeout)
    try:
        yield opened
    finally:
        opened.close()


def test_a_run_is_started_asks_is_answered_and_gives_its_result_and_one_is_stopped(
    host: Host, world: World
) -> None:
    world.agent("asker")
    world.agent("sleeper", tools=["Bash"])
    world.play(
        asks("Which colour?"),
        says("It is blue."),
        conversations=[{"when": {"prompt": "Sleep"}, "turns": [shell("sleep 600")]}],
    )
    with bridge(host, world, 60 if host.takes_timeout else None) as parent:
        assert {"run_asker", "run_sleeper", "check_status", "reply_subagent", "stop_run"} <= set(parent.names)
        (run_id,) = set(RUN_ID.findall(parent.call("run_asker", prompt="Paint it.")))
        world.asking(run_id)
        assert "Which colour?" in parent.call("check_status", runId=run_id)
        parent.call("reply_subagent", runId=run_id, answer="blue")
        world.until(run_id, lambda meta: meta.status is Status.COMPLETED)
        assert "It is blue." in parent.call("check_status", runId=run_id)
        started = parent.call("run_sleeper", prompt="Sleep.")
        sleeper = RUN_ID.findall(started)[0]
        assert "stopped" in parent.call("stop_run", runId=sleeper)
        assert world.meta(sleeper).status is Status.STOPPED


def test_a_wait_that_is_cut_and_a_killed_server_end_no_run(host: Host, world: World) -> None:
    world.agent("worker", tools=["Bash"])
    world.play(shell("until [ -e go ]; do sleep 0.1; done"), says("It is blue."))
    timeout = SHORT_SECONDS if host.takes_timeout else None
    bound = BOUND if host.takes_timeout else SHORT_SECONDS
    with bridge(host, world, timeout) as parent:
        run_id = RUN_ID.findall(parent.call("run_worker", prompt="Paint it."))[0]
        world.until(run_id, lambda meta: meta.status is Status.RUNNING)
        told = parent.tried("check_status", bound, runId=run_id, waitSeconds=45)
        assert re.search("raised|time.?out|timed out", json.dumps(told), re.IGNORECASE), told
        assert world.meta(run_id).status is Status.RUNNING
        parent.kill_server()
    with bridge(host, world, 60 if host.takes_timeout else None) as parent:
        assert run_id in parent.call("list_runs", all=True)
        (world.work / "go").touch()
        world.until(run_id, lambda meta: meta.status is Status.COMPLETED)
        assert "It is blue." in parent.call("check_status", runId=run_id)
