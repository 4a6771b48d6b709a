"""The zygote: listens in a private directory, and forks a child for each starter that connects.

It has one thread, no event loop, and no descriptor but its socket, its lock and its output. It reads no
order, because the child does: no part of one is ever in the memory of the zygote. A shim that it forked
starts its worker by a fork, too (`ForkedWorker`). Standard library only.
"""

import ctypes
import fcntl
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from subagent_server.process import zygote_protocol
from subagent_server.process.peer import Peer, credentials
from subagent_server.process.worker_process import Invocation, WorkerProgram, pass_gate
from subagent_server.process.zygote_protocol import Order, OrderRefused
from subagent_server.run import locks, processes, stderr
from subagent_server.run.files import PrivateDirectory, can_be_read, remove_tree
from subagent_server.run.stderr import failpoint, log

TICK_SECONDS = 2.0
"""How often it checks whether it is still wanted."""
STUCK_SECONDS = 60
"""A zygote that has not come round for so long is stuck, and the alarm ends it."""
LOADING_SECONDS = 300
"""The same while it loads: that takes 3 s of a processor, so over a minute where fifty share two of them."""
ORDER_SECONDS = 30.0
"""How long a child waits for its starter's order, and for the word to go."""
SECRET_BYTES = 32
_HIGH = 64
"""Descriptors are moved above this number, out of the way of those that an order asks for."""
_MARKS = "SUBAGENT_"
_KEPT_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", stderr.VARIABLE)


class Title:
    """The command line and the environment of this process, as `/proc` and `ps` show them.

    A fork shows those of the zygote, and processes that are found by marks in them would be missed. So a fork
    writes its own over them: the kernel reads both from the memory of the process (proc(5), fields 48 to 51
    of `stat`), and the zygote is started with a filler in each, which makes room. Make it once, before the
    first fork.
    """

    def __init__(self) -> None:
        self._interpreter = zygote_protocol.interpreter_variables(os.environ)
        text = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        arguments_begin, arguments_end, environment_begin, environment_end = map(int, fields[45:49])
        self._arguments = _StackText(arguments_begin, arguments_end)
        self._environment = _StackText(environment_begin, environment_end)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a fresh interpreter in this environment would be as the one that the zygote has loaded."""
        return zygote_protocol.interpreter_variables(environment) == self._interpreter

    def become(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Be a process that was started by `command` in `environment`, and show it.

        Variables for which there is no room are not shown; those that other processes look for come first.
        This process and its children have them all.
        """
        os.environ.clear()
        ctypes.CDLL(None).clearenv()  # C code still points into the memory that is written over
        os.environ.update(environment)
        time.tzset()
        ordered = sorted(environment.items(), key=lambda item: not item[0].startswith(_MARKS))
        self._environment.write(f"{name}={value}" for name, value in ordered)
        self.show(command)

    def show(self, command: Sequence[str]) -> None:
        """Show a command line; one that is longer than the room is cut."""
        self._arguments.write(command)


class _StackText:
    """Memory of the stack between two addresses: NUL-terminated texts, then zeros."""

    def __init__(self, begin: int, end: int) -> None:
        if not 0 < begin < end:
            raise OSError("the kernel does not say where the command line and the environment are")
        self._begin = begin
        self._size = self._used = end - begin

    def write(self, texts: Iterable[str]) -> None:
        """Write as many whole texts as fit. Only the used part is touched: the rest stays shared memory."""
        data = bytearray()
        for text in map(os.fsencode, texts):
            if len(data) + len(text) + 1 < self._size:
                data += text + b"\0"
        size = max(self._used, len(data))
        ctypes.memmove(self._begin, bytes(data).ljust(size, b"\0"), size)
        self._used = len(data)


ForkedProgram = Callable[[Title, list[str]], object]
"""A program of the zygote's table: called with its arguments, it returns its exit code or None."""


