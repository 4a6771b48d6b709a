"""Attempts of hostile programs: the run continues, its model reads a clear error, nothing is left behind."""

import asyncio
import json
import os
import socket
from contextlib import closing
from typing import Any, cast

import pytest

from subagent_server.extensions.code_mode.execution import (
    MOST_CALLS_AT_ONCE,
    MOST_REQUEST_BYTES,
    Channel,
    Later,
)
from subagent_server.run import processes
from subagent_server.sandbox.box import SYSTEM_PROGRAM, VARIABLE
from tests.extensions.code_mode.shop import in_code_mode, outcomes, program
from tests.helpers.bubblewrap import settings
from tests.helpers.files import write_program
from tests.helpers.ordinary_user import user
from tests.helpers.scale import WHOLE
from tests.helpers.turns import says
from tests.helpers.world import World

LIMITS = {"memoryBytes": 256 << 20, "processes": 60, "fileBytes": 64 << 20}
EACH = "import os\nfor n in range(3, 30):\n    try:\n        os.{}\n    except OSError:\n        pass\n"
"""A program that does something with each of its descriptors."""
WAITS = "import threading\nthreading.Event().wait()"
CALL = '{"call": 1, "function": "shop.price", "arguments": {}}\n'
CHECKS = "".join(
    f'{{"call": {number}, "function": "check", "arguments": {{"calls": {calls}}}}}\n'
    for number, calls in enumerate(("5", '[["shop.price", {"n": ' + "[" * 150 + "]" * 150 + "}]]", "[]"), 90)
)
"""Questions about arguments that no program asks: no list, a deep value, and one too many."""
FORKS = "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '600'])\n'left'"
KILLS = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(1, signal.SIGKILL)\n'alive'"
DELETES = "import shutil\nshutil.rmtree('/tmp', True)\nshutil.rmtree('.', True)"


BWRAP = """\
#!/bin/sh
case "$*" in *"<code mode>"*) while [ "$1" != -- ]; do shift; done; shift; exec "$@";; esac
exec {} "$@"
"""
"""A bubblewrap that makes boxes for all but programs."""


def writes(data: str) -> str:
    """Return a program that writes an expression's value to each of its descriptors."""
    return EACH.format(f"write(n, {data})")


def test_records_that_a_program_fakes_end_that_program_and_nothing_else(world: World) -> None:
    fakes = {
        "b'nonsense\\n'": "not the JSON of a call",
        "b'{}\\n'": "neither a call nor an end",
        "b'[' * 200_000 + b'\\n'": "not the JSON of a call",
        "b'[' * 300 + b']' * 300 + b'\\n'": "nested more than 200 deep",
        f"{CALL!r}.encode() * 2": "two calls have the number 1",
        "b'{\"ready\": true}\\n' * 3_000": "neither a call nor an end",
        "b'{\"end\": 0}\\n' * 300_000": "more than 200,000 records",
        "b'x' * 5_000_000": "more than 4,194,304 bytes",
    }
    odd = {
        "[shop.price(n=n) for n in range(1001)], shop.price(n=1)": "and 950 more calls",
        "shop.mail(from_='x' * 5_000_000)": "the arguments have more than 4,194,304 bytes",
        writes('b\'{"fault": "mine"}\\n\'') + "'unharmed'": "unharmed",
        writes("b'{\"end\": 0}\\n'") + "os._exit(3)": "[exit code 3]",
        writes(f"{CHECKS!r}.encode()") + "'unharmed'": "unharmed",
        EACH.format("close(n)") + "1": "the program died",
        "print('\\0\\x1b[31m', 'ü' * 3)": "üüü",
        f"x = '{'ü' * 900_000}'\nlen(x)": "900000",
        "(" * 5_000: "Nothing was run",
    }
    codes = {writes(fake) + WAITS: expected for fake, expected in fakes.items()} | odd
    results = outcomes(world, *codes, sandbox="none")
    for result, expected in zip(results, codes.values(), strict=True):
        assert expected in result, result[:2_000]
    for result in results[: len(fakes)]:
        assert "the program was ended" in result


