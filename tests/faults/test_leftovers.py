"""What a writer that is killed in the middle leaves is cleared away, and nobody else's is."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.cli import client_files
from subagent_server.run import durable
from subagent_server.run.files import Directory, Entry
from subagent_server.run.store import RunStore
from subagent_server.sandbox.file_watch import OwnWrites
from subagent_server.verbs.reconcile import observe
from tests.helpers.files import names
from tests.helpers.processes import Child
from tests.helpers.runs import RUN_ID, STARTED, start_run

WRITER = """
    import sys
    from pathlib import Path
    from subagent_server.run.files import Entry
    from subagent_server.run import durable
    print(durable.prepare(Entry.at(Path(sys.argv[1])), b"half a state").name, flush=True)
    sys.stdin.readline()
"""


def test_a_temporary_file_goes_with_its_writer_and_not_before(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    with Child(WRITER, run.meta) as living, Child(WRITER, run.result) as killed:
        kept, left = living.hear(), killed.hear()
        killed.kill()
        assert {kept, left} <= set(names(run.directory))
        assert observe(store, RUN_ID).live is False
        assert kept in names(run.directory) and left not in names(run.directory)
        living.kill()
        durable.remove_leftovers(Directory(run.directory))
    assert not [name for name in names(run.directory) if name.endswith(".tmp")]


def test_a_killed_writer_that_its_parent_has_not_collected_yet_counts_as_gone(tmp_path: Path) -> None:
    with Child(WRITER, tmp_path / "state") as writer:
        writer.hear()
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        durable.remove_leftovers(Directory(tmp_path))
        assert names(tmp_path) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: durable.write_durably(Entry.at(path), b"{}"),
        lambda path: client_files.write(client_files.Change(path, None, b"{}"), OwnWrites(None)),
    ],
    ids=["a file of ours", "a file of a client"],
)
def test_what_a_killed_writer_left_goes_with_the_next_write_in_its_directory(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    with Child(WRITER, tmp_path / "state") as writer:
        writer.hear()
        writer.kill()
    write(tmp_path / "other")
    assert names(tmp_path) == ["other"]


def test_what_killed_readers_and_workers_left_goes_with_the_next_look_at_a_run_that_is_over(
    store: RunStore,
) -> None:
    start_run(store, RUN_ID, STARTED)
    assert observe(store, RUN_ID).live is False
    run = store.paths.run(RUN_ID)
    before = names(run.directory)
    with Child(WRITER, run.exit) as reader, Child(WRITER, run.meta) as stopper:
        left = {reader.hear(), stopper.hear()}
        reader.kill()
        stopper.kill()
    run.wake(4711).make_fifo()
    assert left <= set(names(run.directory))
    assert observe(store, RUN_ID).live is False
    assert names(run.directory) == before


def test_other_files_are_no_leftovers(tmp_path: Path) -> None:
    for name in ("notes.tmp", ".hidden", ".a.tmp", ".meta.json.x.y.tmp", ".meta.json.1.y.tmp"):
        (tmp_path / name).touch()
    before = names(tmp_path)
    durable.remove_leftovers(Directory(tmp_path))
    assert names(tmp_path) == before
