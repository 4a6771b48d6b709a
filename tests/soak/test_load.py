"""Very many starts at once, and very many calls beside a soak: all are answered, and nothing grows."""

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from tests.helpers.forked import PROGRAM
from tests.helpers.raw_server import HELLO, READY, tool_call
from tests.helpers.scale import times
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import World
from tests.soak import soak as soaks
from tests.soak.client import Client, HttpClient, McpClient
from tests.soak.held import held_by

STARTS, CALLS, FIRST_CALLS = times(60, 500), times(1_500, 20_000), times(500, 2_000)
BOUND = 1_200.0


@pytest.mark.soak
@pytest.mark.timeout(BOUND + 300)
def test_of_hundreds_of_starts_at_once_on_a_fresh_server_each_is_a_run_that_completes(world: World) -> None:
    simulator = world.agent_saying(says("Done."))
    with world.raw_server("--role", "parent") as server:
        server.say(HELLO, READY, *(tool_call(n, "run_worker", prompt="Do it.") for n in range(STARTS)))
        server.answer_to("hello")
        run_ids = [server.answer_to(n)["result"]["structuredContent"]["runId"] for n in range(STARTS)]
        assert len(set(run_ids)) == STARTS
        wait_for(lambda: all(world.meta(r).status.is_terminal for r in run_ids), BOUND, "the end of all runs")
        assert {world.meta(run_id).status for run_id in run_ids} == {Status.COMPLETED}
        assert len(simulator.requests) == STARTS
        server.end_input()
        assert server.leaves(10) == 0


@pytest.mark.soak
@pytest.mark.timeout(BOUND + 600)
@pytest.mark.parametrize("door", [McpClient, HttpClient])
def test_thousands_of_calls_beside_a_soak_leave_a_server_with_what_it_held_before(
    tmp_path: Path, door: type[McpClient | HttpClient]
) -> None:
    verdicts: list[soaks.Verdict] = []
    plan = soaks.Plan(seed=3, rounds=times(4, 40), servers=1, live_target=4)
    beside = threading.Thread(target=lambda: verdicts.append(soaks.soak(plan, tmp_path / "soak")))
    (tmp_path / "soak").mkdir()
    beside.start()
    try:
        store = RunStore(tmp_path / "soak" / "runs")
        wait_for(lambda: store.paths.root.exists() and len(store.run_ids()) > 3, 120, "runs")
        program = (*PROGRAM, "--runs", str(store.paths.root))  # one that its environment names is killed
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ANTHROPIC_API_KEY": "none"}
        with door(environment, tmp_path, tmp_path / "errors", program) as server:
            server.greet()
            _call(server, store, FIRST_CALLS)
            before = held_by(server.pid)
            _call(server, store, CALLS)
            beside.join()
            try:
                wait_for(lambda: held_by(server.pid).is_no_more_than(before), 60, f"no more than {before}")
            finally:
                print(f"{door.__name__}, {CALLS} calls: {before}, then {held_by(server.pid)}")
    finally:
        beside.join()
    assert not verdicts[0].findings, verdicts[0].report()


def _call(server: Client, store: RunStore, count: int) -> None:
    """Make so many calls about runs that come, ask and are killed meanwhile. A refusal is an answer, too."""
    chance = random.Random(count)
    for _ in range(count):
        run_id = chance.choice(store.run_ids()[:50])
        calls: list[tuple[str, dict[str, Any]]] = [
            ("check_status", {"runId": run_id}),
            ("check_status", {"runId": "nobody"}),
            ("wait_for_runs", {"runIds": [run_id], "waitSeconds": 0}),
            ("list_runs", {"all": True, "limit": 5}),
            ("get_logs", {"runId": run_id, "stream": chance.choice(["log", "events", "result"])}),
            ("reply_subagent", {"runId": run_id, "messageId": "q99", "answer": "blue"}),
            ("stop_run", {}),
        ]
        tool, arguments = chance.choice(calls)
        server.call(tool, **arguments)
