"""Being a program that is loaded already: what is left of a start when nothing has to be read or imported.

A process forked from the zygote puts in order what belongs to a process and not to the program: descriptors,
environment, what `/proc` shows, locale, streams, what somebody has cached. Then it calls the same main
function as a fresh interpreter does. Standard library only.
"""

import atexit
import io
import locale
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from subagent_server.host import processes
from subagent_server.host.shown import Shown
from subagent_server.launch.program import GatedWorker, Invocation, Program, pass_gate

if TYPE_CHECKING:
    from subagent_server.launch.spare import SpareWorker

Main = Callable[[list[str]], object]

THREAD_SECONDS = 0.2
"""How long a thread that waits for what has just come may take to end."""
_C_LOCALES = ("C", "POSIX")
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
_LOADER_NAMES = ("LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "GCONV_", "LOCPATH", "SSLKEYLOGFILE")
"""Variables that are read while a program is loaded, or by C code before it asks for them."""


class Unsuitable(Exception):
    """This process cannot stand for a fresh one: it has to be started the plain way."""


class Image(Program):
    """The worker's program, loaded: `main` is called in a forked process instead of an exec."""

    def __init__(self, shown: Shown, main: Main, spare: "SpareWorker | None" = None) -> None:
        self.shown = shown
        self._main = main
        self._spare = spare
        self._alone = True

    @property
    def is_there(self) -> bool:
        """Whether the worker waits already that was forked before this process had a run."""
        return self._spare is not None

    def start(self, invocation: Invocation, own: Sequence[int]) -> GatedWorker:
        """Have the worker that is there already begin; where that cannot, fork another."""
        spare, self._spare = self._spare, None
        ordered = spare and spare.ordered(invocation)
        return ordered or super().start(invocation, own)

    def rest(self) -> None:
        """Let the worker go that is there already: it takes memory."""
        if self._spare is not None:
            self._spare.dismiss()
            self._spare = None

    def before_fork(self) -> None:
        """Let threads end whose work is done; beside one that has not, the worker is started by exec."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(THREAD_SECONDS)
        self._alone = threading.active_count() == 1

    def become(self, invocation: Invocation, gate: int | None = None) -> NoReturn:
        """Make this process the worker; by exec where its environment wants another interpreter."""
        if not self._alone or wants_own_start(invocation.environment):
            super().become(invocation, gate)
        close_all_but({0, 1, 2, *invocation.keep, *([] if gate is None else [gate])})
        try:
            settle(self.shown, *invocation.shown_as(), invocation.environment)
        except Unsuitable:
            super().become(invocation, gate)
        pass_gate(gate)
        run(self._main, invocation.arguments)

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


def wants_own_start(environment: Mapping[str, str]) -> bool:
    """Whether an environment would change the interpreter itself, or the libraries that it has loaded."""
    return any(name.startswith(_LOADER_NAMES) for name in environment)


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    kept = set(keep)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in kept:
            with suppress(OSError):  # the one by which the directory was read
                os.close(number)


def settle(shown: Shown, command: Sequence[str], argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Make this process one that was started by `command` in `environment`; `argv` is for `sys`.

    Raises:
        Unsuitable: the environment asks for an encoding that this interpreter was not started with.
    """
    shown.environment({**environment, **_locale_of(environment)})
    shown.command(command)
    sys.argv = list(argv)
    time.tzset()
    _forget()
    _open_streams()


def run(main: Main, arguments: Sequence[str]) -> NoReturn:
    """Call `main` and leave as a Python program leaves that consists of it."""
    code = 1
    try:
        main(list(arguments))
        code = 0
    except SystemExit as leave:
        code = _exit_code(leave)
    except KeyboardInterrupt:
        traceback.print_exc()
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the outermost frame: what a fresh interpreter would do with it
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        _flush()
        os._exit(code)


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return (leave.code or 0) & 0xFF
    print(leave.code, file=sys.stderr)
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # no reader any more, or no stream at all
            stream.flush()


def _locale_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Choose the locale as an interpreter does at its start; return the variable that it sets for that.

    A program that is started without one gets UTF-8 from its interpreter, and so does what it starts
    (PEP 538).
    """
    named = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"
    try:
        chosen = locale.setlocale(locale.LC_CTYPE, named)
    except locale.Error:
        chosen = locale.setlocale(locale.LC_CTYPE, "C")
    if chosen in _C_LOCALES:
        return {} if environment.get("LC_ALL") else _coerced()
    if locale.nl_langinfo(locale.CODESET).upper() not in ("UTF-8", "UTF8"):
        raise Unsuitable(f"the encoding of the locale {chosen}")
    return {}


def _coerced() -> dict[str, str]:
    for name in _COERCED:
        try:
            return {"LC_CTYPE": locale.setlocale(locale.LC_CTYPE, name)}
        except locale.Error:
            continue
    return {}


def _forget() -> None:
    """Drop what may have been found out for the process before."""
    processes.host_name.cache_clear()
    tempfile.tempdir = None


def _open_streams() -> None:
    """Open the standard streams anew on 0, 1 and 2, as at the start of an interpreter."""
    plain = locale.setlocale(locale.LC_CTYPE) in (*_C_LOCALES, *_COERCED)
    errors = "surrogateescape" if plain else "strict"
    sys.stdin = sys.__stdin__ = _stream(0, "r", errors)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", errors)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")  # type: ignore[misc]


def _stream(number: int, mode: str, errors: str) -> io.TextIOWrapper | None:
    """Return a stream on a descriptor, or None where the starter has closed it."""
    try:
        raw = io.FileIO(number, mode, closefd=False)
    except OSError:
        return None
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        "utf-8",
        errors,
        newline="\n",
        line_buffering=number == 2 or (number == 1 and os.isatty(number)),
    )
