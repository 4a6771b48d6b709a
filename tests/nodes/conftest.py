"""A cluster and hosts for the tests of nodes, and worlds whose runs go there."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers import bubblewrap
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.nodes import cluster as slurm_cluster
from tests.nodes import ssh_hosts
from tests.nodes.cluster import Cluster
from tests.nodes.ssh_hosts import SshHosts

LEASE = 6.0
"""In seconds; 60 with users."""
Made = Callable[[str, Mapping[str, str]], World]


def over(world: World, run_id: str) -> None:
    """Return as soon as every reader says that nothing of a run lives."""
    wait_for(lambda: world.look(run_id).live is False, BOUND, f"the end of all of run {run_id}")


def lost(world: World, run_id: str) -> None:
    """Return as soon as a reader says that a run is lost."""
    world.judged(run_id)
    assert world.failed(run_id)[0] == "lost"


def holds(root: Path, secret: str) -> list[str]:
    """Return the files below a directory that hold a text."""
    files = (file for file in root.rglob("*") if file.is_file() and file.name != "s.lock")  # of munged
    return [str(file) for file in files if secret.encode() in file.read_bytes()]


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A directory whose path is short, as sockets need it."""
    assert os.getuid() != 0, "an ordinary user runs these tests: `make test-nodes`"
    with tempfile.TemporaryDirectory(prefix="nodes", ignore_cleanup_errors=True) as home:
        yield Path(home)


@pytest.fixture(scope="session")
def cluster(home: Path) -> Iterator[Cluster]:
    """A cluster of an ordinary user."""
    lacking = slurm_cluster.missing()
    assert not lacking, f"apt-get install slurmctld slurmd slurm-client munge: no {', '.join(lacking)}"
    (home / "slurm").mkdir()
    with Cluster(home / "slurm") as running:
        yield running


@pytest.fixture(scope="session")
def hosts(home: Path) -> Iterator[SshHosts]:
    """Hosts that `ssh` reaches."""
    lacking = ssh_hosts.missing()
    assert not lacking, f"apt-get install openssh-server openssh-client: no {', '.join(lacking)}"
    (home / "ssh").mkdir()
    with SshHosts(home / "ssh") as running:
        yield running


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Make the world of a test, by its launcher and what clients need to reach it."""
    with ExitStack() as ending:

        def make(launcher: str, environment: Mapping[str, str]) -> World:
            world = World(tmp_path)
            ending.callback(world.close)
            # in the namespace of a node nobody is root, who has to own the bubblewrap of the system
            world.environment |= {**environment, **bubblewrap.packaged()}
            world.environment |= {"SUBAGENT_LAUNCHER": launcher, "SUBAGENT_LEASE": f"{LEASE:g}"}
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            return world

        yield make


@pytest.fixture
def on_slurm(made: Made, cluster: Cluster) -> World:
    """A world whose runs go to the cluster."""
    return made("slurm", cluster.environment)


@pytest.fixture
def on_host(made: Made, hosts: SshHosts) -> World:
    """A world whose runs go to the first host."""
    return made("ssh:h1", hosts.environment)


@pytest.fixture(params=["on_slurm", "on_host"])
def world(request: pytest.FixtureRequest) -> World:
    """A world whose runs go to nodes, of either kind."""
    found: World = request.getfixturevalue(request.param)
    return found
