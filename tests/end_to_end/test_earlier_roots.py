"""A runs root that an earlier version has made, before roots were marked: what it takes to have it again.

The archive was made by revision 978e047 with four runs: one that has ended, one that continues it, one that
waits for an answer, and one that works. The processes of the last two are stood in for here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.paths import RootPaths
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.helpers.processes import identity_of
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

ARCHIVE = Path(__file__).resolve().parents[1] / "run" / "data" / "root_of_978e047.tar.gz"
SHIM = """
import fcntl, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
lock = os.open(sys.argv[1] + "/live.lock", os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
print("keeps", flush=True)
signal.sigwait({signal.SIGTERM})
"""
"""What holds a run as its shim did, with that one's command line, and leaves when it is told to."""


class Earlier:
    """The root, and who stands in for the processes that kept its live runs."""

    def __init__(self, world: World, ends: ExitStack) -> None:
        self.world = world
        self.root = world.work / "runs"
        self.root.mkdir()
        subprocess.run(["tar", "-xf", ARCHIVE, "-C", self.root, "--no-same-owner"], check=True)
        self.names: dict[str, str] = json.loads((self.root / "names.json").read_text(encoding="utf-8"))
        (self.root / "names.json").unlink()
        for run_id in self.names.values():
            self._brought_here(run_id)
        self.shims = {name: self._shim(name, ends) for name in ("waiting", "live")}

    def _brought_here(self, run_id: str) -> None:
        """Let the records name this host, boot and century, as those of a root that was just left do."""
        for file in (self.root / run_id).glob("*.json"):
            record = json.loads(file.read_text(encoding="utf-8"))
            for part in (record.get("launch"), record.get("worker"), record.get("shim")):
                if part:
                    part |= {"host": processes.host_name(), "bootId": processes.boot_id()}
            for message in record.get("messages", ()):
                message["expiresAt"] = "2126-11-22T00:00:00.000Z"  # it was an hour after it was asked
            file.write_text(json.dumps(record), encoding="utf-8")

    def _shim(self, name: str, ends: ExitStack) -> "subprocess.Popen[str]":
        directory, program = self.root / self.names[name], self.world.home / "launch" / "shim.py"
        program.parent.mkdir(exist_ok=True)
        program.write_text(SHIM, encoding="utf-8")
        command = [sys.executable, "-I", "-S", str(program), str(directory), "3", "4"]
        shim = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8"))
        ends.callback(shim.kill)
        assert shim.stdout is not None and shim.stdout.readline() == "keeps\n"
        who = identity_of(shim.pid).to_json()
        record = {"shim": who, "worker": who, "directory": directory.stat().st_ino}
        (directory / "shim.json").write_text(json.dumps(record), encoding="utf-8")
        return shim

    def state(self) -> dict[str, tuple[int, int]]:
        """Return what would tell of a change in it."""
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in self.root.rglob("*")}


@pytest.fixture
def earlier(world: World) -> Iterator[Earlier]:
    """The root in the working directory of a world that names no other."""
    del world.environment["SUBAGENT_RUNS"]
    with ExitStack() as ends:
        yield Earlier(world, ends)


def test_it_is_passed_over_and_read_and_nothing_in_it_changes_until_it_is_adopted(
    earlier: Earlier,
) -> None:
    world, names = earlier.world, earlier.names
    before = earlier.state()
    passed = world.cli("ls")
    assert passed.returncode == 0 and "`subagent trust --runs runs`" in passed.stderr
    assert names["ended"] not in passed.stdout and not (world.work / ".subagent").exists()

    listed = json.loads(world.cli("--runs", "runs", "ls", "--json").stdout)
    assert {row["runId"]: row["status"] for row in listed} == {
        names["ended"]: "completed",
        names["continued"]: "completed",
        names["waiting"]: "waiting_parent_reply",
        names["live"]: "running",
    }
    assert "Which colour?" in world.cli("--runs", "runs", "show", names["waiting"]).stdout
    for words in (
        ["stop", names["live"]],
        ["reply", names["waiting"], "red"],
        ["rm", names["ended"]],
        ["prune"],
    ):
        refused = world.cli("--runs", "runs", *words)
        assert refused.returncode == 6 and "subagent trust --runs" in refused.stderr, refused.stderr
    assert earlier.state() == before
    assert all(shim.poll() is None for shim in earlier.shims.values())


def test_it_is_taken_over_with_its_live_runs(earlier: Earlier) -> None:
    world, names = earlier.world, earlier.names
    taken = world.cli("trust", "--runs", "runs")
    assert taken.returncode == 0, taken.stderr
    assert "4 runs" in taken.stdout and "completed: 2" in taken.stdout and "is yours" in taken.stderr
    assert RootPaths(earlier.root).is_ours and earlier.root.stat().st_mode & 0o077 == 0

    rows = {row["runId"]: row for row in json.loads(world.cli("ls", "--json").stdout)}
    assert [rows[names[name]].get("live") for name in ("waiting", "live", "ended")] == [True, True, False]
    assert world.cli("reply", names["waiting"], "red").returncode == 0
    store = RunStore(earlier.root)
    assert store.read(names["waiting"]).messages[0].answer_content == "red"

    assert world.cli("stop", names["live"]).returncode == 0
    assert earlier.shims["live"].wait(BOUND) == 0, "its shim was told"
    wait_for(lambda: world.cli("ls").returncode == 0, BOUND, "a reader")
    assert store.read(names["live"]).status is Status.STOPPED

    again = world.cli("trust", "--runs", "runs")
    assert again.returncode == 0 and "nothing to do" in again.stderr
    assert world.cli("rm", names["ended"]).returncode == 0
    assert not (earlier.root / names["ended"]).exists()
    assert os.listxattr(earlier.root) or (earlier.root / ".root").exists()
