"""Bring a forked process into the state in which a freshly started Python begins its program.

A fork puts in order the things that belong to a process and not to its program: descriptors, environment,
process title, locale, streams, caches. Then it calls the same main function as a fresh interpreter does.
Standard library only.
"""

import atexit
import io
import locale
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from subagent_server.forkserver.proctitle import ProcessTitle
from subagent_server.host import processes

Main = Callable[[list[str]], object]

_C_LOCALES = ("C", "POSIX")
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
_EXIT_NOT_FLUSHED = 120
_LOADER_NAMES = ("LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "GCONV_", "LOCPATH", "SSLKEYLOGFILE")
"""Variables that are read while a program is loaded, or by C code before it asks for them."""


class NotLikePlainStart(Exception):
    """A fork cannot be as the plain start would be: the program has to be started plainly."""


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    kept = set(keep)
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in kept:
            with suppress(OSError):  # the one by which the directory was read
                os.close(number)


def assume_identity(
    title: ProcessTitle, command: Sequence[str], argv: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Make this process one that was started by `command` in `environment`; `argv` is for `sys`.

    Raises:
        NotLikePlainStart: the environment would change the interpreter itself, the libraries that it has
            loaded, or its encoding.
    """
    if any(name.startswith(_LOADER_NAMES) for name in environment):
        raise NotLikePlainStart("an environment that wants an interpreter of its own")
    title.set_environment({**environment, **_locale_of(environment)})
    title.show_command(command)
    sys.argv = list(argv)
    time.tzset()
    _forget_caches()
    _open_streams()


def run(main: Main, arguments: Sequence[str], leave: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """Call `main`, and exit by `leave` as a Python program exits that consists of it."""
    code = 1
    try:
        main(list(arguments))
        code = 0
    except SystemExit as wanted:
        code = _exit_code(wanted)
    except KeyboardInterrupt:
        traceback.print_exc()
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the outermost frame: a fresh interpreter does the same
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        code = _flush() or code
        leave(code)


def _exit_code(wanted: SystemExit) -> int:
    if wanted.code is None or isinstance(wanted.code, int):
        return (wanted.code or 0) & 0xFF
    print(wanted.code, file=sys.stderr)
    return 1


def _flush() -> int:
    """Flush the streams; return the exit code of an interpreter that could not, else 0."""
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            with suppress(ValueError, AttributeError):  # closed by the program, or by the starter
                stream.flush()
        except OSError:
            code = _EXIT_NOT_FLUSHED
    return code


def _locale_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Choose the locale as an interpreter does at its start; return the variable that it sets for that.

    A program that is started without a locale gets UTF-8 from its interpreter, and so do its children
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
        raise NotLikePlainStart(f"the encoding of the locale {chosen}")
    return {}


def _coerced() -> dict[str, str]:
    for name in _COERCED:
        with suppress(locale.Error):
            return {"LC_CTYPE": locale.setlocale(locale.LC_CTYPE, name)}
    return {}


def _forget_caches() -> None:
    """Drop cached facts that may differ from process to process."""
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
    """Return a stream on a descriptor, or None if the starter has closed it."""
    try:
        raw = io.FileIO(number, mode, closefd=False)
    except OSError:
        return None
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    at_once = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    buffer = io.BufferedReader(raw) if mode == "r" else raw if at_once else io.BufferedWriter(raw)
    by_line = number == 2 or (number == 1 and os.isatty(number))
    return io.TextIOWrapper(
        buffer,
        *("utf-8", errors, "\n", by_line, at_once),
    )
