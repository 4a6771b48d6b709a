"""The live runs of a user are noted in one file, whoever stands in the way."""

from pathlib import Path

import pytest

from subagent_server.run.errors import LockTimeout
from subagent_server.run.files import Entry
from subagent_server.run.locks import exclusive
from subagent_server.run.processes import this_process
from subagent_server.verbs import live_runs
from subagent_server.verbs.live_runs import LiveRun, enter


def test_a_process_that_stands_still_with_the_lock_holds_up_no_start_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "_LOCK_SECONDS", 0.1)
    state, mine = tmp_path / "state", LiveRun(this_process(), tmp_path / "runs")
    assert enter(state, mine) == []
    with exclusive(Entry.at(state / "live-runs.lock")), pytest.raises(LockTimeout, match="held by another"):
        enter(state, mine)
    assert [each.root for each in enter(state, mine)] == [mine.root]
