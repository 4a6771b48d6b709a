"""What a run leaves behind that other programs execute.

Such files are moved away or named, and restored for a person who wants them. During the run its worker
watches for them (`worker/protected_paths.py`); what a killed worker left undone is done here.

Tested in `tests/sandbox/test_executed_changes.py`.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from subagent_server.run.confined_path import printable
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.run.executed_files import can_run_code
from subagent_server.run.paths import RunPaths, is_marked
from subagent_server.run.processes import boot_id
from subagent_server.run.records import RunMeta
from subagent_server.run.store import RunStore, read_request
from subagent_server.sandbox.file_watch import (
    Name,
    NameWatch,
    OwnWrites,
    Seen,
    changes,
    look,
    read_mark,
)
from subagent_server.sandbox.quarantine import Kept, Quarantine, Taken
from subagent_server.settings import state_directory_of
from subagent_server.verbs.access import Caller, NotAllowed
from subagent_server.worktrees.store_of_run import is_pointer

MAX_SHOWN = 20
"""How many files are named; of more, only the number is shown."""
MAX_PATH_CHARACTERS = 300


def look_for_run(store: RunStore, cwd: Path, hooks: tuple[str, ...] = ()) -> Seen:
    """Return what can run code in the directory of a run (its real path). Blocking, up to 0.5 s.

    `hooks` are what `own_hooks` has found before the run. Runs roots are left out, and our state directory,
    in which worktrees are: what other runs do there is their own business.
    """
    state = state_directory_of(os.environ)
    ours = {Path(os.path.realpath(path)) for path in (store.paths.root, state) if path is not None}

    def is_ours(path: Path) -> bool:
        return path in ours or path.name == ".subagent" or is_marked(path)

    return look(cwd, hooks, leave_out=is_ours)


def left_since(before: Seen | None, after: Seen, since: float) -> list[str]:
    """Return what came or changed between two looks, for people; see `file_watch.changes`."""
    found = changes(before, after, since)
    shown = [printable(path[:MAX_PATH_CHARACTERS]) for path in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"and {len(found) - MAX_SHOWN} more")
    if after.cut and not (before is not None and before.cut):
        shown.append("and maybe more (the directory has grown too large to be looked at)")
    return shown


def left_behind(
    store: RunStore, meta: RunMeta, record: Callable[[dict[str, Any]], None], *, at_once: bool
) -> None:
    """Move away what came during a command whose worker was killed, and record what else the run has left.

    Without a first look only times show what is new. What came is moved if this is `at_once` after the end:
    later, it may be the person's. After a restart of the machine nothing is looked at: all its runs died at
    once, and one list reads them. Blocking, up to 0.5 s.

    Raises:
        UnreadableMeta: the request of the run cannot be read.
        OSError: a directory cannot be opened.
    """
    if meta.started_at is None or meta.launch is None or meta.launch.boot_id != boot_id():
        return
    run = store.paths.run(meta.run_id)
    request = read_request(run)
    cwd = Path(request.cwd)
    mark = read_mark(run.before)
    before, during, configured = mark or (frozenset[Name](), "", ())
    if mark is not None and at_once:
        own, lifted = OwnWrites(state_directory_of(os.environ)), _lifted(request.agent)
        names = NameWatch(cwd, Quarantine(run.quarantine), own, lifted, lambda: configured)
        taken = names.take(before, during)
        names.close()
        if taken:
            record(taken_facts(taken, cwd))
        run.before.unlink()
    seen = look_for_run(store, cwd, configured)
    if meta.worktree is not None and is_pointer(cwd / ".git", meta.worktree):
        seen = seen.without(".git")  # made for this run, and not by it
    if left := left_since(None, seen, meta.started_at.timestamp()):
        record(left_facts(left))


def _lifted(agent: dict[str, Any]) -> list[str]:
    """Return the paths below the directory that a recorded agent allows; the record is data."""
    paths = agent.get("sandboxWrite")
    named = [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
    return [path for path in named if not path.startswith(("/", "~/"))]


def left_facts(found: list[str]) -> dict[str, Any]:
    """Return the fields of the warning in the journal."""
    return {"message": can_run_code(found), "canRunCode": found}


def taken_facts(taken: Taken, cwd: Path) -> dict[str, Any]:
    """Return the fields of the warning in the journal about what came during a command."""
    during = shorten((*(kept.during for kept in taken.moved), "a command")[0])
    moved = [shown_kept(kept, cwd) for kept in taken.moved]
    sentences = [
        f"Moved to quarantine, because it came during {during} and other programs execute it by themselves: "
        f"{', '.join(moved)}. `subagent show RUN --restore NUMBER` gives it back."
        if moved
        else "",
        f"Other programs execute it by themselves, and it could not be moved away: {', '.join(taken.stuck)}."
        if taken.stuck
        else "",
    ]
    return {
        "message": " ".join(filter(None, sentences)),
        **({"quarantined": moved} if moved else {}),
        **({"canRunCode": list(taken.stuck)} if taken.stuck else {}),
    }


def shown_kept(kept: Kept, cwd: Path) -> str:
    """Return number and path of one thing in quarantine."""
    return f"{kept.number} {kept.shown(cwd)[:MAX_PATH_CHARACTERS]}"


def quarantined(run: RunPaths, cwd: Path) -> list[str]:
    """Return what is in the quarantine of a run, for people."""
    return [shown_kept(kept, cwd) for kept in Quarantine(run.quarantine).kept()]


def restore(store: RunStore, run_id: str, name: str, caller: Caller) -> Path:
    """Restore what is in the quarantine of a run under a number, or the last one of that path.

    Raises:
        NotAllowed: the caller is a run.
        BadArgument: there is no such thing, or it cannot be restored.
        UnreadableMeta, ForeignRoot.
    """
    if caller.is_child:
        raise NotAllowed("Only a person gives back what is in quarantine: leave --restore out.")
    store.paths.check_ours()
    run = store.paths.run(run_id)
    cwd = Path(os.path.realpath(read_request(run).cwd))
    quarantine = Quarantine(run.quarantine)
    kept = _kept(quarantine.kept(), name, cwd)
    path = Path(kept.path)
    if ".." in path.parts or not (path.is_relative_to(cwd) or path.parent in cwd.parents):
        raise BadArgument(f"{kept.number} was not in the directory of run {run_id}, so it stays there.")
    try:
        with OwnWrites(state_directory_of(os.environ)).writing(path):  # a command that runs leaves it then
            quarantine.give_back(kept)
    except FileExistsError as error:
        raise BadArgument(f"There is something at {shorten(kept.shown(cwd))}: move it away first.") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise BadArgument(f"{shorten(kept.shown(cwd))} could not be given back ({why}).") from error
    return path


def _kept(found: Sequence[Kept], name: str, cwd: Path) -> Kept:
    for kept in reversed(found):
        if name in (kept.number, kept.number.lstrip("0"), kept.path, kept.shown(cwd)):
            return kept
    if not found:
        raise BadArgument("The quarantine of the run is empty, so nothing can be given back.")
    there = ", ".join(shown_kept(kept, cwd) for kept in found[:MAX_SHOWN])
    raise BadArgument(f"The quarantine holds no {shorten(name)}, but {there}: name one of these.")
