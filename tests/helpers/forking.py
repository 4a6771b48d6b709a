"""Commands of `subagent` without the start of an interpreter, which takes longer than most verbs.

Each is forked from a process that has imported all verbs. It is a process of its own, with the arguments,
directory, environment, umask and standard streams that it is given, and it ends with an exit code, or by a
signal, as a fresh one does. `/proc` does not show its environment, so a command inside of a run is not for
forking; nor is a command whose environment asks for another interpreter or locale: see `is_for_forking`.
"""

import atexit
import gc
import json
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from io import FileIO
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]
_LOADED = ("domain", "host", "store", "catalog", "launch", "service", "cli")
"""The rooms whose modules are imported before the first fork."""
_LOADED_TOO = ("mcp.client", "jsonschema", "watchdog.observers", "rich.console", "asyncio")
ADDRESS = "SUBAGENT_TESTS_FORKER"
"""The variable by which the processes of a test session find the one that forks."""
_OTHER_INTERPRETER = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "SUBAGENT_RUN_")
_SAME_INTERPRETER = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": None}
_SAME_LOCALE = {"", "C.UTF-8", "C.utf8", "en_US.UTF-8"}
_ORDER_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of a command, kept by the kernel: seconds, bytes of memory, bytes of a file. 0 is no bound."""

    seconds: int = 0
    memory: int = 0
    file_size: int = 0


class ForkedCommand:
    """A command that has been started. `code` is its exit code, or minus the signal that ended it."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self.pid = int(self._read())
        self.code: int | None = None

    def wait(self, seconds: float) -> int:
        """Return the exit code.

        Raises:
            TimeoutError: the command has not ended within `seconds`; it is killed.
        """
        self._status.settimeout(seconds)
        try:
            self.code = int(self._read())
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            self._status.close()
        return self.code

    def _read(self) -> bytes:
        answer = self._status.recv(64)
        assert answer, "the process that forks commands has died"
        return answer


