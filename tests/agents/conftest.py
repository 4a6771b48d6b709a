"""Files to load, written where a test may write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.run.agent_definition import AgentDefinition

WriteFile = Callable[[str, str | bytes], Path]
Load = Callable[[str], AgentDefinition]


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    """Return a function that writes a file below the test's directory and gives its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write_file


@pytest.fixture
def agent(write: WriteFile) -> Load:
    """Return a function that loads an agent with these keys in its front matter."""

    def load(keys: str) -> AgentDefinition:
        return load_agent_file(write("a.md", f"---\nname: a\ndescription: d\n{keys}\n---\nYou help.\n"))

    return load
