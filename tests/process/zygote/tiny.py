"""A zygote with tiny programs: `python -m tests.process.zygote.tiny DIRECTORY NAME IDLE_SECONDS FILLER`."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from subagent_server.process import peer
from subagent_server.process.zygote_client import ForkConnection, WarmStart
from subagent_server.process.zygote_protocol import zygote_name
from subagent_server.process.zygote_server import Title, Zygote, detach
from subagent_server.run import processes
from tests.helpers.processes import REPOSITORY
from tests.helpers.wait import wait_for
from tests.helpers.warm import zygotes

BOUND = 120.0
ROOM = "-" * (32 << 10)
IDLE_SECONDS = 600.0
OLDER_KERNEL = "TINY_OLDER_KERNEL"
"""Has the zygote ask for a socket option that no kernel has, in the place of SO_PEERPIDFD."""


def report(title: Title, arguments: list[str]) -> int:
    """Print the inherited attributes of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    facts = {
        "arguments": arguments,
        "environment": {name: value for name, value in os.environ.items() if name != "FILLER"},
        "cwd": str(Path.cwd()),
        "umask": status["Umask"].strip(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "descriptors": sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    print(json.dumps(facts))
    return 0


def append(title: Title, arguments: list[str]) -> int:
    """Append a line to a file."""
    with Path(arguments[0]).open("a", encoding="utf-8") as file:
        file.write("once\n")
    return 0


def wait(title: Title, arguments: list[str]) -> int:
    """Wait for the end of stdin."""
    sys.stdin.read()
    return 0


PROGRAMS = {"report": report, "append": append, "wait": wait}


def main(arguments: list[str]) -> None:
    """Be the zygote of a name, unless there is one."""
    if OLDER_KERNEL in os.environ:
        vars(peer)["_SO_PEERPIDFD"] = 9999
    detach()
    zygote = Zygote(Path(arguments[0]), arguments[1], float(arguments[2]))
    if zygote.listen_alone():
        zygote.listen()
        zygote.serve(PROGRAMS)
        zygote.leave()


class TinyPlace:
    """A private directory, and the tiny zygotes that are started in it; they import from `packages` first."""

    def __init__(self, directory: Path, packages: Path = REPOSITORY) -> None:
        self.directory = directory
        self.name = zygote_name()
        self.warm = WarmStart(directory, IDLE_SECONDS, may_spawn=False)
        self._packages = packages
        directory.mkdir(mode=0o700, parents=True)

    def spawned(
        self, idle_seconds: float = IDLE_SECONDS, *, more: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Return the process that starts a zygote and exits; `more` is added to its environment."""
        paths = os.pathsep.join(map(str, (self._packages, REPOSITORY)))
        words = [str(self.directory), self.name, str(idle_seconds), ROOM]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.process.zygote.tiny", *words],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "FILLER": ROOM, **(more or {})},
            stdin=subprocess.DEVNULL,
        )

    def start(
        self, idle_seconds: float = IDLE_SECONDS, *, more: Mapping[str, str] | None = None
    ) -> processes.Identity:
        """Start the zygote, and return it when it listens."""
        self.spawned(idle_seconds, more=more).wait(BOUND)
        return self.zygote()

    def zygote(self) -> processes.Identity:
        """Return the zygote as soon as it listens."""
        wait_for(lambda: list(self.directory.glob("*.sock")), BOUND, "the zygote")
        (identity,) = zygotes(self.directory)
        return identity

    def connect(self) -> ForkConnection:
        """Connect to the zygote, whose socket has its name a moment before it listens."""

        def connected() -> ForkConnection | None:
            with suppress(ConnectionRefusedError):
                return ForkConnection(self.directory, self.name)
            return None

        connection = wait_for(connected, BOUND, "a zygote that listens")
        assert connection is not None
        return connection

    def start_program(
        self, program: str, *arguments: object, before_go: Callable[[], object] = lambda: None
    ) -> bool:
        """Start a program as `launch` does. Returns False if nothing has begun."""
        connection = self.warm.connect()
        if connection is None:
            return False
        with Path(os.devnull).open("r+b") as nothing:
            streams = dict.fromkeys((0, 1, 2), nothing.fileno())
            words = list(map(str, arguments))
            ordered = self.warm.tried(
                connection, lambda: connection.order(program, [program, *words], words, {}, streams)
            )
        before_go()
        return ordered and self.warm.go(connection)

    def end(self) -> None:
        """Kill the zygotes."""
        for zygote in zygotes(self.directory):
            with suppress(ProcessLookupError):
                os.kill(zygote.pid, signal.SIGKILL)


@contextmanager
def tiny_place(directory: Path, packages: Path = REPOSITORY) -> Iterator[TinyPlace]:
    """Give a place for tiny zygotes, and end them."""
    place = TinyPlace(directory, packages)
    try:
        yield place
    finally:
        place.end()


if __name__ == "__main__":
    main(sys.argv[1:])
