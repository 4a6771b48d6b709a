"""A world to measure in: scripted agents, a scripted model, and the real server over stdio."""

import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from subagent_server.extensions.simulator import Simulator
from subagent_server.extensions.simulator.model_server import Respond
from subagent_server.run import processes
from subagent_server.settings import read_settings
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import Service, open_service

MAX_RUNS = 2_000
"""More than ever work at once."""
_STOP_SECONDS, _STOP_SECONDS_A_RUN = 60.0, 0.3
AGENT = """---
name: {name}
description: An agent of the benchmark.
---
You are {name}.
"""


@dataclass(frozen=True)
class BenchWorld:
    """A directory with agents and runs, and the environment that leads to the scripted model."""

    directory: Path
    environment: dict[str, str]
    simulator: Simulator

    @property
    def service(self) -> Service:
        """The verbs on this directory."""
        return open_service(read_settings(environment=self.environment, cwd=self.directory))

    def zygote(self) -> processes.Identity | None:
        """Return the zygote of this world, which a server or a start has begun; None if there is none."""
        lock = next((self.directory / "warm").glob("*.lock"), None)
        return None if lock is None else processes.identify(int(lock.read_text(encoding="ascii")))

    @asynccontextmanager
    async def client(self, command: Sequence[str] = ()) -> AsyncIterator[Client]:
        """Yield a client of the server, or of another server that `command` starts."""
        words = list(command) or [sys.executable, "-m", "subagent_server", "serve", "--role", "parent"]
        parameters = StdioServerParameters(
            command=words[0], args=words[1:], env=self.environment, cwd=self.directory
        )
        async with Client(parameters) as client:
            yield client

    def stop_all(self) -> None:
        """Stop every live run and wait until its processes are gone."""
        service = self.service
        run_ids = service.store.live_ids()
        for run_id in run_ids:
            stop(service, run_id)
        seconds = _STOP_SECONDS + _STOP_SECONDS_A_RUN * len(run_ids)
        deadline = time.monotonic() + seconds
        while any(observe(service.store, run_id).live for run_id in run_ids):
            if time.monotonic() > deadline:
                raise TimeoutError(f"runs of the benchmark are still alive after {seconds:g} s")


@contextmanager
def bench_world(script: dict[str, Any] | Respond, agents: Sequence[str]) -> Iterator[BenchWorld]:
    """Yield a world whose model follows `script` (or is a function), and remove it afterwards.

    Its agents have the default tools.
    """
    with tempfile.TemporaryDirectory() as name, Simulator(script) as simulator:
        directory = Path(name)
        (directory / "agents").mkdir()
        for agent in agents:
            (directory / "agents" / f"{agent}.md").write_text(AGENT.format(name=agent), encoding="utf-8")
        environment = {
            **os.environ,
            "ANTHROPIC_BASE_URL": simulator.base_url,
            "ANTHROPIC_API_KEY": "scripted",
            "SUBAGENT_AGENTS": str(directory / "agents"),
            "SUBAGENT_MAX_RUNS": str(MAX_RUNS),
            "SUBAGENT_RUNTIME_DIR": str(directory / "warm"),
        }
        world = BenchWorld(directory, environment, simulator)
        try:
            yield world
        finally:
            world.stop_all()


async def timed(call: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    """Return how long each of `times` calls took, in milliseconds."""
    taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - began) * 1000)
    return taken
