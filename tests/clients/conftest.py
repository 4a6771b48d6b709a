"""The scene, and each client in it."""

from collections.abc import Iterator

import pytest

from tests.clients.claude_code import ClaudeCode
from tests.clients.codex import Codex
from tests.clients.driver import ParentClient
from tests.clients.gemini_cli import GeminiCli
from tests.clients.installed import Installed, installed
from tests.clients.scene import Scene
from tests.clients.scene import scene as set_scene
from tests.helpers.world import World


@pytest.fixture(autouse=True)
def temporary(world: World) -> None:
    """Clients leave libraries in it, and the sandbox of Codex does not start from a home below it."""
    directory = world.home / "tmp"
    directory.mkdir()
    world.environment["TMPDIR"] = str(directory)


@pytest.fixture
def clients() -> Installed:
    """The clients that are installed."""
    return installed()


@pytest.fixture
def scene(world: World) -> Iterator[Scene]:
    """A world with an agent, and a fence around it."""
    with set_scene(world) as made:
        yield made


@pytest.fixture(params=[ClaudeCode, Codex, GeminiCli], ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, scene: Scene, clients: Installed) -> ParentClient:
    """Each client, one after the other."""
    made: ParentClient = request.param(scene, clients)
    return made
