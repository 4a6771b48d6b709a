"""Find the bubblewrap to use: the one that the user names, else that of the system."""

import stat
from collections.abc import Mapping
from pathlib import Path

from subagent_server.host.host_programs import NoHostProgram, user_program
from subagent_server.sandbox.refusal import BoxRefused

SYSTEM_PROGRAM = Path("/usr/bin/bwrap")
VARIABLE = "SUBAGENT_BWRAP"
ADVICE = "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`)"


def find_program(environment: Mapping[str, str], cwd: Path) -> Path:
    """Return the path of bubblewrap: what `SUBAGENT_BWRAP` names, else `/usr/bin/bwrap` if root owns it.

    PATH and Python's packages are not searched. A wall is worth as much as its builder: an environment of
    Python packages is often below the working directory, where a run could replace the program that is to
    hold back the next run.

    Raises:
        BoxRefused: there is none that can be used.
    """
    if not (named := environment.get(VARIABLE)):
        if _is_of_root(SYSTEM_PROGRAM):
            return SYSTEM_PROGRAM
        raise BoxRefused(f"there is no {SYSTEM_PROGRAM} that root owns: {ADVICE}")
    try:
        return user_program(str(Path(named).absolute()), None, [cwd])
    except NoHostProgram as error:
        raise BoxRefused(f"{VARIABLE} names {named}, which cannot be used: {error.why}") from error


def _is_of_root(program: Path) -> bool:
    try:
        status = program.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022
