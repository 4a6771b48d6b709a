"""The check of a started box, from outside by `/proc`, before the first command in it.

No answer of the inside is needed, so a program that only claims to be bubblewrap is found out.
"""

import errno
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from subagent_server.run import processes
from subagent_server.run.files import can_be_read, held_open
from subagent_server.run.stderr import lack_of_room
from subagent_server.sandbox.box import VARIABLE, Box, Rules, build_box, find_box_program
from subagent_server.sandbox.box_limits import bound, limits_as_text
from subagent_server.sandbox.landlock import version
from subagent_server.sandbox.readable import BoxRefused

_SPACES = ("user", "mnt", "pid", "ipc", "uts")
_END_SECONDS = 1.0
_NO_RIGHTS = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}


def check_box(started: "subprocess.Popen[bytes]", box: Box) -> int:
    """Return the pid of the program in the box of a started bubblewrap, if it is closed. Blocking.

    Raises:
        BoxRefused: the box is not as it was asked for, and the first fault is named; or it has just ended.
    """
    try:
        program = _only_child(_only_child(started.pid))
        if (fault := _fault(program, box) or _fault_of_filter(program)) is not None:
            raise BoxRefused(f"the started box is not closed: {fault}")
    except BoxRefused:
        with suppress(subprocess.TimeoutExpired):
            started.wait(_END_SECONDS)  # bubblewrap ends in moments when what it holds was killed
            raise ended_early(started) from None
        raise
    return program


def _child_of_closed_box(leader: int, box: Box) -> int | None:
    """Return the process in which `leader` makes a box, as soon as it is closed; until then None.

    A bubblewrap that holds its program back drops its last rights when everything else is done. So a box that
    is once found closed stays so.

    Raises:
        BoxRefused: it will not be closed.
    """
    try:
        child = _only_child(leader)
        return child if _fault(child, box) is None else None
    except BoxRefused as refusal:
        if refusal.passes:  # all else is done, and something else lies at a path
            raise
        return None


def _fault(pid: int, box: Box) -> str | None:
    try:
        return next(_faults(pid, box), None)
    except (OSError, KeyError) as error:
        raise BoxRefused(f"the started box could not be looked at ({error})") from error


def _fault_of_filter(pid: int) -> str | None:
    """Return the fault if no filter looks at the calls of a program. Bubblewrap sets it last of all."""
    has_filter = processes.status_of(pid).get("Seccomp") == "2"
    return None if has_filter else "its programs may make every system call"


def _only_child(pid: int) -> int:
    children = processes.children_of(pid)
    if len(children) != 1:
        raise BoxRefused("the started program is not bubblewrap, or its box has ended")
    return children[0]


def _faults(pid: int, box: Box) -> Iterator[str]:
    for space in (*_SPACES, *(() if box.network else ("net",))):
        if Path(f"/proc/{pid}/ns/{space}").readlink() == Path(f"/proc/self/ns/{space}").readlink():
            yield f"it shares the {space} namespace of the host"
    status = processes.status_of(pid)
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
    """Yield the mounts that can be written although they should not, and those that show another file."""
    read_only = _mounts(pid)
    for path, closed in read_only.items():
        if not closed and path not in box.memory and not _is_writable(path, box):
            yield f"{path} can be written in it"
    for path in box.closed:
        if not read_only.get(path):
            yield f"{path} is not read-only in it"
    for path, wanted in box.identities.items():
        found = Path(f"/proc/{pid}/root{path}").stat()
        if (found.st_dev, found.st_ino) != wanted:
            what = f"{path} is another one in it than at the start"
            raise BoxRefused(f"the started box is not closed: {what}", passes=True)  # as after a save


def _is_writable(mounted: str, box: Box) -> bool:
    return any(str(path) in box.writable for path in (Path(mounted), *Path(mounted).parents))


