"""One server for the tests of a module that leave it as it is."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.helpers.http_server import HttpServer
from tests.helpers.turns import asks, says
from tests.helpers.world import World


@dataclass(frozen=True)
class Painter:
    """A server whose agent asks for a colour and then says that it has painted."""

    world: World
    server: HttpServer


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painter]:
    """A painter that the tests of a module share: each starts runs of its own."""
    world = World(tmp_path_factory.mktemp("painter"))
    world.agent()
    world.play(asks("Which colour?"), says("Painted."))
    with world.http_server() as server:
        yield Painter(world, server)
    world.close()
