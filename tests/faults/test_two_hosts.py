"""What only two hosts on one file system show: nothing here judges what another host alone can know."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from subagent_server.process.slots import Ticket
from subagent_server.run import durable, locks, processes
from subagent_server.run.files import Directory
from subagent_server.run.journal import RunJournal
from subagent_server.run.store import RunStore, announce
from subagent_server.verbs.live_runs import LiveRun, enter, live_runs
from tests.helpers.files import names
from tests.helpers.runs import RUN_ID, STARTED, start_run

NO_PID = 4_194_305
"""Above the largest of the kernel: here there is no such process."""


def test_a_poke_leaves_the_fifo_of_another_host(store: RunStore) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    fifo = run.files.entry("wake.another-host.4711")
    fifo.make_fifo()
    announce(run)
    assert fifo.exists()


def test_a_temporary_file_of_another_host_stays(tmp_path: Path) -> None:
    here, there = (f".exit.json.{host}.{NO_PID}.0a0b0c0d.tmp" for host in (processes.host_tag(), "another"))
    for name in (here, there):
        (tmp_path / name).touch()
    durable.remove_leftovers(Directory(tmp_path))
    assert names(tmp_path) == [there]


def test_a_live_run_of_another_host_stays_noted_and_is_not_judged_here(tmp_path: Path) -> None:
    state, here = tmp_path / "state", processes.this_process()
    elsewhere, ended = replace(here, host="another"), replace(here, start_time=1)
    for worker in (elsewhere, ended, here):
        assert enter(state, LiveRun(worker, tmp_path)) == []
    assert [run.worker for run in live_runs(state)] == [here]
    noted = json.loads((state / "live-runs.json").read_bytes())
    assert [entry["worker"] for entry in noted] == [elsewhere.to_json(), here.to_json()]


class NfsClient:
    """Looks up names as an NFS client: it remembers that one was missing until the directory is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.missing: set[str] = set()
        self._open, self._stat = os.open, os.stat
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "stat", self.stat)

    def open(self, path: Any, *arguments: Any, **named: Any) -> int:
        if path == ".":
            self.missing.clear()
        self._check(path)
        return self._open(path, *arguments, **named)

    def stat(self, path: Any, **named: Any) -> os.stat_result:
        self._check(path)
        return self._stat(path, **named)

    def _check(self, path: Any) -> None:
        if path in self.missing:
            raise FileNotFoundError(path)


def test_a_name_that_a_client_remembers_as_missing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.json").write_bytes(b"{}")
    entry = Directory(tmp_path).entry("result.json")
    client = NfsClient(monkeypatch)
    client.missing.add("result.json")
    assert entry.exists()
    client.missing.add("result.json")
    assert entry.read(10) == b"{}"


def test_on_a_node_the_journal_is_synced_once_a_second_at_most(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_run(store, RUN_ID, STARTED)
    run = store.paths.run(RUN_ID)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    RunJournal(run).append("text", datetime.now(UTC), {})
    assert synced == []
    monkeypatch.setenv(processes.NODE, "n1")
    journal = RunJournal(run)
    for _ in range(3):
        journal.append("text", datetime.now(UTC), {})
    assert synced == ["events.jsonl", "run.log"]


def test_a_removed_ticket_counts_as_removed_whatever_its_links_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, lock = Directory(tmp_path), locks.lock
    removed: list[Path] = []

    def removed_by_another_host(descriptor: int) -> None:
        lock(descriptor)
        if not removed:  # its inode still shows a name here, as NFS does for seconds
            removed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            removed[0].rename(tmp_path / "stale")

    monkeypatch.setattr(locks, "lock", removed_by_another_host)
    ticket = Ticket(slots, "root", RUN_ID)
    assert removed[0].exists() and ticket.before() is None
    ticket.leave()
    assert not removed[0].exists()
