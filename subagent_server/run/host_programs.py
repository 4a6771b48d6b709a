"""The programs that are executed outside of every box: found once, and never where a run can write.

    git = system_program("git", environment.get("PATH"), writable=[cwd])
    claude = user_program("claude", environment.get("PATH"), writable=[cwd])

A name is looked up in absolute directories alone. Directories that a run can write are passed over, so a
file that a run has put into an activated environment of its project is not executed (SPEC section 13). What
was found is remembered with its inode: a file that appears earlier in `PATH` later changes nothing.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from subagent_server.run.errors import HostError, shorten

SYSTEM_DIRECTORIES = (
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
    *("/run/current-system/sw/bin", "/nix/var/nix/profiles/default/bin"),
)
"""Where the system keeps its programs. No box writes there (`sandbox/readable.py`)."""

_MOST_LINKS = 40
"""As many as the kernel follows (MAXSYMLINKS)."""

_LONGEST_LINE = 256
"""As much of a first line as the kernel reads (BINPRM_BUF_SIZE)."""

_found: dict[tuple[str, str], tuple[Path, int, int]] = {}
"""By name and search path: the program, its device and its inode."""


class NoHostProgram(HostError):
    """A program is not here, or only where a run can write; `why` is a part of a sentence."""

    code = "no_program"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"The program {shorten(name)} cannot be used: {why}.")
        self.why = why


def system_program(name: str, path: str | None, writable: Iterable[Path]) -> Path:
    """Return a program that this package itself needs: that of the system, else as `user_program` does.

    Raises:
        NoHostProgram.
    """
    return _searched(name, [*SYSTEM_DIRECTORIES, *(path or "").split(os.pathsep)], writable)


def user_program(name: str, path: str | None, writable: Iterable[Path]) -> Path:
    """Return a program that a person names: by its absolute path, or by a name that is looked up in `path`.

    `path` is a variable PATH, None for the default one. `writable` are the directories that runs can write.

    Raises:
        NoHostProgram.
    """
    if os.sep not in name:
        return _searched(name, (path if path is not None else os.defpath).split(os.pathsep), writable)
    if not Path(name).is_absolute() or shutil.which(name) is None:
        raise NoHostProgram(name, "there is no program of that absolute path")
    if (each := lies_in(Path(name), writable)) is not None:
        raise NoHostProgram(name, f"a run can write it, because it lies in {each}")
    return Path(name)


def words_to_start(program: Path, path: str | None, writable: Iterable[Path]) -> list[str]:
    """Return the command of a program, by its interpreter if env(1) would look that up in `path`.

    For programs that keep all of `path`, because their own commands need it; others get `path_out_of_reach`.

    Raises:
        NoHostProgram: the interpreter cannot be used.
    """
    line = ""
    with suppress(OSError), program.open("rb") as file:
        line = os.fsdecode(file.readline(_LONGEST_LINE))
    words = line[2:].split() if line.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        named = [word for word in words[1:] if word != "-S"]
        if named and not named[0].startswith("-") and "=" not in named[0]:
            return [str(user_program(named[0], path, writable)), *named[1:], str(program)]
    return [str(program)]


def path_out_of_reach(path: str, writable: Iterable[Path]) -> str:
    """Return a variable PATH without what is relative, and without directories that runs can write."""
    writable = list(writable)
    directories = (Path(each) for each in path.split(os.pathsep))
    kept = (each for each in directories if each.is_absolute() and lies_in(each, writable) is None)
    return os.pathsep.join(map(str, kept))


def lies_in(path: Path, writable: Iterable[Path]) -> Path | None:
    """Return the writable directory through which an absolute `path` leads; None if there is none.

    Each name and each link on the way counts, because whoever can write its directory can replace it.
    """
    roots = [Path(os.path.realpath(each)) for each in writable]
    return next((each for step in steps_to(path) for each in roots if step.is_relative_to(each)), None)


def steps_to(path: Path) -> Iterator[Path]:
    """Yield each name that the system looks at on an absolute path, links and what they lead to included."""
    here, left, links = Path("/"), list(reversed(path.parts[1:])), 0
    while left:
        part = left.pop()
        here = here.parent if part == ".." else here / part
        yield here
        # `Path.is_symlink` raises for a name that is too long, as a link or a variable can hold
        if os.path.islink(here) and (links := links + 1) <= _MOST_LINKS:  # noqa: PTH114
            target = here.readlink()
            here = Path("/") if target.is_absolute() else here.parent
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _searched(name: str, directories: Iterable[str], writable: Iterable[Path]) -> Path:
    directories, writable = ([each for each in directories if Path(each).is_absolute()], list(writable))
    key = (name, os.pathsep.join(directories))
    if (known := _found.get(key)) is not None and _is_same(known) and lies_in(known[0], writable) is None:
        return known[0]
    passed_over = None
    for each in directories:
        found = shutil.which(name, path=each)
        if found is None:
            continue
        if (run_writes := lies_in(Path(found), writable)) is None:
            status = Path(found).stat()
            _found[key] = (Path(found), status.st_dev, status.st_ino)
            return Path(found)
        passed_over = passed_over or f"a run can write it, because {found} lies in {run_writes}"
    raise NoHostProgram(name, passed_over or "it is not in PATH")


def _is_same(known: tuple[Path, int, int]) -> bool:
    try:
        status = known[0].stat()
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == known[1:] and os.access(known[0], os.X_OK)