def test_of_large_records_about_agents_few_are_in_the_memory_of_the_worker() -> None:
    begun: list[str] = []

    async def waits(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
        begun.append(function)
        return await asyncio.Event().wait() and arguments

    async def served(size: int) -> int:
        begun.clear()
        reader = asyncio.StreamReader(MOST_REQUEST_BYTES)
        for number in range(200):
            record = {"call": number, "function": "@plan", "arguments": {"given": "x" * size}}
            reader.feed_data(json.dumps(record).encode() + b"\n")
        serving = asyncio.create_task(Channel(reader, cast("Any", None), waits).serve())
        for _ in range(1_000):
            await asyncio.sleep(0)
        serving.cancel()
        return len(begun)

    assert asyncio.run(served(40_000)) == 200
    assert asyncio.run(served(300_000)) == MOST_CALLS_AT_ONCE


def test_of_results_that_a_program_does_not_read_one_is_in_memory() -> None:
    made: list[str] = []

    async def made_later() -> dict[str, Any]:
        made.append("x" * 300_000)
        return {"value": made[-1]}

    async def ended(function: str, arguments: dict[str, Any]) -> Later:
        return made_later

    async def served() -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(*await asyncio.open_connection(sock=ours), ended)
        with theirs:
            for number in range(200):
                record = {"call": number, "function": "@result", "arguments": {}}
                theirs.sendall(json.dumps(record).encode() + b"\n")
            serving = asyncio.create_task(channel.serve())
            for _ in range(1_000):
                await asyncio.sleep(0)
            serving.cancel()
        channel.close()

    asyncio.run(served())
    assert len(made) == 1


def test_a_fault_of_our_own_part_is_what_that_part_reports_and_leaves_with_and_it_ends_the_run(
    world: World,
) -> None:
    in_code_mode(world)
    world.play(program(writes('b\'{"fault": "torn"}\\n\'') + "os._exit(3)"), says("Never said."))
    code, message = world.failed(world.start())
    assert code == "agent_error" and "fault of its own" in message and "torn" in message


def test_a_program_without_the_box_that_was_asked_for_is_found_out_before_its_code_runs(world: World) -> None:
    bwrap = write_program(world.home / "bwrap", BWRAP.format(settings().get(VARIABLE, SYSTEM_PROGRAM)))
    world.environment[VARIABLE] = str(bwrap)
    in_code_mode(world, sandbox="bwrap")
    world.play(program("open('ran.txt', 'w')"), says("Never said."))
    code, message = world.failed(world.start())
    assert code == "config" and "could not be started in its sandbox" in message, message
    assert not (world.work / "ran.txt").exists()


def hostile_programs(world: World) -> None:
    """Let programs in a box try to get out of it, to use up the machine, and to outlive their run."""
    key = world.home / ".ssh" / "id_rsa"
    key.parent.mkdir()
    key.write_text("CANARY", encoding="utf-8")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        codes = {
            f"open({str(key)!r}).read()": "No such file",
            f"open({str(world.home / 'planted')!r}, 'w')": "",
            f"open({str(world.runs / 'planted')!r}, 'w')": "",
            "open('/usr/planted', 'w')": "Read-only file system",
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)": "Error",
            KILLS: "",
            "kept = []\nwhile True:\n    kept.append(bytearray(1 << 24))": "out of memory",
            "import os, time\nwhile os.fork():\n    pass\ntime.sleep(600)": "unavailable",
            FORKS: "left",
            DELETES: "",
            "shop.price(n=1).json()": "{'n': 1}",
        }
        turns = [program(code, 5) for code in codes]
        results = outcomes(world, *turns, sandbox="bwrap", network=False, sandboxLimits=LIMITS)
    for result, expected in zip(results, codes.values(), strict=True):
        assert expected in result and "CANARY" not in result, result[:2_000]
    (run_id,) = world.store.run_ids()
    world.gone(run_id)
    assert not processes.marked(f"SUBAGENT_RUN_ID={run_id}")
    assert not (world.home / "planted").exists() and not (world.runs / "planted").exists()


@pytest.mark.skipif(os.getuid() == 0 and not WHOLE, reason="the next test does it as another user")
def test_a_hostile_program_in_a_box_reaches_nothing_and_leaves_nothing(world: World) -> None:
    hostile_programs(world)


@pytest.mark.process
def test_neither_does_one_of_an_ordinary_user_whose_processes_the_kernel_counts() -> None:
    with user() as somebody:
        somebody.play(hostile_programs)
