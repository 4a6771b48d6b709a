"""How a program is started: the command of its interpreter, and the modules that it gets as text."""

import os
from functools import cache
from pathlib import Path

from subagent_server.toolkit.code_mode import inside

_MODULES = ("line", "functions", "preflight", "main")
_LOADER = """\
import sys
for name, text in eval(open(int(sys.argv[2]), encoding="utf-8").read()):
    module = sys.modules[name] = type(sys)(name)
    exec(compile(text, "<code mode>", "exec"), vars(module))
module.main(int(sys.argv[1]))
"""


def program_command(python: str, line: int, modules: int) -> list[str]:
    """Return the command of a program, with the descriptors of its socket and of `modules_file`."""
    return [python, "-I", "-u", "-X", "utf8", "-c", _LOADER, str(line), str(modules)]


def modules_file() -> int:
    """Return a file in memory with the modules that a program needs; a box shows no directory of ours."""
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
    return repr(texts).encode()
