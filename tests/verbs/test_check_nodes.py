"""`doctor --nodes`: what nodes answer is data, and what they do not answer is a finding."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from subagent_server.process.remote import NoAnswer, RemoteLauncher
from subagent_server.run import locks, processes
from subagent_server.run.errors import BadArgument, StorageFailed
from subagent_server.settings import read_settings
from subagent_server.verbs import check_nodes
from subagent_server.verbs.check_nodes import NodeReport, main
from subagent_server.verbs.service import open_service
from tests.faults.disks import read_only


def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Callable[..., None]) -> list[NodeReport]:
    @dataclass(frozen=True)
    class Launcher(RemoteLauncher):
        def nodes(self) -> list[str]:
            return ["n1"]

        def execute(self, _: str, words: Sequence[str]) -> None:
            node(*words[-2:])

    launcher = Launcher("n1")
    monkeypatch.setattr(check_nodes, "launcher_for", lambda *_: launcher)
    monkeypatch.setattr(check_nodes, "ANSWER_SECONDS", 0.3)
    settings = read_settings(
        environment={"HOME": str(tmp_path), "SUBAGENT_RUNS": str(tmp_path / "runs")}, cwd=tmp_path
    )
    found = list(check_nodes.check_nodes(open_service(settings)))
    assert [each.name for each in (tmp_path / "runs").glob(".check*")] == []
    return found


def test_a_node_that_has_everything_has_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_nodes, "outlook", lambda *_: "none")
    (report,) = reports(tmp_path, monkeypatch, main)
    assert report.faults == [] and "Python 3." in report.words and "clock +0.0 s" in report.words


def test_a_clock_and_a_lock_that_a_node_does_not_share_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_nodes, "outlook", lambda *_: "none")
    monkeypatch.setattr(locks, "is_held", lambda _: False)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    (report,) = reports(tmp_path, monkeypatch, main)
    assert ["clock" in each or "locks" in each for each in report.faults] == [True, True]


def test_a_node_on_which_no_run_can_be_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    (report,) = reports(tmp_path, monkeypatch, main)
    assert "Python 3." in report.words and ["pidfd_open" in each for each in report.faults] == [True]


@pytest.mark.process
def test_a_node_leaves_what_another_one_on_its_machine_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def node(directory: str, name: str) -> None:
        tag = processes.host_tag()
        written.append(Path(directory, f".n2.json.{tag}.{2**22 + 1}.0123.tmp"))  # a pid that none has here
        written[0].touch()
        words = [sys.executable, "-m", check_nodes.__name__, directory, name]
        subprocess.run(words, env=os.environ | {"SLURMD_NODENAME": name}, check=True)
        assert written[0].exists()

    (report,) = reports(tmp_path, monkeypatch, node)
    assert report.faults == [] and len(written) == 1


def refuse(*_: str) -> None:
    raise NoAnswer("it is down")


def lie(directory: str, node: str) -> None:
    answer = {"version": "9", "words": "\x1b[2J" * 999, "faults": [["\n"], 7]}
    Path(directory, f"{node}.json").write_text(json.dumps(answer), encoding="utf-8")


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (refuse, "it is down"),
        (lambda *_: None, "no answer in 0.3 s"),
        (
            lambda directory, node: Path(directory, f"{node}.json").write_text("7", encoding="utf-8"),
            "no answer",
        ),
        (lie, "it has another version of this package"),
    ],
)
def test_what_a_node_does_not_say_is_a_finding(
    node: Callable[..., None], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (report,) = reports(tmp_path, monkeypatch, node)
    assert any(fault in each for each in report.faults)
    assert "\x1b" not in report.words and len(report.words) <= 500


def test_without_nodes_the_doctor_says_how_to_name_them(tmp_path: Path) -> None:
    settings = read_settings(environment={"HOME": str(tmp_path)}, cwd=tmp_path)
    with pytest.raises(BadArgument, match="--launcher"):
        list(check_nodes.check_nodes(open_service(settings)))


@pytest.mark.process
def test_runs_that_cannot_be_written_are_named_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports(tmp_path, monkeypatch, refuse)
    with read_only(tmp_path / "runs"), pytest.raises(StorageFailed, match=f"^{tmp_path}/runs/.check-"):
        reports(tmp_path, monkeypatch, refuse)
