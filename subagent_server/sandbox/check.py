"""The check of a started box, from outside by `/proc`, before the first command in it.

No answer of the inside is needed, so a program that only claims to be bubblewrap is found out.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from subagent_server.sandbox.box import Box
from subagent_server.sandbox.refusal import BoxRefused

_SPACES = ("user", "mnt", "pid", "ipc", "uts")
_NO_RIGHTS = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}


def check_box(leader: int, box: Box) -> int:
    """Return the pid of the program in the box that `leader`, a started bubblewrap, holds, if it is closed.

    Raises:
        BoxRefused: the box is not as it was asked for; the first fault is named.
    """
    program = _only_child(_only_child(leader))
    fault = _fault(program, box) or _fault_of_filter(program)
    if fault is not None:
        raise BoxRefused(f"the started box is not closed: {fault}")
    return program


def child_of_closed_box(leader: int, box: Box) -> int | None:
    """Return the process in which `leader` makes a box, as soon as it is closed; until then None.

    A bubblewrap that holds its program back drops its last rights when everything else is done. So a box that
    is once found closed stays so.
    """
    try:
        child = _only_child(leader)
        return child if _fault(child, box) is None else None
    except BoxRefused:
        return None


def _fault(pid: int, box: Box) -> str | None:
    try:
        return next(_faults(pid, box), None)
    except (OSError, KeyError) as error:
        raise BoxRefused(f"the started box could not be looked at ({error})") from error


def _fault_of_filter(pid: int) -> str | None:
    """Return the fault if no filter looks at the calls of a program. Bubblewrap sets it last of all."""
    has_filter = _status(pid).get("Seccomp") == "2"
    return None if has_filter else "its programs may make every system call"


def _only_child(pid: int) -> int:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        children = []
    if len(children) != 1:
        raise BoxRefused("the started program is not bubblewrap, or its box has ended")
    return int(children[0])


def _faults(pid: int, box: Box) -> Iterator[str]:
    for space in (*_SPACES, *(() if box.network else ("net",))):
        if Path(f"/proc/{pid}/ns/{space}").readlink() == Path(f"/proc/self/ns/{space}").readlink():
            yield f"it shares the {space} namespace of the host"
    status = _status(pid)
    for name, wanted in _NO_RIGHTS.items():
        if int(status[name], 16) != wanted:
            yield f"its programs have capabilities ({name} {status[name]})"
    if status["NoNewPrivs"] != "1":
        yield "its programs may gain rights"
    yield from _faults_of_mounts(pid, box)
    names = {entry.partition(b"=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
    more = names - {os.fsencode(name) for name in box.environment} - {b"", b"PWD"}
    if more:
        yield f"its environment holds {len(more)} variables that are not on the list"


def _faults_of_mounts(pid: int, box: Box) -> Iterator[str]:
    """Yield the mounts that can be written although they should not, and those that show another place."""
    read_only = _mounts(pid)
    for place, closed in read_only.items():
        if not closed and place not in box.memory and not _is_writable(place, box):
            yield f"{place} can be written in it"
    for place in box.closed:
        if not read_only.get(place):
            yield f"{place} is not read-only in it"
    for place, wanted in box.identities.items():
        found = Path(f"/proc/{pid}/root{place}").stat()
        if (found.st_dev, found.st_ino) != wanted:
            yield f"{place} is another directory in it than at the start"


def _is_writable(place: str, box: Box) -> bool:
    return any(str(path) in box.writable for path in (Path(place), *Path(place).parents))


def _mounts(pid: int) -> dict[str, bool]:
    """Return the places of all mounts of a process, and whether the uppermost there is read-only."""
    found: dict[str, bool] = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines():
        words = line.split()
        place = os.fsdecode(words[4].decode("unicode_escape").encode("latin-1"))
        found[place] = b"ro" in words[5].split(b",")
    return found


def _status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
