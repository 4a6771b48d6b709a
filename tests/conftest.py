"""Fixtures that tests of several rooms share. Nothing here works unasked."""

from pathlib import Path

import pytest

from subagent_server.store.runs import RunStore


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty runs root of its own, made already."""
    runs = RunStore(tmp_path / "runs")
    runs.make_root()
    return runs
