"""Flows on disk, and a model that answers by what it is asked."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from subagent_server.extensions.simulator import Simulator
from tests.helpers.repositories import git
from tests.helpers.turns import says
from tests.helpers.world import World

FAN = """\
'''Ask many at once.'''
from subagent import agents, gather

AGENTS = ["worker"]
SANDBOX = "none"

def run(many: int = 3, limit: int = 8) -> list[str]:
    calls = [agents.worker.call(prompt=f"task {n} of the fan") for n in range(many)]
    return gather(*calls, limit=limit)
"""
DONE = says("done ${n}", capture={"n": r"task (\w+)"})


def flow(world: World, text: str = FAN, name: str = "fan") -> None:
    """Write a flow, and the agent that it may start."""
    if not (world.agents / "worker.md").exists():
        world.agent()
    (world.agents / f"{name}.flow.py").write_text(text, encoding="utf-8")


def body(lines: str, returns: str = "str", keys: str = "") -> str:
    """Return a flow whose `run` has these lines."""
    indented = "".join(f"    {line}\n" for line in lines.splitlines())
    names = "ToolError, RunFailed, agents, ask, gather, log, merge, now, phase, random"
    return (
        f"'''A flow.'''\nfrom subagent import {names}\n\nAGENTS = ['worker']\nSANDBOX = 'none'\n{keys}\n\n"
        f"def run() -> {returns}:\n{indented}"
    )


def repository(place: Path) -> Callable[..., str]:
    """Make a repository with one commit of `a.txt`, and return git in it."""
    (place / "a.txt").write_text("first\n", encoding="utf-8")
    git("init", "-q", "-b", "main", place)
    for name in ("user.name", "user.email"):
        git("-C", place, "config", name, "a@example.org")
    git("-C", place, "add", ".")
    git("-C", place, "commit", "-qm", "first")
    return partial(git, "-C", place)


def asked(simulator: Simulator) -> Counter[str]:
    """Return how often the model was asked each task, by its name."""
    return Counter(task for request in simulator.requests if (task := _task(request.body)) is not None)


def _task(sent: Any) -> str | None:
    content = sent["messages"][0]["content"]
    texts = [content] if isinstance(content, str) else [block.get("text", "") for block in content]
    found = re.search(r"task (\w+)", "\n".join(texts))
    return None if found is None else found[1]
