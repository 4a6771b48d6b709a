"""A disk that takes seconds for whatever has to last: servers answer meanwhile, and runs end as ever."""

import pytest

from subagent_server.run.states import Status
from tests.faults.system_calls import STRACE
from tests.helpers.forked import PROGRAM
from tests.helpers.raw_server import HELLO, READY, RawServer, request, tool_call
from tests.helpers.turns import asks, says, shell
from tests.helpers.world import BOUND, World

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(STRACE is None, reason="strace is not installed: it is what slows the calls"),
]

SECONDS = 2
SLOW = "fsync,fdatasync,rename,renameat,renameat2"


def slow_server(world: World) -> RawServer:
    """Start a server that waits, as all that it starts do, before each file is synced or renamed."""
    delay = f"--inject={SLOW}:delay_enter={SECONDS * 1_000_000}"
    strace = [str(STRACE), "-fD", "-qq", "--seccomp-bpf", "-o", "/dev/null", f"--trace={SLOW}", delay, "--"]
    environment = {**world.environment, "SUBAGENT_WARM": "0"}
    server = RawServer([*strace, *PROGRAM, "serve"], environment, world.work, world.errors)
    server.say(HELLO)
    server.answer_to("hello")
    server.say(READY)
    return server


@pytest.mark.timeout(600)
def test_on_a_slow_disk_a_server_answers_and_a_run_asks_completes_or_is_stopped(world: World) -> None:
    world.agent()
    world.agent("sleeper")
    world.play(
        asks("Which colour?"),
        says("It is blue."),
        conversations=[{"when": {"prompt": "Sleep"}, "turns": [shell("sleep 600")]}],
    )
    with slow_server(world) as server:
        server.say(tool_call(1, "run_worker", prompt="Paint it."), request(2, "ping"))
        server.answer_to(2)
        assert not any(world.paths(run_id).meta.exists() for run_id in world.store.run_ids())
        run_id = server.answer_to(1)["result"]["structuredContent"]["runId"]
        world.asking(run_id)
        server.say(tool_call(3, "reply_subagent", runId=run_id, answer="blue"), request(4, "ping"))
        server.answer_to(4)
        assert world.meta(run_id).pending_questions, "the answer is not on the disk yet"
        assert server.answer_to(3)["result"]["structuredContent"]["success"]
        sleeper = server.result_of(tool_call(5, "run_sleeper", prompt="Sleep."))["structuredContent"]["runId"]
        assert world.completed(run_id) == "It is blue."
        world.until(sleeper, lambda _: world.events(sleeper, "tool_call"))
        server.say(tool_call(6, "stop_run", runId=sleeper), request(7, "ping"))
        server.answer_to(7)
        assert not world.meta(sleeper).status.is_terminal, "the stop is not on the disk yet"
        assert server.answer_to(6)["result"]["structuredContent"]["status"] == "stopped"
        assert world.meta(sleeper).status is Status.STOPPED
        world.gone(sleeper)
        unheard = tool_call(8, "run_worker", prompt="Paint it.")
        server.say(unheard)
        world.until(run_id, lambda _: len(world.store.run_ids()) == 3, BOUND)
    (cut,) = {*world.store.run_ids()} - {run_id, sleeper}
    assert not world.paths(cut).meta.exists(), "a start that was cut in its first writes is no run"
