"""The command by which another program can start `subagent`, from any directory and permanently."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = "subagent"


def own_command(environment: Mapping[str, str], *, from_shell: bool) -> list[str]:
    """Return the words that start this command.

    The bare name is used if PATH finds this installation permanently: not only through an environment
    that is activated in this shell, and only for programs with the PATH of a shell (`from_shell`). Otherwise
    it is the path of the script, or of the interpreter if there is no script.
    """
    script = next(_scripts(), None)
    if script is None:
        return [sys.executable, "-P", "-m", "subagent_server"]
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
