"""`subagent serve` and `run` that the zygote forks: for everybody they are one process, as the plain one."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from subagent_server.domain.states import Status
from subagent_server.host import process_scan, processes
from tests.helpers.raw_server import HELLO, READY, RawServer, request, tool_call
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for
from tests.helpers.warm_place import WarmPlace, forks_of, is_fork
from tests.helpers.world import BOUND, PROGRAM, World, kill


def forked_by(zygote: processes.Identity) -> processes.Identity:
    """Return the one fork of a zygote that has work, as soon as those of before have left."""
    wait_for(lambda: len(forks_of(zygote)) == 1, BOUND, "one fork")
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


def test_a_server_is_forked_and_stands_where_its_client_started_it(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent()
    zygote = shared_place.zygote()
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


def test_the_fork_ends_with_its_front_and_the_front_as_the_fork_and_both_outlive_the_zygote(
    world: World, place: WarmPlace
) -> None:
    world.agent(tools="Bash(git diff:*)")
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


def test_a_server_is_stopped_and_goes_on_with_its_front(world: World, shared_place: WarmPlace) -> None:
    world.agent()
    zygote = shared_place.zygote()
    with world.raw_server() as server:
        fork = forked_by_greeting(server, zygote)
        server.signal(signal.SIGTSTP)
        wait_for(lambda: processes.is_stopped(fork), BOUND, "the stop of the server")
        server.signal(signal.SIGCONT)
        server.say(request(1, "tools/list"))
        assert "result" in server.answer_to(1)


@pytest.mark.parametrize("words", [["--config", "missing.cpe.yaml"], ["--no-such-option"], ["--help"]])
def test_serve_prints_and_exits_the_same_warm_and_plain(
    world: World, shared_place: WarmPlace, words: list[str]
) -> None:
    warm, plain = (world.cli("serve", *words, env={"SUBAGENT_WARM": switch}) for switch in "10")
    assert (warm.returncode, warm.stdout, warm.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert warm.returncode == (0 if words == ["--help"] else 2)


# -- subagent run

PLAIN = [sys.executable, "-X", "utf8", *PROGRAM[1:]]
"""Not handed over, as its interpreter has an option; its run is forked all the same, which is quicker."""
_NUMBER = re.compile(r"\d+([.:]\d+)*")
SLOW = says("Late.", latency=600)


@contextmanager
def running(world: World, *words: str, warm: bool, **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `subagent run` without a terminal; it is killed at the end."""
    process = subprocess.Popen(
        [*(PROGRAM if warm else PLAIN), "run", *words],
        cwd=world.work,
        env=world.environment,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(
    world: World, process: "subprocess.Popen[bytes]", given: bytes | None = None
) -> tuple[int, str, str]:
    """Return how a command ended, its output, and its own lines of stderr, without ids and times."""
    out, err = (data.decode() for data in process.communicate(given, timeout=BOUND))
    for run_id in world.store.run_ids():
        out, err = out.replace(run_id, "RUN"), err.replace(run_id, "RUN")
    own = [
        line for line in err.splitlines() if line.startswith("subagent:")
    ]  # the log may come in other pieces
    return process.returncode, _NUMBER.sub("N", out), _NUMBER.sub("N", "\n".join(own))


def compared(world: World, *words: str, given: bytes | None = None) -> tuple[int, str, str]:
    """Return how a command ends warm, which is as it ends plainly."""
    seen = []
    for warm in (True, False):
        streams = {} if given is None else {"stdin": subprocess.PIPE}
        with running(world, *words, warm=warm, **streams) as process:
            seen.append(ended(world, process, given))
    assert seen[0] == seen[1]
    return seen[0]


def started_by(world: World, before: set[str]) -> str:
    """Return the run that a command has started, once its model was asked."""
    wait_for(lambda: set(world.store.run_ids()) - before, BOUND, "a run")
    (run_id,) = set(world.store.run_ids()) - before
    wait_for(world.paths(run_id).meta.exists, BOUND, "its state")
    world.until(run_id, lambda meta: meta.status is Status.RUNNING)
    return run_id


def test_run_reads_and_prints_and_exits_the_same_warm_and_plain(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent()
    prompt = "Grüße aus der Pipe. " * 10_000
    simulator = world.play(says("Schön."))
    assert compared(world, "worker", "-", given=prompt.encode())[:2] == (0, "Schön.\n")
    sent = [json.dumps(request.body["messages"], ensure_ascii=False) for request in simulator.requests]
    assert len(sent) == 2 and all(prompt.strip() in each for each in sent)
    assert compared(world, "worker", "Do it.", "--detach")[:2] == (0, "RUN\n")
    assert compared(world, "no-such-agent", "Do it.")[0] != 0
    assert compared(world, "worker", "--no-such-option")[0] == 2
    world.play(asks("Which?"))
    assert compared(world, "worker", "Do it.")[0] == 5


def test_run_is_forked_without_a_terminal_and_its_descriptors_are_those_of_its_front(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent()
    world.play(SLOW)
    zygote = shared_place.zygote()
    with running(world, "worker", "Do it.", warm=True) as process:
        started_by(world, set())
        commands = [process_scan.command_of(fork.pid) for fork in forks_of(zygote)]
        (fork,) = (fork for fork in forks_of(zygote) if b"run" in process_scan.command_of(fork.pid))
        assert [words for words in commands if b"run" in words] == [process_scan.command_of(process.pid)]
        for number in range(3):
            seen = Path(f"/proc/{fork.pid}/fd/{number}").readlink()
            if number == 2:
                assert seen == Path(f"/proc/{process.pid}/fd/2").readlink()
            else:
                assert Path(f"/proc/{process.pid}/fd/{number}").readlink() == Path(os.devnull)
        assert Path(f"/proc/{fork.pid}/cwd").readlink() == world.work
    gone(fork)
    with running(world, "worker", "Do it.", warm=False):
        started_by(world, set(world.store.run_ids()))
        assert not any(b"run" in process_scan.command_of(fork.pid) for fork in forks_of(zygote))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGKILL]
)
def test_a_signal_ends_run_the_same_warm_and_plain_and_the_run_goes_on(
    world: World, shared_place: WarmPlace, number: signal.Signals
) -> None:
    world.agent()
    world.play(SLOW)
    ends = []
    for warm in (True, False):
        before = set(world.store.run_ids())
        with running(world, "worker", "Do it.", warm=warm) as process:
            run_id = started_by(world, before)
            assert process.stderr is not None
            first_line = process.stderr.readline()  # from here on it follows the run
            assert run_id.encode() in first_line
            process.send_signal(number)
            code, out, err = ended(world, process)
            ends.append((code, out, "only the watching has ended" in err))
        assert world.look(run_id).live is True
    assert ends[0] == ends[1]
    assert ends[0][0] == (130 if number == signal.SIGINT else -number)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_closed_for_a_forked_run_too(
    world: World, shared_place: WarmPlace, closed: int
) -> None:
    world.agent()
    world.play(says("Done."))
    operator = f"{closed}<&-" if closed == 0 else f"{closed}>&-"
    seen = []
    for program in (PROGRAM, PLAIN):
        command = shlex.join([*program, "run", "worker", "Do it.", "--wait", "60"])
        done = subprocess.run(
            ["sh", "-c", f"{command} {operator}"],
            cwd=world.work,
            env=world.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BOUND,
            check=False,
        )
        seen.append((done.returncode, done.stdout, _NUMBER.sub("N", done.stderr.decode())))
    assert seen[0] == seen[1]
    assert seen[0][:2] == (0, b"" if closed == 1 else b"Done.\n")


def test_a_reader_that_has_gone_ends_a_forked_run_as_a_plain_one(
    world: World, shared_place: WarmPlace
) -> None:
    world.agent()
    world.play(says("word " * 100_000))
    codes = []
    for warm in (True, False):
        out, into = os.pipe()
        with running(world, "worker", "Do it.", warm=warm, stdout=into) as process:
            os.close(into)
            os.close(out)
            codes.append(ended(world, process)[0] if process.stdout else process.wait(BOUND))
    assert codes[0] == codes[1]


@pytest.mark.parametrize("more", [{"PYTHONOPTIMIZE": "1"}, {"LD_BIND_NOW": "1"}])
def test_a_command_that_wants_an_interpreter_of_its_own_gets_one(
    world: World, shared_place: WarmPlace, more: dict[str, str]
) -> None:
    world.agent()
    world.play(SLOW)
    world.environment |= more
    with running(world, "worker", "Do it.", warm=True):
        started_by(world, set())
        forks = [process_scan.command_of(fork.pid) for fork in forks_of(shared_place.zygote())]
        assert not any(b"run" in words for words in forks)


def test_many_commands_at_once_are_all_forked(world: World, shared_place: WarmPlace) -> None:
    world.agent()
    world.play(SLOW)
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(running(world, "worker", "Do it.", "--detach", warm=True))
        wait_for(lambda: len(list(world.store.run_ids())) == 12, BOUND, "all runs")
        for run_id in world.store.run_ids():
            assert is_fork(world.shim(run_id)) and is_fork(world.worker(run_id))
