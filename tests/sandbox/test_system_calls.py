"""The filter of system calls, seen from outside: it lies over everything that a run starts in boxes."""

import os
import socket
from contextlib import chdir
from pathlib import Path

from subagent_server.run import processes
from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import calls, says, shell, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.sandbox.boxed import boxed

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
PROGRAMS = {
    "shell": b"--norc",
    "server": b"scripted_server.py",
    "search": b"needle",
    "program": b"<code mode>",
}
"""What runs in boxes of their own, by a part of its command line."""
FILTERED = "2"
"""How `/proc` says that a filter looks at the calls of a process."""


def test_the_shell_a_search_a_server_and_a_program_each_run_below_the_filter(world: World) -> None:
    os.mkfifo(world.work / ".ignore")  # the search waits until somebody opens it
    server = scripted({"name": "hangs", "does": {"hang": True}}, keys={"sandbox": True})
    world.agent(sandbox="bwrap", codeMode=True, mcpServers={"shop": server}, sandboxRead=[str(HELPERS)])
    program = use("execute_python_code", code="shop.hangs()", executionTimeout=300)
    world.play(shell("true"), calls(use("grep", pattern="needle"), program), says("Never said."))
    worker = world.worker(world.start())
    found: dict[str, str] = {}

    def all_found() -> bool:
        for each in processes.descendants([worker.pid]):
            command = b" ".join(processes.command_of(each.pid))
            status = status_of(each.pid)
            for kind, words in PROGRAMS.items():
                if words in command and status.get("Name") not in (None, "bwrap"):
                    found[kind] = status["Seccomp"]
        return found.keys() == PROGRAMS.keys()

    wait_for(all_found, BOUND, "a program of each kind in its box")
    assert found == dict.fromkeys(PROGRAMS, FILTERED)


REACHES = """
import multiprocessing, socket
def tried(act):
    try:
        return str(act())
    except OSError as error:
        return error.strerror
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(sum(pool.map(abs, [-1, -2])), len(socket.socketpair()))
print(tried(lambda: socket.socket(socket.AF_UNIX).connect("listens")))
"""


def test_a_box_without_network_reaches_no_unix_socket_of_the_directory_and_makes_pairs(world: World) -> None:
    (world.work / "reaches.py").write_text(REACHES, encoding="utf-8")
    with chdir(world.work), socket.socket(socket.AF_UNIX) as listening:  # the name has room for 100 bytes
        listening.bind("listens")
        listening.listen()
        with_network, without = (
            boxed(world, "python3 reaches.py", network=network) for network in (True, False)
        )
    assert with_network == ["3 2\nNone"]
    assert without == ["3 2\nAddress family not supported by protocol"]


def status_of(pid: int) -> dict[str, str]:
    """Return what `/proc` says of a process; nothing if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
