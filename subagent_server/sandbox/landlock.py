"""A second wall of the kernel around what a box may write: Landlock (landlock(7)).

    argv = walled(["bash", ...], writable=["/home/ada/shop", "/tmp"])

The mounts of a box are the first wall. Landlock knows files by their inode and not by a mount, so a writable
mount that is there by mistake stays closed; and with a network it keeps programs from the abstract sockets
of the host (dbus, X11), which belong to no file. It has to be set inside, after the mounts, by the process
that becomes the program: so the command line begins with this module, as an interpreter reads it from `-c`.
Standard library only.
"""

import ctypes
import os
import signal
import stat
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same numbers on every architecture (asm-generic/unistd.h)."""
_ASK_VERSION, _BENEATH_PATH = 1, 1
_LEAST_VERSION = 2
"""Version 1 would refuse every move of a file to another directory."""
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGE_DIRECTORY = sum(1 << bit for bit in (*range(4, 13), 13))
"""Remove, make of every kind, and move between directories (LANDLOCK_ACCESS_FS_*)."""
_SCOPES = 0b11
"""Abstract sockets, and signals to processes outside (LANDLOCK_SCOPE_*)."""
_TRUNCATE_SINCE, _SCOPES_SINCE = 3, 6


# Read with the import: an upgrade takes the file away for a moment, while runs of the old version continue.
_SOURCE = "" if __name__ == "__main__" else Path(__file__).read_text(encoding="utf-8")


@cache
def version() -> int:
    """Return the version of the kernel's Landlock (its ABI), or 0 where there is none that can be used."""
    try:
        found = _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError:
        return 0
    return found if found >= _LEAST_VERSION else 0


def interpreter() -> Path:
    """Return the interpreter that a box has to show, below `sys.base_prefix`."""
    return Path(os.path.realpath(sys.executable))


def walled(argv: Sequence[str], writable: Sequence[str]) -> list[str]:
    """Return the command line that executes `argv` behind the wall; `writable` are absolute paths."""
    return [str(interpreter()), "-I", "-S", "-c", _SOURCE, *writable, "--", *argv]


def restrict(writable: Sequence[str]) -> None:
    """Let this process and all that it starts write below these paths only; one that is missing is left out.

    Raises:
        OSError.
    """
    number = version()
    files = _WRITE_FILE | (_TRUNCATE if number >= _TRUNCATE_SINCE else 0)
    handled = struct.pack("=QQQ", files | _CHANGE_DIRECTORY, 0, _SCOPES)
    ruleset = _call(_CREATE_RULESET, handled, len(handled) if number >= _SCOPES_SINCE else 8, 0)
    for path in writable:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rights = files | (_CHANGE_DIRECTORY if is_directory else 0)
        _call(_ADD_RULE, ruleset, _BENEATH_PATH, struct.pack("=Qi", rights, descriptor), 0)
        os.close(descriptor)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _call(number: int, *arguments: "int | bytes | None") -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _main(words: Sequence[str]) -> None:
    division = words.index("--")
    try:
        restrict(words[:division])
        # Python ignores it, and so would the program. SIGXFSZ stays ignored: a file that gets too large is an
        # error that the program reports, and not the end of the shell.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(words[division + 1], list(words[division + 1 :]))
    except OSError as error:
        program = words[division + 1]
        os.write(2, os.fsencode(f"{program} could not be started: {error.strerror}\n"))
        os._exit(127)


if __name__ == "__main__":
    _main(sys.argv[1:])