def is_for_forking(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork can stand for a fresh process that runs these words in this environment."""
    for name, value in environment.items():
        if name in _SAME_INTERPRETER:
            if _SAME_INTERPRETER[name] not in (None, value):
                return False
        elif name.startswith(_OTHER_INTERPRETER):
            return False
    if sum(map(len, [*words, *environment, *environment.values()])) > _ORDER_BYTES // 8:
        return False
    locales = {environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    return locales <= _SAME_LOCALE and "serve" not in words


def fork_command(
    words: Sequence[str],
    streams: tuple[int, int, int],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    limits: Limits = Limits(),
) -> ForkedCommand:
    """Start `subagent` with these words; its standard streams are copies of these descriptors."""
    order = {
        "words": list(words),
        "cwd": str(cwd),
        "environment": dict(environment),
        "umask": _umask(),
        "limits": asdict(limits),
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ.get(ADDRESS) or _own_address(os.getpid()))
    socket.send_fds(connection, [json.dumps(order).encode()], streams)
    return ForkedCommand(connection)


def run_command(
    words: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    seconds: float,
    inside_a_run: bool = False,
) -> "subprocess.CompletedProcess[bytes]":
    """Run `subagent` to its end and capture its output: in a fork, or freshly if it is not for forking.

    With `inside_a_run` a command is forked although it has the variables of a run: nothing that the test does
    looks for the processes of that run.
    """
    of_a_run = ("SUBAGENT_RUN_ID", "SUBAGENT_RUN_TOKEN") if inside_a_run else ()
    judged = {name: value for name, value in environment.items() if name not in of_a_run}
    if is_for_forking(words, judged):
        return run_forked(words, cwd=cwd, environment=environment, stdin=stdin, seconds=seconds)
    command = [sys.executable, "-m", "subagent_server", *words]
    return subprocess.run(
        command, cwd=cwd, env=environment, input=stdin, capture_output=True, timeout=seconds, check=False
    )


def run_forked(
    words: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    seconds: float,
) -> "subprocess.CompletedProcess[bytes]":
    """Run `subagent` to its end, as `subprocess.run` does with `input` and `capture_output`.

    Raises:
        TimeoutError: it did not end, or nobody closed its output, within `seconds`.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        (given, feed), (out, said), (err, complained) = (_pipe(stack) for _ in range(3))
        streams = (given.fileno(), said.fileno(), complained.fileno())
        command = fork_command(words, streams, cwd=cwd, environment=environment)
        for end in (given, said, complained):
            end.close()
        try:
            heard = _exchange(feed, stdin, (out, err), deadline)
        finally:
            code = command.wait(max(0.1, deadline - time.monotonic()))
    return subprocess.CompletedProcess(["subagent", *words], code, *heard)


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return stack.enter_context(FileIO(reading, "rb")), stack.enter_context(FileIO(writing, "wb"))


def _exchange(feed: FileIO, stdin: bytes, sources: Sequence[FileIO], deadline: float) -> list[bytes]:
    """Write `stdin` to `feed` and close it; return the bytes of each source, read to its end."""
    heard = {source.fileno(): bytearray() for source in sources}
    rest = memoryview(stdin)
    os.set_blocking(feed.fileno(), False)
    with selectors.DefaultSelector() as ready:
        for source in sources:
            ready.register(source, selectors.EVENT_READ)
        ready.register(feed, selectors.EVENT_WRITE)
        while ready.get_map():
            events = ready.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise TimeoutError("the command is not over, or has left its output open")
            for key, _ in events:
                if key.fileobj is feed:
                    with suppress(BlockingIOError, BrokenPipeError):
                        rest = rest[os.write(feed.fileno(), rest) :] if rest else rest
                        if rest:
                            continue
                    ready.unregister(feed)
                    feed.close()
                elif more := os.read(key.fd, 1 << 16):
                    heard[key.fd] += more
                else:
                    ready.unregister(key.fileobj)
    return [bytes(text) for text in heard.values()]


def _umask() -> int:
    """Return the umask of this process; to ask the kernel for it would change it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("Umask:")[2].split()[0], 8)


class Forker:
    """The process that forks, for all processes that know its address. It imports at the first order."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "forker")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, "-X", "utf8", "-m", "tests.helpers.forking", str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                cwd=REPOSITORY,
            )

    def close(self) -> None:
        """End it. It also ends by itself if this process is gone, and then its input with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@cache
def _own_address(_: int) -> str:
    """Start a process that forks for this process alone, and return its address."""
    directory = Path(tempfile.mkdtemp(prefix="subagent-forker-"))
    forker = Forker(directory)
    atexit.register(shutil.rmtree, directory)
    atexit.register(forker.close)
    return forker.address


# -- in the process that forks


def serve(listening: socket.socket) -> None:
    """Fork a process for each order, and answer with its number, and with how it ended; until stdin ends."""
    select.select([0, listening.fileno()], [], [])
    _load()
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([0, listening.fileno(), *running], [], [])
        for pidfd in [each for each in ready if each in running]:
            pid, status = running.pop(pidfd)
            os.close(pidfd)
            _, ended = os.waitpid(pid, 0)
            with status, suppress(BrokenPipeError):
                status.send(str(os.waitstatus_to_exitcode(ended)).encode())
        if 0 in ready:
            return
        if listening.fileno() in ready:
            status, _ = listening.accept()
            order, streams, _, _ = socket.recv_fds(status, _ORDER_BYTES, 3)
            pid = os.fork()
            if pid == 0:
                _carry_out(json.loads(order), streams)
            status.send(str(pid).encode())
            running[os.pidfd_open(pid)] = pid, status
            for descriptor in streams:
                os.close(descriptor)


def _load() -> None:
    import subagent_server

    for module in walk_packages(subagent_server.__path__, "subagent_server."):
        room, name = module.name.split(".")[1], module.name.rpartition(".")[2]
        if room in _LOADED and not name.startswith("_"):
            import_module(module.name)
    for name in _LOADED_TOO:
        import_module(name)
    gc.freeze()


def _carry_out(order: Any, streams: Sequence[int]) -> NoReturn:
    """Be the command, from its first line to its exit."""
    code = 70
    try:
        _become(order, streams)
        from subagent_server.front import main

        code = main()
    except SystemExit as leave:
        code = _code_of(leave)
    except BaseException:  # noqa: BLE001 - the outermost frame, as the interpreter's own
        traceback.print_exc()
        code = 1
    finally:
        os._exit(_finish(code))


def _become(order: Any, streams: Sequence[int]) -> None:
    """Take on what a process is given when it is started."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.umask(order["umask"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    limits = Limits(**order["limits"])
    signal.alarm(limits.seconds)
    for kind, most in ((resource.RLIMIT_AS, limits.memory), (resource.RLIMIT_FSIZE, limits.file_size)):
        if most:
            resource.setrlimit(kind, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["subagent", *order["words"]]
    sys.orig_argv = [sys.executable, "-m", "subagent_server", *order["words"]]
    sys.path[0] = order["cwd"]
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - a descriptor
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115


def _code_of(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    print(leave.code, file=sys.stderr)
    return 1


def _finish(code: int) -> int:
    """Do what an interpreter does at its end, and return the exit code."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
