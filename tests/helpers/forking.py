"""Commands of `subagent` without the start of an interpreter, which takes longer than most verbs.

Each is forked from a process that has imported all verbs. It is a process of its own, with the arguments,
directory, environment, umask and standard streams that it is given, and it ends with an exit code, or by a
signal, as a fresh one does. `/proc` does not show its environment, so a command inside of a run is not for
forking; nor is a command whose environment asks for another interpreter or locale: see `is_for_forking`.
"""

import atexit
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESS = "SUBAGENT_TESTS_FORKER"
"""The variable by which the processes of a test session find the one that forks."""
_OTHER_INTERPRETER = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "SUBAGENT_RUN_")
_SAME_INTERPRETER = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": None}
_SAME_LOCALE = {"", "C.UTF-8", "C.utf8", "en_US.UTF-8"}
ORDER_BYTES = 1 << 20
_PROGRAM = [sys.executable, "-m", "subagent_server"]
_DEATH_SECONDS = 60.0
"""How long a command that was killed may take to end."""
Stream = int | IO[bytes] | FileIO
"""A standard stream of a command, as `subprocess.Popen` takes it."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a command, kept by the kernel: seconds, bytes of memory, bytes of a file. 0 is no bound."""

    seconds: int = 0
    memory: int = 0
    file_size: int = 0


class ForkedCommand:
    """A command that has been started; it is used as a `subprocess.Popen` is."""

    def __init__(
        self, status: socket.socket, stdout: FileIO | None = None, stderr: FileIO | None = None
    ) -> None:
        self._status = status
        self.pid = int(self._read())
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Return the exit code, or minus the signal that ended it.

        Raises:
            TimeoutError: the command has not ended within `timeout` seconds; it is killed.
        """
        if self.returncode is None:
            self._status.settimeout(timeout)
            with self._status:
                try:
                    self.returncode = int(self._read())
                except TimeoutError:
                    os.kill(self.pid, signal.SIGKILL)
                    self._status.settimeout(_DEATH_SECONDS)
                    self.returncode = int(self._read())
                    raise
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None if it has not ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait(_DEATH_SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as nothing else can, if it has not ended."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[bytes | None, bytes | None]:
        """Return the rest of what it says on its pipes, when it has ended."""
        deadline = time.monotonic() + timeout
        heard = {pipe: b"" for pipe in (self.stdout, self.stderr) if pipe is not None}
        heard = dict(zip(heard, _exchange(None, b"", list(heard), deadline), strict=True))
        self.wait(max(0.1, deadline - time.monotonic()))
        out, err = (None if pipe is None else heard[pipe] for pipe in (self.stdout, self.stderr))
        return out, err

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
    if sum(map(len, [*words, *environment, *environment.values()])) > ORDER_BYTES // 8:
        return False
    locales = {environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    on_stdio = "serve" in words and not any(word.startswith(("--http", "--unix")) for word in words)
    return locales <= _SAME_LOCALE and not on_stdio


def fork_command(
    words: Sequence[str],
    streams: tuple[int, int, int],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    limits: Limits = Limits(),
    pipes: tuple[FileIO | None, FileIO | None] = (None, None),
) -> ForkedCommand:
    """Start `subagent` with these words; its standard streams are copies of these descriptors.

    `pipes` are the other ends of its stdout and stderr, for who reads them from the command that is returned.
    """
    order = {
        "words": list(words),
        "cwd": str(cwd),
        "environment": dict(environment),
        "umask": _umask(),
        "limits": asdict(limits),
    }
    text = json.dumps(order).encode()  # before there is a connection, on which the other side waits
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ.get(ADDRESS) or _own_address(os.getpid()))
    socket.send_fds(connection, [text], streams)
    return ForkedCommand(connection, *pipes)


def start_command(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.PIPE,
    stderr: Stream = subprocess.PIPE,
    fresh: bool = False,
) -> "ForkedCommand | subprocess.Popen[bytes]":
    """Start a program, and return while it runs: `subagent` in a fork if it is for forking and not `fresh`.

    The streams are given as to `subprocess.Popen`; no pipe leads to stdin.
    """
    words = [os.fsdecode(word) for word in command[len(_PROGRAM) :]]
    if fresh or list(command[: len(_PROGRAM)]) != _PROGRAM or not is_for_forking(words, environment):
        return subprocess.Popen(command, cwd=cwd, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)
    with ExitStack() as stack:
        (_, given), (out, said), (err, complained) = (_ends(each, stack) for each in (stdin, stdout, stderr))
        streams = (given, said, complained)
        return fork_command(words, streams, cwd=cwd, environment=environment, pipes=(out, err))


def _ends(stream: Stream, stack: ExitStack) -> tuple[FileIO | None, int]:
    """Return the end of a stream that is read here, if there is one, and the end of the command."""
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        stack.callback(os.close, writing)
        return FileIO(reading, "rb"), writing
    if stream == subprocess.DEVNULL:
        nothing = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, nothing)
        return None, nothing
    return None, stream if isinstance(stream, int) else stream.fileno()


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
    return subprocess.run(
        [*_PROGRAM, *words],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        timeout=seconds,
        check=False,
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


def _exchange(feed: FileIO | None, stdin: bytes, sources: Sequence[FileIO], deadline: float) -> list[bytes]:
    """Write `stdin` to `feed`, if there is one, and close it; return all the bytes of each source."""
    heard = {source.fileno(): bytearray() for source in sources}
    rest = memoryview(stdin)
    with selectors.DefaultSelector() as ready:
        for source in sources:
            ready.register(source, selectors.EVENT_READ)
        if feed is not None:
            os.set_blocking(feed.fileno(), False)
            ready.register(feed, selectors.EVENT_WRITE)
        while ready.get_map():
            events = ready.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise TimeoutError("the command is not over, or has left its output open")
            for key, _ in events:
                if feed is not None and key.fileobj is feed:
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
                [sys.executable, "-X", "utf8", "-m", "tests.helpers.forker", str(listening.fileno())],
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
