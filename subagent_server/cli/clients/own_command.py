"""How another program can start this command, also tomorrow and from elsewhere."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = "subagent"


def own_command(environment: Mapping[str, str], *, from_shell: bool) -> list[str]:
    """Return the words that start this command.

    It is the bare name where PATH leads to this installation for good: not through the activated environment
    of this shell alone, and only for programs that have a shell's PATH (`from_shell`). Else it is the path
    of the script, or of the interpreter where there is no script.
    """
    script = next(_scripts(), None)
    if script is None:
        return [sys.executable, "-m", "subagent_server"]
    if from_shell and _on_path(environment, script):
        return [NAME]
    return [str(script)]


def _scripts() -> Iterator[Path]:
    called = Path(sys.argv[0])
    for path in (called if called.name == NAME else None, Path(sysconfig.get_path("scripts")) / NAME):
        if path is not None and os.access(path, os.X_OK) and path.is_file():
            yield path.absolute()


def _on_path(environment: Mapping[str, str], script: Path) -> bool:
    for directory in map(Path, environment.get("PATH", "").split(os.pathsep)):
        found = directory / NAME
        if directory.is_absolute() and not _is_of_a_venv(directory) and os.access(found, os.X_OK):
            return found.resolve() == script.resolve()
    return False


def _is_of_a_venv(directory: Path) -> bool:
    return (directory.parent / "pyvenv.cfg").exists()
