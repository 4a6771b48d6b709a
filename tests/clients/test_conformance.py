"""The conformance suite of the protocol, in both eras, with every scored check demanded.

The product is expected to fail the checks of `conformance/expected_*.yml`, which give the reasons; a check of
these that passes fails the test too. Behind the same HTTP assembly a server with all fixtures passes all.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.driver import BOUND
from tests.clients.installed import Installed
from tests.clients.scene import Scene
from tests.helpers.http_server import HttpServer, free_port
from tests.helpers.processes import REPOSITORY
from tests.helpers.world import World

ERAS = ["2025-11-25", "2026-07-28"]
EXPECTED = Path(__file__).parent / "conformance"


def judge(clients: Installed, server: HttpServer, era: str, expected: Path | None = None) -> None:
    """Fail with what the suite says if a scored check does not end as expected."""
    more = [] if expected is None else ["--expected-failures", str(expected)]
    words = [*clients.conformance, "server", "--url", server.url, "--requirements", era, *more]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=BOUND, check=False)
    _, _, summary = done.stdout.partition("=== SUMMARY ===")
    assert done.returncode == 0, summary or done.stderr
    assert "tools-list" in summary, "the suite has judged nothing"


@contextmanager
def fixture_server(world: World) -> Iterator[HttpServer]:
    """Serve the fixtures of the suite behind the product's HTTP assembly."""
    port = free_port()
    words = [sys.executable, "-W", "ignore", "-m", "tests.clients.conformance.server", str(port)]
    errors = world.home / "fixtures.log"
    with HttpServer(words, world.environment, REPOSITORY, errors, port) as server:
        yield server
        assert "Traceback" not in server.said


@pytest.mark.parametrize("era", ERAS)
def test_the_product_fails_only_what_it_does_not_offer(clients: Installed, scene: Scene, era: str) -> None:
    with scene.world.http_server("--no-token") as server:
        judge(clients, server, era, EXPECTED / f"expected_{era}.yml")
        assert "Traceback" not in server.said


@pytest.mark.parametrize("era", ERAS)
def test_the_http_assembly_passes_every_scored_check_around_the_fixtures(
    clients: Installed, world: World, era: str
) -> None:
    with fixture_server(world) as server:
        judge(clients, server, era)
