"""The control group of a run: one bound of memory and of processes for all programs of its boxes together.

    words = GROUPS.words(run_id, memory=4 << 30, processes=256)   # before a command line, or ()
    GROUPS.remove(run_id)                                         # at the end of the run

A command line that begins with these words enters the group before it executes anything else, so that no
process is ever outside. There are two kinds of groups:

- a directory below a cgroup2 that this process may write, in a container or as root without systemd. All
  boxes of the run share it. It is made only where the controllers can be handed on: a group that has
  processes of its own cannot do that (cgroups(7), "no internal processes"), and nobody's are moved;
- a scope of systemd, by `systemd-run --scope`, which then becomes the command (`exec`). Each box has one,
  because only systemd moves a process from the session of a user into a group of that user. It is gone with
  its last process.

Where systemd works, it alone makes groups: a directory of root next to its own would break its rules.
"""

import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from subagent_server.run.host_programs import NoHostProgram, system_program

Kind = Literal["scope", "directory"]

_CONTROLLERS = frozenset({"memory", "pids"})
_OWN_PROCESSES = 16
"""Processes of a box that are ours: bubblewrap twice, and a shell, for each of a few boxes."""
_TRIAL_SECONDS = 3.0
_REMOVE_SECONDS = 1.0
_ENTER = 'echo 0 > "$0/cgroup.procs"; exec "$@"'
_SESSION = ("--user", "--quiet", "--collect", "--no-ask-password", "--scope")


@dataclass
class ControlGroups:
    """Groups as this machine can have them; each process finds out once."""

    program: Path | None = None
    """The `systemd-run`; by default that of the system."""
    systemd: Path = Path("/run/systemd/system")
    """It is there if systemd is the system's manager (sd_booted(3))."""
    own_group: Path = Path("/proc/self/cgroup")
    mounts: Path = Path("/proc/self/mountinfo")
    _scopes_work: bool | None = field(default=None, init=False)

    def kind(self) -> Kind | None:
        """Return what groups there can be here, by a look that costs a few file operations."""
        if self.systemd.is_dir():
            return None if self._scopes_work is False or self._systemd_run() is None else "scope"
        return None if self._parent_group() is None else "directory"

    def words(self, run_id: str, *, memory: int, processes: int) -> Sequence[str]:
        """Return the beginning of a command line that works in the group of a run, which is made if needed.

        Empty if there can be no group. The first call tries systemd, for 3 s at most.
        """
        if (kind := self.kind()) is None:
            return ()
        if kind == "directory":
            directory = self._made(run_id, memory, processes + _OWN_PROCESSES)
            return () if directory is None else ("/bin/sh", "-c", _ENTER, str(directory))
        scope = self._scope(memory, processes + _OWN_PROCESSES)
        if self._scopes_work is None:
            self._scopes_work = _succeeds([*scope, "true"], self.environment)
        return scope if self._scopes_work else ()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which `systemd-run` finds the manager of the user; the run has no say in it."""
        return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}

    def remove(self, run_id: str) -> None:
        """End what is left in the group of a run, and remove it. A scope ends with its last process."""
        parent = None if self.systemd.is_dir() else self._parent_group()
        directory = None if parent is None else parent / _named(run_id)
        if directory is None or not directory.is_dir():
            return
        with suppress(OSError):
            (directory / "cgroup.kill").write_text("1", encoding="ascii")
            _wait_until_empty(directory)
        with suppress(OSError):
            directory.rmdir()

    def _scope(self, memory: int, processes: int) -> list[str]:
        bounds = (f"MemoryMax={memory}", "MemorySwapMax=0", f"TasksMax={processes}")
        session = _SESSION[1:] if os.geteuid() == 0 else _SESSION
        return [str(self._systemd_run()), *session, *(f"--property={bound}" for bound in bounds), "--"]

    @property
    def has_failed(self) -> bool:
        """Whether systemd, which should make groups here, has failed to."""
        return self._scopes_work is False

    def _systemd_run(self) -> Path | None:
        try:
            return self.program or system_program("systemd-run", None, [Path.cwd()])
        except (NoHostProgram, OSError):
            return None

    def _made(self, run_id: str, memory: int, processes: int) -> Path | None:
        """Return the directory of a group, with its bounds; None if it cannot be made."""
        parent = self._parent_group()
        if parent is None:
            return None
        directory = parent / _named(run_id)
        try:
            directory.mkdir(exist_ok=True)
            (directory / "memory.max").write_text(str(memory), encoding="ascii")
            (directory / "pids.max").write_text(str(processes), encoding="ascii")
        except OSError:
            with suppress(OSError):
                directory.rmdir()
            return None
        with suppress(OSError):  # a kernel without swap has no such file
            (directory / "memory.swap.max").write_text("0", encoding="ascii")
        return directory

    def _parent_group(self) -> Path | None:
        """Return the nearest group around this process below which groups of ours can have bounds."""
        own = True
        for directory in self._groups():
            if not os.access(directory, os.W_OK) or not os.access(directory / "cgroup.procs", os.W_OK):
                return None
            if _names(directory / "cgroup.subtree_control") >= _CONTROLLERS:
                return directory
            if own and _names(directory / "cgroup.controllers") >= _CONTROLLERS:
                with suppress(OSError):  # it has processes and is not the root of all groups
                    (directory / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
                    return directory
            own = False
        return None

    def _groups(self) -> Iterator[Path]:
        """Yield the group of this process and those around it, as far as they are mounted."""
        try:
            lines = os.fsdecode(self.own_group.read_bytes()).split("\n")
            mounts = os.fsdecode(self.mounts.read_bytes()).split("\n")  # the kernel escapes no other break
        except OSError:
            return
        own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
        for words in (line.split(" ") for line in mounts if line):
            root, directory, kind = words[3], Path(words[4]), words[words.index("-") + 1]
            if own is None or kind != "cgroup2" or not Path(own).is_relative_to(root):
                continue
            within = Path(own).relative_to(root)
            yield from (directory / part for part in (within, *within.parents))
            return


GROUPS = ControlGroups()
"""Those of this machine."""


def _named(run_id: str) -> str:
    return f"subagent-{run_id}"


def _wait_until_empty(group: Path) -> None:
    """Wait, with a bound, until no process of a group lives. Raises OSError."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    with (group / "cgroup.events").open(encoding="ascii") as events:
        changed = select.poll()
        changed.register(events, select.POLLPRI)
        while "populated 1" in events.read() and (left := deadline - time.monotonic()) > 0:
            changed.poll(left * 1000)
            events.seek(0)


def _names(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def _succeeds(command: Sequence[str], environment: dict[str, str]) -> bool:
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