class Zygote:
    """The fork server of one name: the process that holds the lock of this name in `directory`."""

    def __init__(self, directory: Path, name: str, idle_seconds: float) -> None:
        self._folder = PrivateDirectory(directory, make=False)
        self._name = name
        self._key = name.partition("-")[0]
        self._idle = idle_seconds
        self._path = self._folder.address(f"{name}.bound")
        self._secret = os.urandom(SECRET_BYTES)
        self._listener = zygote_protocol.new_socket()
        self._inode = 0
        self._title = Title()
        kept = {each: os.environ[each] for each in _KEPT_VARIABLES if each in os.environ}
        self._title.become(sys.orig_argv[:-1], kept)

    def listen_alone(self) -> bool:
        """Become the zygote of this name, and let shims wait. Returns False if there is one."""
        lock = locks.take(self._folder.entry(f"{self._name}.lock"))
        if lock is None or not os.fstat(lock).st_nlink:  # held, or just removed as a dead one's
            return False
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._remove_leftovers()
        # The secret comes first: who finds the socket finds it.
        self._folder.entry(f"{self._name}.secret").write(self._secret)
        before = os.umask(0o177)
        self._listener.bind(self._path)
        os.umask(before)
        self._inode = os.stat(self._path).st_ino  # noqa: PTH116 - the name of a descriptor, not of a path
        self._listener.listen(1024)
        self._listener.setblocking(False)
        signal.alarm(LOADING_SECONDS)
        self._rename("loading")  # a shim that finds a socket which does not listen yet would be refused
        return True

    def _remove_leftovers(self) -> None:
        """Remove the files of dead zygotes: all those of other names, and what this one makes anew."""
        names = self._folder.names()
        for lock in (name for name in names if name.endswith(".lock")):
            stem = lock.removesuffix(".lock")
            is_own = stem == self._name
            held = None if is_own else locks.take(self._folder.entry(lock))
            for name in names if is_own or held is not None else ():
                is_kept = is_own and name.endswith((".lock", ".secret", ".log"))
                if name.startswith(f"{stem}.") and not is_kept:
                    remove_tree(self._folder.entry(name))
            if held is not None:
                os.close(held)

    def listen(self) -> None:
        """Let starters come."""
        self._rename("sock")

    def _rename(self, state: str) -> None:
        before, self._path = self._path, self._folder.address(f"{self._name}.{state}")
        os.rename(before, self._path)  # noqa: PTH104

    def serve(self, programs: Mapping[str, ForkedProgram]) -> None:
        """Serve starters, until none has come for long or this is no longer the installed version."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker, also a rehearsed one, ignores it at its end
        last = time.monotonic()
        tick = min(TICK_SECONDS, self._idle / 2)
        while True:
            signal.alarm(STUCK_SECONDS)
            if can_be_read(self._listener.fileno(), tick):
                self._accept(programs)
                last = time.monotonic()
            elif time.monotonic() - last >= self._idle or not self.is_current():
                return

    def leave(self) -> None:
        """Let no starter come any more."""
        with suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:  # noqa: PTH116
                os.unlink(self._path)  # noqa: PTH108

    def _accept(self, programs: Mapping[str, ForkedProgram]) -> None:
        with suppress(OSError):  # the starter has not waited, or there is no descriptor left for now
            connection, _ = self._listener.accept()
            with connection:
                if credentials(connection)[1] == os.getuid():
                    failpoint("zygote.asked")
                    self._fork(connection, programs)
                    failpoint("zygote.forked")

    def _fork(self, connection: socket.socket, programs: Mapping[str, ForkedProgram]) -> None:
        if threading.active_count() != 1:
            log("The zygote exits: a thread has been started in it.")
            os._exit(1)
        try:
            pid = os.fork()
        except OSError as error:  # no room for a process: the starter reads the end of its connection
            log(f"No process could be forked: {error}")
            return
        if pid == 0:
            try:
                _serve_starter(connection, self._title, self._secret, programs)
            finally:
                os._exit(zygote_protocol.EXIT_NEVER_BEGUN)

    def is_current(self) -> bool:
        """Whether the files of the installation are those of its name, and its socket is its own."""
        try:
            is_own = os.stat(self._path).st_ino == self._inode  # noqa: PTH116
            return is_own and zygote_protocol.installation_key() == self._key
        except OSError:
            return False


def detach() -> None:
    """Detach this process from its starter, with the signals of a fresh program."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if os.fork():
        os._exit(0)
    os.chdir("/")


# -- the child


