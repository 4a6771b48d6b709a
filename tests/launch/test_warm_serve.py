"""`subagent serve` from the warm process: to its client it is one process, as one started plainly."""

import signal
from pathlib import Path

import pytest

from subagent_server.host import process_scan, processes
from tests.helpers.raw_server import HELLO, READY, RawServer, request, tool_call
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill
from tests.launch.warm_place import WarmPlace, forks_of


def forked_by(zygote: processes.Identity) -> processes.Identity:
    """Return the one fork of a warm process that has work."""
    (identity,) = forks_of(zygote)
    return identity


def greeted(server: RawServer) -> RawServer:
    """Have a session with a server."""
    server.say(HELLO, READY)
    assert "serverInfo" in server.answer_to("hello")["result"]
    return server


def gone(identity: processes.Identity) -> None:
    """Wait for the end of a process."""
    wait_for(lambda: not processes.is_alive(identity), BOUND, f"the end of {identity.pid}")


def test_a_server_is_forked_and_stands_where_its_client_started_it(world: World, place: WarmPlace) -> None:
    world.agent()
    zygote = place.start()
    for leave in (RawServer.end_input, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with world.raw_server("--role", "parent") as server:
            tools = greeted(server)
            tools.say(request(1, "tools/list"))
            names = {tool["name"] for tool in tools.answer_to(1)["result"]["tools"]}
            assert "run_worker" in names and "ask_parent" not in names
            fork = forked_by(zygote)
            assert Path(f"/proc/{fork.pid}/cwd").readlink() == world.work
            assert f"SUBAGENT_RUNS={world.runs}".encode() in process_scan.environment_of(fork.pid)
            if isinstance(leave, signal.Signals):
                server.signal(leave)
            else:
                leave(server)
            assert server.leaves(BOUND) == 0
            server.rest()
        gone(fork)
    kill(zygote)


def test_the_fork_ends_with_its_front_and_the_front_as_the_fork_and_both_outlive_the_warm_process(
    world: World, place: WarmPlace
) -> None:
    world.agent(runner="codex")
    zygote = place.start()
    with world.raw_server() as server:
        fork = forked_by_greeting(server, zygote)
        server.signal(signal.SIGKILL)
        gone(fork)
    with world.raw_server() as server:
        fork = forked_by_greeting(server, zygote)
        kill(fork)
        assert server.leaves(BOUND) == -signal.SIGKILL
    with world.raw_server() as server:
        fork = forked_by_greeting(server, zygote)
        kill(zygote)
        assert server.result_of(tool_call(1, "run_worker", prompt="Go."))["structuredContent"]["error"]
        server.signal(signal.SIGTERM)
        assert server.leaves(BOUND) == 0
        gone(fork)


def forked_by_greeting(server: RawServer, zygote: processes.Identity) -> processes.Identity:
    """Return the fork behind a server that has answered."""
    greeted(server)
    return forked_by(zygote)


def test_a_server_is_stopped_and_goes_on_with_its_front(world: World, place: WarmPlace) -> None:
    world.agent()
    zygote = place.start()
    with world.raw_server() as server:
        fork = forked_by_greeting(server, zygote)
        server.signal(signal.SIGTSTP)
        wait_for(lambda: processes.is_stopped(fork), BOUND, "the stop of the server")
        server.signal(signal.SIGCONT)
        server.say(request(1, "tools/list"))
        assert "result" in server.answer_to(1)


@pytest.mark.parametrize("words", [["--config", "missing.cpe.yaml"], ["--no-such-option"], ["--help"]])
def test_what_serve_says_and_how_it_ends_is_the_same_warm_and_plain(
    world: World, place: WarmPlace, words: list[str]
) -> None:
    place.start()
    warm, plain = (world.cli("serve", *words, env={"SUBAGENT_WARM": switch}) for switch in "10")
    assert (warm.returncode, warm.stdout, warm.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert warm.returncode == (0 if words == ["--help"] else 2)
