"""The live runs of this user, of all runs roots: what each reads as its own, and where its boxes write.

    others = enter(state_directory, LiveRun(this_process(), root, agents=[...], writes=[cwd]))

A run of one root may work in a directory that holds the root or the agents of another run, so each start
notes its places in one file of the user's state directory and reads those of the others. An entry counts as
long as its worker lives: a run that has ended holds nothing, and nobody has to remove its entry.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subagent_server.run.files import open_private
from subagent_server.run.host_programs import user_program
from subagent_server.run.processes import Identity, is_alive
from subagent_server.settings import Settings

_FILE, _LOCK, _NEW = "live-runs.json", "live-runs.lock", "live-runs.new"
_MOST_BYTES = 4 << 20
_MOST_PLACES = 64


@dataclass(frozen=True)
class LiveRun:
    """A run at work. All paths are real ones."""

    worker: Identity
    root: Path
    agents: Sequence[Path] = ()
    """The directories of its agents: as its root, no other run may write them."""
    writes: Sequence[Path] = ()
    """Where programs in its boxes write; nothing if it has none."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the file."""
        places = {"agents": self.agents, "writes": self.writes}
        return {"worker": self.worker.to_json(), "root": str(self.root)} | {
            name: [str(path) for path in paths][:_MOST_PLACES] for name, paths in places.items()
        }

    @classmethod
    def from_json(cls, data: Any) -> "LiveRun | None":
        """Return the entry that `data` describes, or None."""
        try:
            worker = Identity.from_json(data["worker"])
            agents, writes = ([Path(str(path)) for path in data[name]] for name in ("agents", "writes"))
            root = Path(str(data["root"]))
        except (KeyError, TypeError):
            return None
        return None if worker is None else cls(worker, root, agents, writes)


def enter(state_directory: Path | None, mine: LiveRun) -> list[LiveRun]:
    """Note a run, and return the other live ones. Blocking, some milliseconds.

    Raises:
        OSError: the state directory cannot be used.
    """
    if state_directory is None:
        return []
    state_directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = open_private(str(state_directory))
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = _alive(directory)
            content = json.dumps([run.to_json() for run in (*others, mine)]).encode()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(_NEW, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(content)
            os.rename(_NEW, _FILE, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(lock)
    finally:
        os.close(directory)
    return others


def live_runs(state_directory: Path | None) -> list[LiveRun]:
    """Return the live runs of this user; none if their file cannot be read."""
    if state_directory is None:
        return []
    with suppress(OSError):
        directory = open_private(str(state_directory), make=False)
        try:
            return _alive(directory)
        finally:
            os.close(directory)
    return []


def host_program(settings: Settings, name: str) -> Path:
    """Return a program that a person names, to be executed outside of every box.

    It is not taken from the working directory, nor from where a live run writes.

    Raises:
        NoHostProgram.
    """
    named = str(settings.cwd / name) if os.sep in name else name
    return user_program(named, settings.environment.get("PATH"), written_directories(settings))


def written_directories(settings: Settings) -> list[Path]:
    """Return the directories where programs in boxes write: the working directory, and those of live runs.

    A home directory is none of them: no box may write it (`sandbox/readable.py`).
    """
    cwd = Path(os.path.realpath(settings.cwd))
    live = [place for run in live_runs(settings.state_directory) for place in run.writes]
    is_above_home = settings.home is not None and Path(os.path.realpath(settings.home)).is_relative_to(cwd)
    return live if is_above_home else [cwd, *live]


def _alive(directory: int) -> list[LiveRun]:
    try:
        descriptor = os.open(
            _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory
        )
        with os.fdopen(descriptor, "rb") as file:
            data = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    found = (LiveRun.from_json(entry) for entry in (data if isinstance(data, list) else []))
    return [run for run in found if run is not None and is_alive(run.worker)]
