"""What is read-only in a box although the directory around it can be written, and how it is held there.

    held = hold(cwd, settings.executed, lifted)      # arguments of `Rules.over`
    parents = directories_above(places, writable)    # `build_box` does it for all that is read-only

A mount holds its own name and no name above it: whoever can rename a directory above puts another in its
place. So each directory between a writable mount and a read-only place is a mount of its own too, which can
be written and can neither be renamed nor removed.

A name that is missing cannot be held. `name_watch.py` looks whether it came.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.domain.executed_files import executed_by, is_lifted, literal_names
from subagent_server.host.inside import printable
from subagent_server.sandbox import git_directories

MAX_ENTRIES = 20_000
"""How many names of the directory are compared with the table. Literal names are asked for one by one."""


@dataclass
class Held:
    """The mounts that a box needs beside its others, in this order (`--bind` or `--ro-bind`).

    `open` are the names that cannot be held, each with the reason, for people.
    """

    mounts: list[tuple[str, Path]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


def hold(cwd: Path, executed: Iterable[Path], lifted: Sequence[str] = ()) -> Held:
    """Return the mounts for what programs of the host execute in a directory, given by its real path.

    These are the names of the table at its top, `.git` as a whole, and the files and hooks that git's
    configuration names (`executed`). `lifted` are paths below `cwd` for which the author of the agent lifts
    the rule.

    Raises:
        OSError: the directory cannot be read.
    """
    held = Held()
    within = (path.relative_to(cwd) for path in executed if path != cwd and path.is_relative_to(cwd))
    for parts in (*(tuple(name.split("/")) for name in _names(cwd)), *(path.parts for path in within)):
        path = cwd.joinpath(*parts)
        if not os.path.lexists(path) or is_lifted(parts, lifted):
            continue
        if (link := _link_in(cwd, parts)) is not None:
            reason = "it is a symbolic link, which cannot be kept from being replaced"
            held.open.append(f"{printable(str(link.relative_to(cwd)))}: {reason}")
            continue
        held.mounts.append(("--ro-bind", path))
    common = git_directories.common_directory(cwd)
    if common is not None:
        held.mounts.append(("--ro-bind", common))
    held.mounts += [("--bind", cwd / free) for free in lifted if os.path.lexists(cwd / free)]
    return held


def directories_above(
    places: Iterable[Path], writable: Collection[Path], closed: Collection[Path]
) -> list[Path]:
    """Return the directories between the writable places and the read-only ones in them, outermost first.

    What lies in one of the `closed` places is held by it.
    """
    found = dict[Path, None]()
    for place in places:
        around = [above for above in place.parents if any(above.is_relative_to(free) for free in writable)]
        for above in reversed(around):
            if above not in writable and not any(above.is_relative_to(other) for other in closed):
                if not stat.S_ISDIR(above.lstat().st_mode):
                    break  # a link: the mount lies where it leads
                found[above] = None
    return list(found)


def _names(cwd: Path) -> Iterator[str]:
    """Yield the names of the table at the top of the directory, there or missing."""
    literal = literal_names()
    yield from literal
    with os.scandir(cwd) as entries:
        for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
            if entry.name not in literal and executed_by(
                (entry.name,), is_directory=entry.is_dir(follow_symlinks=False)
            ):
                yield entry.name


def _link_in(cwd: Path, parts: Sequence[str]) -> Path | None:
    """Return the first part of a path below `cwd` that is a symbolic link, or None."""
    steps = (cwd.joinpath(*parts[: depth + 1]) for depth in range(len(parts)))
    return next((step for step in steps if step.is_symlink()), None)