def _mounts(pid: int) -> dict[str, bool]:
    """Return the paths of all mounts of a process, and whether the uppermost there is read-only."""
    found: dict[str, bool] = {}
    # The kernel escapes space, tab, newline and backslash: a name may hold every other byte.
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().rstrip(b"\n").split(b"\n"):
        words = line.split(b" ")
        path = os.fsdecode(words[4].decode("unicode_escape").encode("latin-1"))
        found[path] = b"ro" in words[5].split(b",")
    return found


# -- One trial start of a box: whether it works here, before anything depends on it.


_SECONDS = 30.0
_MOST_WORDS = 4096
_PASSING = (
    *("Can't find source path", "Can't get type of source", "Can't mkdir", "Can't create file"),
    *("Resource temporarily unavailable", "Cannot allocate memory", "Too many open files", "Interrupted"),
)
"""A path went between the look and the start, or the machine had no room."""
_LAST_EXIT_CODE = 128
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
_PROVEN: set[Path] = set()
"""The bubblewraps that have made a closed box for this process, or for the one that it was forked from."""


def try_box(box: Box) -> None:
    """Start a program in a box of its own, look at the walls from outside, and end it. Blocking.

    Raises:
        BoxRefused: the box cannot be made here, or is not closed; with bubblewrap's own line.
    """
    say_and_wait = ["sh", "-c", "echo ready; read line"]
    try:
        process = box.start(
            say_and_wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        raise not_started(error) from error
    try:
        assert process.stdout is not None
        if not can_be_read(process.stdout.fileno(), _SECONDS):  # it hangs, as on a network disk that is away
            raise BoxRefused(f"bubblewrap started no program within {_SECONDS:g} s", passes=True)
        if process.stdout.read(1):
            check_box(process, box)
        else:
            raise ended_early(process)
    finally:
        discard(process)


def try_here(build: Callable[[], Box], rules: Rules) -> None:
    """Try the box that `build` makes by these rules. Blocking.

    Raises:
        BoxRefused: as `try_box` does. It passes if boxes work in an empty directory: a run can have them fail
            where it writes, by a file that comes and goes, and must not get the next run out of its box so.
    """
    try:
        try_box(build())
    except BoxRefused as refusal:
        rehearse_box(rules.environment, (rules.cwd, *rules.written))
        passes = refusal.passes or is_proven(find_box_program(rules))
        raise BoxRefused(refusal.reason, passes=passes) from refusal


def rehearse_box(environment: Mapping[str, str], written: Sequence[Path] = ()) -> None:
    """Try boxes here once, so that this process and its forks need not wait before they rely on one.

    A bubblewrap in a directory that runs have `written` is not started.
    """
    with suppress(BoxRefused, OSError):
        _PROVEN.add(_tried_elsewhere(environment, written).program)


def is_proven(program: Path) -> bool:
    """Whether this bubblewrap has made a closed box here. Each box is still checked."""
    return program in _PROVEN


def can_box(environment: Mapping[str, str], written: Sequence[Path]) -> bool:
    """Whether boxes work here. Some 50 ms for the first one of a process that was not rehearsed."""
    if not _PROVEN:
        rehearse_box(environment, written)
    return bool(_PROVEN)


def outlook(environment: Mapping[str, str], written: Sequence[Path]) -> str:
    """Return whether boxes work here, by one trial start in an empty directory, for people.

    A bubblewrap in a directory that runs have `written` is not started.
    """
    try:
        box = _tried_elsewhere(environment, written)
    except BoxRefused as refusal:
        return f"none, so programs of runs have all rights of the user: {refusal.reason}"
    wall = f"Landlock {version()} is a second wall" if box.walled else "this kernel has no Landlock"
    return f"{box.program} works ({limits_as_text(box.limits)}; {wall})"


def _tried_elsewhere(environment: Mapping[str, str], written: Sequence[Path]) -> Box:
    """Return a box that has worked in an empty directory. Raises BoxRefused."""
    with tempfile.TemporaryDirectory(prefix="subagent-box-") as directory:
        path = Path(os.path.realpath(directory)) / "cwd"
        path.mkdir()
        plain = {name: environment[name] for name in (VARIABLE, "HOME") if name in environment}
        # without PATH: a run may write what lies there
        box = build_box(Rules(cwd=path, environment=plain, network=False, written=written))
        try_box(box)
        return box


def not_started(error: OSError) -> BoxRefused:
    """Return the refusal of a bubblewrap that the system would not start."""
    why = (lack_of_room(error) or error.strerror or str(error)).rstrip(".")
    return BoxRefused(f"bubblewrap could not be started ({why})", passes=error.errno in _NO_ROOM)


def ended_early(process: "subprocess.Popen[bytes]") -> BoxRefused:
    """Return the refusal of a bubblewrap that has ended, with its own line."""
    words = b"" if process.stderr is None else process.stderr.read(_MOST_WORDS)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    return refusal_of(words.decode("utf-8", "replace"), process.returncode)


def refusal_of(words: str, exit_code: int | None) -> BoxRefused:
    """Return the refusal in the first line that a bubblewrap printed.

    A negative exit code is the signal that ended it; one above 128 the signal that ended its inner process.
    """
    line = words.strip().partition("\n")[0].rstrip(".")  # it ends within a sentence
    is_killed = not line and exit_code is not None and not 0 <= exit_code <= _LAST_EXIT_CODE
    passes = is_killed or any(sign in line for sign in _PASSING)
    if "Unknown option" in line:
        line += ", because it is too old: version 0.8 or later is needed"
    return BoxRefused(line or "bubblewrap ended at once, without a message", passes=passes)


# -- Start a program in the sandbox, held at a pipe until the sandbox is verified.


_PAUSE_SECONDS = 0.001


def start_gated(
    box: Box,
    argv: Sequence[str],
    *,
    more: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    before: Callable[[int], None] = lambda _: None,
    cancelled: threading.Event | None = None,
    **how: Any,
) -> "subprocess.Popen[bytes]":
    """Start `argv` in a box of its own once the box is found closed. Blocking, for some milliseconds.

    `before` is called with the pid that becomes the program, before it does. Another thread may set
    `cancelled`: then the start is refused at once, and not after 30 s, if bubblewrap hangs.

    Raises:
        BoxRefused: there is no such box here. Nothing is left running.
        OSError: bubblewrap cannot be started.
    """
    gate, opener = os.pipe()
    with held_open(gate), held_open(opener):
        holding = ["--block-fd", str(gate), *more]
        process = box.start(argv, more=holding, pass_fds=(*pass_fds, gate), **how)
        try:
            try:
                child = _closed_child(process.pid, box, cancelled)
            except BoxRefused as refusal:
                raise (ended_early(process) if process.poll() is not None else refusal) from None
            before(child)
            os.write(opener, b"!")
        except BaseException:
            discard(process)
            raise
        return process


def start_bounded(box: Box, argv: Sequence[str], **how: Any) -> "subprocess.Popen[bytes]":
    """Start `argv` as `start_gated` does, within the limits of the box. Raises as that does."""
    return start_gated(box, argv, before=lambda pid: bound(pid, box.limits), **how)


def _closed_child(leader: int, box: Box, cancelled: threading.Event | None) -> int:
    """Wait until the box of a bubblewrap that holds its program back is closed; return the process in it.

    Raises BoxRefused: bubblewrap has ended, the box does not close, or nobody waits for it any more.
    """
    with held_open(os.pidfd_open(leader)) as ended:
        deadline = time.monotonic() + _SECONDS
        while (child := _child_of_closed_box(leader, box)) is None:
            if can_be_read(ended, _PAUSE_SECONDS):
                raise BoxRefused("bubblewrap ended before it was closed")
            if cancelled is not None and cancelled.is_set():
                raise BoxRefused("its start was given up")
            if time.monotonic() > deadline:
                raise BoxRefused(f"bubblewrap did not close it within {_SECONDS:g} s")
        return child


def discard(process: "subprocess.Popen[bytes]") -> None:
    """Kill a bubblewrap, and with it all that is in its box; close its pipes. Blocking."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
