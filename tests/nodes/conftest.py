"""A cluster for the tests of nodes, and a world whose runs go to it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.world import World
from tests.nodes.cluster import Cluster, missing

LEASE = 6.0
"""In seconds; 60 with users."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of an ordinary user."""
    assert not missing(), f"apt-get install slurmctld slurmd slurm-client munge: no {', '.join(missing())}"
    assert os.getuid() != 0, "an ordinary user runs these tests: `make test-nodes`"
    named = tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True)
    with named as home, Cluster(Path(home)) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose runs go to the cluster."""
    made = World(tmp_path)
    made.environment |= {**cluster.environment, "SUBAGENT_LAUNCHER": "slurm", "SUBAGENT_LEASE": f"{LEASE:g}"}
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield made
    finally:
        made.close()
