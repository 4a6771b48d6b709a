"""The interpreter of programs: its version, its command, and the modules that it gets as text."""

import marshal
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from subagent_server.domain.errors import RunRefused, shorten
from subagent_server.sandbox.box import Box
from subagent_server.toolkit.code_mode import inside

_MODULES = ("line", "functions", "preflight", "main")
OLDEST = (3, 9)
_VERSION = "import sys; print('Python', *sys.version_info[:3])"
_VERSION_SECONDS = 30.0
_LOADER = """\
import marshal, os, sys
line, modules = map(int, sys.argv[1:])
os.write(line, b'{"ready": true}\\n')
version, compiled, texts = marshal.load(open(modules, "rb"))
for name, code in marshal.loads(compiled) if version == sys.version else texts:
    module = sys.modules[name] = type(sys)(name)
    exec(compile(code, "<code mode>", "exec") if isinstance(code, str) else code, vars(module))
module.main(line)
"""
"""The first thing is the record that the program is here, so that its box is looked at while it gets ready.
The modules come compiled, as in a `.pyc` file, for the worker's interpreter; another one compiles them."""


def version_of(python: str, box: Box | None) -> str:
    """Return the version of the interpreter that an agent file names, asked where programs run. Blocking.

    Raises:
        RunRefused: `config`; it cannot be used.
    """
    command = [python, "-I", "-c", _VERSION]
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    try:
        process = subprocess.Popen(command, **streams) if box is None else box.start(command, **streams)
        with process:
            try:
                said = process.communicate(timeout=_VERSION_SECONDS)[0].decode("utf-8", "replace").strip()
            finally:
                process.kill()
    except (OSError, ValueError) as error:
        raise _unusable(python, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _unusable(python, f"it does not say its version within {_VERSION_SECONDS:g} s") from error
    found = re.fullmatch(r"Python (\d+) (\d+) (\d+)", said)
    if found is None:
        raise _unusable(python, f"asked for its version, it said: {shorten(said.partition(chr(10))[0])}")
    if (int(found[1]), int(found[2])) < OLDEST:
        raise _unusable(python, f"it is Python {found[1]}.{found[2]}")
    return ".".join(found.groups())


def own_version() -> str:
    """Return the version of the interpreter that this process runs in."""
    return ".".join(map(str, sys.version_info[:3]))


def _unusable(python: str, why: str) -> RunRefused:
    oldest = ".".join(map(str, OLDEST))
    return RunRefused(
        "config",
        f"codeMode.python: {shorten(python)} cannot be used: {why.rstrip('.')}.",
        f"Name a Python since {oldest}, or leave the key out to use {sys.executable}.",
    )


def program_command(python: str, line: int, modules: int) -> list[str]:
    """Return the command of a program, with the descriptors of its socket and of `modules_file`."""
    return [python, "-I", "-u", "-X", "utf8", "-c", _LOADER, str(line), str(modules)]


def modules_file() -> int:
    """Return a file in memory with the modules that a program needs; a box does not show this package."""
    descriptor = os.memfd_create("program")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(_modules())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@cache
def _modules() -> bytes:
    directory = Path(__file__).with_name("inside")
    texts = [
        (f"{inside.__name__}.{name}", (directory / f"{name}.py").read_text("utf-8")) for name in _MODULES
    ]
    compiled = [(name, compile(text, "<code mode>", "exec")) for name, text in texts]
    return marshal.dumps((sys.version, marshal.dumps(compiled), texts))
