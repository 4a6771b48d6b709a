"""Parents that come over HTTP at the same time: each hears its own runs, in both eras of the protocol."""

import pytest

from tests.helpers.mcp_client import Mode
from tests.http.conftest import Painter


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_two_parents_of_one_server_hear_their_own_runs_only(painter: Painter, mode: Mode) -> None:
    world, server = painter.world, painter.server
    with server.parent(f"first-{mode}", mode) as first, server.parent(f"second-{mode}", mode) as second:
        run_id = first.call("run_worker", prompt="Paint it.")["runId"]
        world.asking(run_id)
        nothing = second.call("wait_for_runs", waitSeconds=0)
        assert nothing["runs"] == nothing["working"] == []
        assert nothing["otherParents"] == "1 run of another parent asks: list_runs(all=true) shows it."
        row = second.call("list_runs", all=True)["runs"][0]
        assert row["startedBy"].startswith(f"first-{mode} as first-{mode}, process ")
        (view,) = first.call("wait_for_runs", waitSeconds=30)["runs"]
        assert view["runId"] == run_id and view["messages"] and "startedBy" not in view
        first.call("reply_subagent", runId=run_id, answer="Red.")
        assert first.call("check_status", runId=run_id, waitSeconds=30)["result"] == "Painted."
        assert second.call("list_runs")["runs"] == []
