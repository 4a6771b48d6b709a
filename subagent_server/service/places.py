"""The directories of a run and of its children: a tree stays in the `cwd` of its first run (SPEC 13)."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.domain.executed_files import executed_by
from subagent_server.domain.records import RunMeta
from subagent_server.host.inside import LeadsOutside, PathInside, inside, is_text, open_real
from subagent_server.service.context import Service


@dataclass(frozen=True)
class ParentPlaces:
    """The directories that a run may hand on to its children, by real paths.

    Children may work in `cwd`, and their inputs may lie there. `kept` are the run's own `inputs/` and
    `outputs/`, in which inputs may lie too. (A worktree made for a run will be another place to work in.)
    """

    run_id: str
    cwd: Path
    kept: tuple[Path, ...] = ()


def places_of(service: Service, parent: RunMeta) -> ParentPlaces:
    """Return the directories that `parent` may hand on.

    The `cwd` of a nested run is on record as a real path; the `cwd` of a root run is as its user named it.

    Raises:
        UnreadableMeta.
    """
    recorded = service.store.read_request(parent.run_id).cwd
    cwd = Path(recorded if parent.parent_run_id else os.path.realpath(recorded))
    run = service.store.paths.run(parent.run_id)
    own = Path(os.path.realpath(run.directory.parent), run.run_id)
    kept = [own / place.path.name for place in (run.inputs, run.outputs)]
    return ParentPlaces(parent.run_id, cwd, tuple(kept))


def cwd_of_user(service: Service, named: str | None) -> Path:
    """Return the directory named by a user, relative to the current directory, or the current directory.

    Raises:
        BadArgument: the path is not a directory.
    """
    cwd = _absolute(service, named)
    try:
        exists = cwd.is_dir()
    except OSError as error:  # a name too long for any file system
        raise _not_to_enter(named, error.strerror) from error
    if not exists:
        raise BadArgument(f"cwd {str(cwd)[:200]!r} is no directory: name one that exists.")
    return Path(os.path.normpath(cwd))


def cwd_of_child(service: Service, named: str | None, places: ParentPlaces) -> Path:
    """Return the real path of the directory a run named for its child, or of the caller's directory.

    Raises:
        BadArgument: it is not a directory below the run's own, or other programs execute files in this
            directory.
    """
    asked = str(_absolute(service, named))
    shown = shorten(named or asked, 200)
    try:
        with inside(places.cwd, asked) as place:
            _check_directory(place, shown)
            parts = place.parts
    except LeadsOutside as error:
        raise BadArgument(
            f"cwd {shown} leads outside {shorten(str(places.cwd), 200)}, where run {places.run_id} works and "
            "all that it starts: name a directory in it."
        ) from error
    except OSError as error:
        raise _not_to_enter(asked, error.strerror) from error
    by = executed_by(parts, is_directory=True)
    if by is not None:
        raise BadArgument(
            f"cwd {shown} is not a place to work in, because files in it are executed by {by.by}: name a "
            "directory above it."
        )
    return places.cwd.joinpath(*parts)


def cwd_of_agent(service: Service, agent: AgentDefinition) -> Path | None:
    """Return the real path of the directory that the agent file itself names: its author's word holds."""
    if not agent.cwd:
        return None
    return Path(os.path.realpath(cwd_of_user(service, agent.cwd)))


def enter(directory: str) -> None:
    """Make a real path the working directory of this process.

    Raises:
        OSError: the directory is gone, or its path got a link since the check.
    """
    descriptor = open_real(Path(directory))
    try:
        os.fchdir(descriptor)
    finally:
        os.close(descriptor)


def _absolute(service: Service, named: str | None) -> Path:
    try:
        return service.settings.cwd / Path(named or ".").expanduser()
    except RuntimeError as error:  # the home of nobody
        raise _not_to_enter(named, str(error).rstrip(".")) from error


def _not_to_enter(named: str | None, why: str | None) -> BadArgument:
    return BadArgument(f"cwd {shorten(named or '')} cannot be entered ({why}): name another.")


def _check_directory(place: PathInside, shown: str) -> None:
    status = place.status()
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise BadArgument(f"cwd {shown} is not a directory: name one that exists.")
    if not all(map(is_text, place.parts)):
        raise BadArgument(f"cwd {shown} has a name that is not UTF-8: name another.")
