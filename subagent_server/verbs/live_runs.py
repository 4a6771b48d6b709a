"""The live runs of this user, of all runs roots: what each reads as its own, and where its boxes write.

    others = enter(state_directory, LiveRun(this_process(), root, agents=[...], writes=[cwd]))

A run of one root may work in a directory that holds the root or the agents of another run, so each start
notes its directories in one file of the user's state directory and reads those of the others. An entry counts
as long as its worker lives: a run that has ended holds nothing, and nobody has to remove its entry. Of each
root the last one stays, for a run that works where the root lies.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subagent_server.run import locks
from subagent_server.run.files import PrivateDirectory
from subagent_server.run.host_programs import path_out_of_reach, user_program
from subagent_server.run.processes import Identity, host_name, is_alive
from subagent_server.sandbox.readable import working_copies
from subagent_server.settings import Settings

_FILE, _LOCK, _NEW = "live-runs.json", "live-runs.lock", "live-runs.new"
_MOST_PATHS = 200
_MOST_BYTES = 256 << 20
"""A larger file would hold nothing. A run decides on one path, its directory: thousands have room."""
_MOST_ROOTS = 200
_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class LiveRun:
    """A run at work. All paths are real ones."""

    worker: Identity
    root: Path
    agents: Sequence[Path] = ()
    """The directories of its agents: as its root, no other run may write them."""
    writes: Sequence[Path] = ()
    """Where programs in its boxes write; nothing if it has none.

    The `.git` of such a directory is read-only for them, unless it is named here as well: because it was
    missing at the start, or the author of the agent lifts the rule.
    """
    hides: Sequence[Path] = ()
    """The other runs roots in `writes`, which its boxes do not show; one that comes later they can write."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the file."""
        lists = {"agents": self.agents, "writes": self.writes, "hides": self.hides}
        return {"worker": self.worker.to_json(), "root": str(self.root)} | {
            name: [str(path) for path in paths][:_MOST_PATHS] for name, paths in lists.items()
        }

    @classmethod
    def from_json(cls, data: Any) -> "LiveRun | None":
        """Return the entry that `data` describes, or None."""
        try:
            worker = Identity.from_json(data["worker"])
            agents, writes, hides = (
                [Path(str(path)) for path in data.get(name, ())] for name in ("agents", "writes", "hides")
            )
            root = Path(str(data["root"]))
        except (AttributeError, KeyError, TypeError):
            return None
        return None if worker is None else cls(worker, root, agents, writes, hides)

    def writes_in(self, directory: Path) -> bool:
        """Whether programs in its boxes can write to a directory, or below it."""
        return any(directory.is_relative_to(each) or each.is_relative_to(directory) for each in self.writes)

    def writes_records_of(self, root: Path) -> bool:
        """Whether programs in its boxes can write a runs root."""
        is_held = any(root.is_relative_to(held) for held in (self.root, *self.hides))
        return not is_held and any(map(root.is_relative_to, self.writes))


def enter(state_directory: Path | None, mine: LiveRun) -> list[LiveRun]:
    """Note a run, and return the other live ones. Blocking, some milliseconds.

    Raises:
        OSError, StorageFailed: the state directory cannot be used.
        LockTimeout: another process, such as a stopped one, holds it.
    """
    if state_directory is None:
        return []
    state_directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = PrivateDirectory(state_directory)
    with locks.exclusive(directory.entry(_LOCK), _LOCK_SECONDS):
        noted = _noted(state_directory)
        alive = _alive(noted)
        # A run of another host is judged there alone: its entry stays (a home that hosts share).
        kept = [*(run for run in noted if run.worker.host != host_name()), *alive]
        rooted = {run.root for run in (*kept, mine)}
        last = {run.root: run for run in noted if run.root not in rooted}
        kept = [*list(last.values())[-_MOST_ROOTS:], *kept]
        new = directory.entry(_NEW)
        with os.fdopen(new.open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(json.dumps([run.to_json() for run in (*kept, mine)]).encode())
        new.rename(directory.entry(_FILE))
    return alive


def why_none_enters(state_directory: Path | None) -> str | None:
    """Return why no run could be noted, as a sentence, or None. Nothing is made."""
    if state_directory is None:
        return None
    nearest, why = state_directory, ""
    try:
        PrivateDirectory(state_directory, make=False).names()
    except FileNotFoundError:  # the first run makes it
        nearest = next(each for each in state_directory.parents if os.path.exists(each))  # noqa: PTH110
    except OSError as error:
        why = f"{state_directory} cannot be made or written ({error.strerror})" if error.errno else str(error)
    if not why and not os.access(nearest, os.W_OK | os.X_OK):
        why = f"{state_directory} cannot be made or written"
    advice = "set XDG_STATE_HOME to a directory that is yours alone, on a disk with modes"
    return f"No run can begin here, because {why}: {advice}." if why else None


def live_runs(state_directory: Path | None) -> list[LiveRun]:
    """Return the live runs of this user; none if their file cannot be read."""
    return _alive(_noted(state_directory))


def known_roots(state_directory: Path | None) -> list[Path]:
    """Return the runs roots of live and ended runs of this user; a path may be no root any more."""
    return list(dict.fromkeys(run.root for run in _noted(state_directory)))


def host_program(settings: Settings, name: str) -> Path:
    """Return a program that a person names, to be executed outside of every box.

    It is not taken from the working directory, nor from where a live run writes.

    Raises:
        NoHostProgram.
    """
    named = str(settings.cwd / name) if os.sep in name else name
    return user_program(named, settings.environment.get("PATH"), written_directories(settings))


def environment_for_host(settings: Settings) -> dict[str, str]:
    """Return the environment of a command of a person: a line of the shell looks programs up in PATH, too.

    `subagent` finds the runs root in it, wherever the command works and whatever `--runs` has named.
    """
    path = settings.environment.get("PATH")
    own = {} if path is None else {"PATH": path_out_of_reach(path, written_directories(settings))}
    return {**settings.environment, **own, "SUBAGENT_RUNS": str(settings.runs_root)}


def written_directories(settings: Settings) -> list[Path]:
    """Return where programs in boxes write, here, in the working copies around it, and of live runs."""
    here = working_copies(Path(os.path.realpath(settings.cwd)), settings.environment)
    return [*here, *written_by_live_runs(settings.state_directory)]


def written_by_live_runs(state_directory: Path | None) -> list[Path]:
    """Return where programs in boxes of live runs write."""
    return [path for run in live_runs(state_directory) for path in run.writes]


def _noted(state_directory: Path | None) -> list[LiveRun]:
    if state_directory is None:
        return []
    try:
        data = json.loads(PrivateDirectory(state_directory, make=False).entry(_FILE).read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    found = (LiveRun.from_json(entry) for entry in (data if isinstance(data, list) else []))
    return [run for run in found if run is not None]


def _alive(noted: Sequence[LiveRun]) -> list[LiveRun]:
    return [run for run in noted if is_alive(run.worker)]