def _serve_starter(
    connection: socket.socket, title: Title, secret: bytes, programs: Mapping[str, ForkedProgram]
) -> NoReturn:
    """Take an order, be the program, and exit with its code. If the order fails, send the reason and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection:
        connection = socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, _HIGH))
    close_all_but({0, 1, 2, connection.fileno()})  # the zygote's lock and socket would outlive it here
    connection.settimeout(ORDER_SECONDS)
    try:
        order = _prepared(connection, title, secret)
        program = programs[order["program"]]
        connection.send(zygote_protocol.READY)
        zygote_protocol.expect(connection, zygote_protocol.GO)
    except (OSError, ValueError, KeyError, TypeError, OrderRefused) as error:
        # Close everything first: a starter that reads the refusal finds its locks free.
        close_all_but({connection.fileno()})
        connection.send(f"{type(error).__name__}: {error}".encode()[:1000])
        os._exit(zygote_protocol.EXIT_NEVER_BEGUN)
    connection.close()
    run(lambda: program(title, order["arguments"]))


def _prepared(connection: socket.socket, title: Title, secret: bytes) -> Order:
    """Take over everything from the starter; nothing is done yet."""
    # 1. Refuse a starter that cannot read the secret.
    import hmac  # here, because it loads libcrypto, and a plain shim has this module in its memory too

    if not hmac.compare_digest(connection.recv(SECRET_BYTES + 1), secret):
        raise OrderRefused("a starter that does not know the secret")
    # 2. It has to be as this process, whatever name it has come by: nothing of this is taken over.
    starter = Peer(connection)
    pairs = zip(zygote_protocol.attributes("self"), zygote_protocol.attributes(str(starter.pid)), strict=True)
    for mine, theirs in pairs:
        if mine != theirs:
            raise OrderRefused(f"another {mine.partition(':')[0].strip()}")
    # 3. Only now comes the order, with descriptors that are locks.
    connection.send(zygote_protocol.HERE)
    order, namespaces, descriptors = zygote_protocol.receive_order(connection)
    if not zygote_protocol.in_namespaces(namespaces):
        raise OrderRefused("another namespace or root directory")
    # 4. All this was read by the starter's pid: it counts if the pid is still the starter's.
    if starter.has_ended():
        raise OrderRefused("the starter has exited")
    # 5. Be as a child of the starter.
    os.setsid()
    os.umask(order["umask"])
    raised = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number in descriptors]
    for source, target in zip(raised, order["targets"], strict=True):
        os.dup2(source, target, inheritable=target <= 2)
    close_all_but({connection.fileno(), *order["targets"]})
    title.become(order["command"], order["environment"])
    # Facts that may have changed since the zygote looked.
    processes.host_name.cache_clear()
    tempfile.tempdir = None
    return order


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    kept = set(keep)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in kept:
            with suppress(OSError):  # the one by which the directory was read
                os.close(number)


def run(main: Callable[[], object]) -> NoReturn:
    """Call `main`, and exit with the code that it returns or raises; a fork has nothing else to put away."""
    code: object = 1
    try:
        code = main()
    except SystemExit as wanted:
        code = wanted.code
    except BaseException:  # noqa: BLE001 - the outermost frame: a fresh interpreter does the same
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk, or closed by the program
                stream.flush()
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


# -- Start the worker as a fork of its shim, without an exec, if the shim is a fork of the zygote.
#
# This way does the same as the plain way, sooner and with shared memory.


THREAD_SECONDS = 0.2
"""How long a thread that waits for a lock that has just fallen may take to end."""


class ForkedWorker(WorkerProgram):
    """The worker's program, loaded: `main` is called in a forked process instead of an exec."""

    def __init__(self, title: Title, main: Callable[[list[str]], object]) -> None:
        self._title = title
        self._main = main
        self._alone = True

    def before_fork(self) -> None:
        """Let threads end whose work is done. If one stays, the worker is started by exec."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(THREAD_SECONDS)
        self._alone = threading.active_count() == 1

    def become(self, invocation: Invocation, gate: int | None = None) -> NoReturn:
        """Make this process the worker; by exec if its environment wants another interpreter."""
        if not self._alone or not self._title.fits(invocation.environment):
            super().become(invocation, gate)
        # 1. Get ready while the shim records this process.
        close_all_but({0, 1, 2, *invocation.keep, *([] if gate is None else [gate])})
        self._title.become(invocation.command(), invocation.environment)
        tempfile.tempdir = None  # the run has a TMPDIR of its own
        # 2. Begin only once it is on record.
        pass_gate(gate)
        run(lambda: self._main(list(invocation.arguments)))

    def spawn(self, arguments: Sequence[str]) -> int:
        """Start the worker's program as a child, by fork."""
        self.before_fork()
        if not self._alone:
            return super().spawn(arguments)
        pid = os.fork()
        if pid == 0:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                self.become(Invocation(arguments, dict(os.environ)))
            finally:
                os._exit(1)
        return pid
