"""One box: what it shows, what may be written in it, and the start of a program inside.

    rules = Rules(cwd=..., environment=..., ...)
    box = build_box(rules)            # BoxRefused: there can be none
    process = box.start(["bash", ...], stdin=..., pass_fds=...)
    check_box(process.pid, box)       # from outside, before the first command

Every argument goes to bubblewrap by a file in memory, so that the inside cannot read the command line. The
order of the mounts matters: a later one lies over an earlier one.
"""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from subagent_server.run.agent_definition import SandboxLimits
from subagent_server.run.confined_path import open_real, printable
from subagent_server.run.control_groups import GROUPS
from subagent_server.run.executed_files import executed_by, is_lifted, literal_names
from subagent_server.run.files import held_open, in_memory
from subagent_server.run.host_programs import NoHostProgram, user_program
from subagent_server.sandbox import git_files
from subagent_server.sandbox.box_limits import entering
from subagent_server.sandbox.git_files import is_repository
from subagent_server.sandbox.landlock import interpreter, walled
from subagent_server.sandbox.landlock import version as landlock_version
from subagent_server.sandbox.readable import (
    BoxRefused,
    PathRefused,
    box_environment,
    filter_of_calls,
    homes,
    program_mounts,
    shows_too_much,
    system_mounts,
    too_much_to_write,
    tool_chains,
    working_copies,
)

# -- Find the bubblewrap to use: the one that the user names, else that of the system.


SYSTEM_PROGRAM = Path("/usr/bin/bwrap")
VARIABLE = "SUBAGENT_BWRAP"
ADVICE = "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`)"


def find_program(environment: Mapping[str, str], *written: Path) -> Path:
    """Return the path of bubblewrap: what `SUBAGENT_BWRAP` names, else `/usr/bin/bwrap` if root owns it.

    `written` are the directories where runs write.

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
        return user_program(str(Path(named).absolute()), None, written)
    except NoHostProgram as error:
        raise BoxRefused(f"{VARIABLE} names {named}, which cannot be used: {error.why}") from error


def _is_of_root(program: Path) -> bool:
    try:
        status = program.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022


# -- What is read-only in a box although the directory around it can be written, and how it is held there.
#
#     held = hold(cwd, settings.executed, lifted)      # arguments of `Rules.over`
#     parents = directories_above(paths, writable)     # `build_box` does it for all that is read-only
#
# A mount holds its own name and no name above it: whoever can rename a directory above can replace it by
# another. So each directory between a writable mount and a read-only path is a mount of its own too, which
# can be written and can neither be renamed nor removed.
#
# A name that is missing cannot be held. `file_watch.py` looks whether it came.


MAX_ENTRIES, MAX_HELD = 20_000, 200
"""How many names of the directory are compared with the patterns of the table, and how many of these held: a
run can leave thousands, and each mount costs milliseconds. Literal names are asked for one by one."""
_IS_LINK = "it is a symbolic link, which cannot be kept from being replaced"


@dataclass
class Held:
    """The further mounts that a box needs, in this order (`--bind` or `--ro-bind`).

    `open` are the names that cannot be held, each with the reason, for people.
    """

    mounts: list[tuple[str, Path]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


def hold(cwd: Path, executed: Iterable[Path], lifted: Sequence[str] = ()) -> Held:
    """Return the mounts for what programs of the host execute in a directory (its real path).

    These are the names of the table at its top, `.git` as a whole, and the files and hooks that git's
    configuration names (`executed`). `lifted` are paths below `cwd` for which the author of the agent lifts
    the rule.

    Raises:
        OSError: the directory cannot be read.
    """
    held = Held()
    within = (path.relative_to(cwd) for path in executed if path != cwd and path.is_relative_to(cwd))
    literal = literal_names(cwd)
    by_pattern = _names_by_pattern(cwd, literal)
    if len(by_pattern) > MAX_HELD:
        held.open.append(f"{len(by_pattern) - MAX_HELD:,} names like {printable(by_pattern[-1])}: too many")
    names, links = [*literal, *by_pattern[:MAX_HELD]], dict[Path, str]()
    for parts in (*(tuple(name.split("/")) for name in names), *(path.parts for path in within)):
        path = cwd.joinpath(*parts)
        if not os.path.lexists(path) or is_lifted(parts, lifted):
            continue
        if (link := _link_in(cwd, parts)) is not None:
            links[link] = f"{printable(str(link.relative_to(cwd)))}: {_IS_LINK}"
            continue
        held.mounts.append(("--ro-bind", path))
    held.open += links.values()
    common = git_files.common_directory(cwd)
    if common is not None:
        held.mounts.append(("--ro-bind", common))
    for free in lifted:
        if (link := _link_in(cwd, Path(free).parts)) is not None:
            held.open.append(f"{printable(str(link.relative_to(cwd)))}: {_IS_LINK}")
        elif os.path.lexists(cwd / free):
            held.mounts.append(("--bind", cwd / free))
    return held


def directories_above(
    paths: Iterable[Path], writable: Collection[Path], closed: Collection[Path]
) -> list[Path]:
    """Return the directories between the writable paths and the read-only ones in them, outermost first.

    What lies in one of the `closed` directories is held by it.
    """
    found = dict[Path, None]()
    for path in paths:
        around = [above for above in path.parents if any(above.is_relative_to(free) for free in writable)]
        for above in reversed(around):
            if above not in writable and not any(above.is_relative_to(other) for other in closed):
                if os.path.islink(above) or not os.path.isdir(above):  # noqa: PTH112, PTH114
                    break  # a link: the mount lies where it leads; or it is gone, as `_identity` finds
                found[above] = None
    return list(found)


def _names_by_pattern(cwd: Path, literal: Collection[str]) -> list[str]:
    """Return what is at the top of the directory by a pattern of the table, or in another spelling."""
    with os.scandir(cwd) as entries:
        return [
            entry.name
            for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)
            if entry.name not in literal
            and executed_by((entry.name,), is_directory=entry.is_dir(follow_symlinks=False))
        ]


def _link_in(cwd: Path, parts: Sequence[str]) -> Path | None:
    """Return the first part of a path below `cwd` that is a symbolic link, or None."""
    steps = (cwd.joinpath(*parts[: depth + 1]) for depth in range(len(parts)))
    return next((step for step in steps if step.is_symlink()), None)


_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    "--disable-userns",
)
"""`--unshare-user` is named for root too: without it bubblewrap leaves root the root of the host."""
_ENDINGS = ("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts", "shm")
_OWN_MOUNTS = frozenset({"/proc", "/tmp", *(f"/dev/{name}" for name in _DEVICES)})
_MEMORY_DISK = str(512 << 20)

Identity = tuple[int, int]
"""Device and inode of a directory."""


@dataclass(frozen=True)
class Rules:
    """What a box has to be like. All paths are real ones.

    `hidden` directories are empty in the box, `read` and `write` are shown besides `cwd`, also below a hidden
    one. `over` are mounts that lie over parts of these (`--bind` or `--ro-bind`). `placed` are directories
    that are written under another path, by that path; `shown_as` names the file that is read instead of
    another. `own` is the environment of the agent, which is kept whole. `group` is the run in
    whose control group it works. `written` is where other runs write.
    """

    cwd: Path
    environment: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
    network: bool = True
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    read: Sequence[Path] = ()
    write: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    over: Sequence[tuple[str, Path]] = ()
    placed: Mapping[Path, Path] = field(default_factory=dict)
    shown_as: Mapping[Path, Path] = field(default_factory=dict)
    cwd_read_only: bool = False
    group: str = ""
    written: Sequence[Path] = ()


@dataclass(frozen=True)
class Box:
    """The build of a box: each program that is started by it gets a box of its own.

    `writable` are the writable mounts of the host's directories, `memory` the writable mounts in memory;
    `closed` have to be read-only. `identities` are what has to lie at each path: bubblewrap goes by names,
    and where runs write, a name may be a link to anything by now. A `walled` box has Landlock as second wall.
    """

    program: Path
    start_directory: Path
    arguments: Sequence[str]
    environment: Mapping[str, str]
    identities: Mapping[str, Identity]
    writable: frozenset[str]
    memory: frozenset[str]
    closed: frozenset[str]
    network: bool
    limits: SandboxLimits
    group: str = ""
    walled: bool = False

    def with_environment(self, own: Mapping[str, str]) -> "Box":
        """Return such a box with more variables."""
        return replace(self, environment={**self.environment, **own})

    @contextmanager
    def command(
        self, argv: Sequence[str], more: Sequence[str] = ()
    ) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        """Yield the command line that starts `argv` inside, and the descriptors that it has to inherit.

        `more` are arguments of bubblewrap for this start alone.
        """
        if self.walled:
            argv = walled(argv, sorted(self.writable | self.memory))
        last = ("--remount-ro", "/", "--chdir", str(self.start_directory))
        with held_open(in_memory(filter_of_calls(network=self.network))) as calls:
            ways = ("--seccomp", str(calls))
            words = [*self.arguments, *more, *last, *ways, *_setting(self.environment)]
            with held_open(in_memory(b"\0".join(map(os.fsencode, words)) + b"\0")) as arguments:
                yield [str(self.program), "--args", str(arguments), "--", *argv], (arguments, calls)

    def start(
        self, argv: Sequence[str], *, more: Sequence[str] = (), pass_fds: Sequence[int] = (), **how: Any
    ) -> "subprocess.Popen[bytes]":
        """Start a program inside; the descriptors in `pass_fds` reach it.

        The box ends with the *thread* that calls this (`--die-with-parent`).

        Raises:
            OSError: bubblewrap cannot be started.
        """
        enter = entering(self.group, self.limits) if self.group else ()
        with self.command(argv, more) as (command, descriptors):
            return subprocess.Popen(
                [*enter, *command],
                env=GROUPS.environment if enter else {},
                cwd="/",
                pass_fds=(*pass_fds, *descriptors),
                start_new_session=True,
                **how,
            )


def find_box_program(rules: Rules) -> Path:
    """Return the bubblewrap for a box by these rules, without the cost of building it.

    Raises:
        BoxRefused: bubblewrap is missing, or the working directory is too much to be shown.
        PathRefused: a directory is too much to be written.
    """
    program = find_program(rules.environment, rules.cwd, *rules.written)
    filter_of_calls(network=rules.network)
    own = homes(rules.environment)
    if shows_too_much(rules.cwd, own):
        raise BoxRefused(
            f"the working directory {rules.cwd} is the home directory, a part of the system, or above one: "
            "start the run in the directory of a project"
        )
    if rules.cwd in rules.hidden:
        raise BoxRefused(f"the working directory {rules.cwd} holds the runs: start the run elsewhere")
    if is_repository(rules.cwd):
        raise PathRefused(
            f"the working directory {rules.cwd} is itself a repository of git, which git of the host reads",
            "Start the run in a working copy of it.",
        )
    for path in rules.write:
        if shows_too_much(path, own) or any(map(path.is_relative_to, rules.hidden)):
            raise too_much_to_write(path)
    return program


def build_box(rules: Rules) -> Box:
    """Return a box by these rules.

    Raises:
        BoxRefused: bubblewrap is missing, or the working directory is too much to be shown.
    """
    program = find_box_program(rules)
    home = homes(rules.environment)[0]
    written = [*working_copies(rules.cwd, rules.environment), *rules.write, *rules.written]
    shown = [*tool_chains(home, rules.cwd, written, rules.environment), *rules.read]
    if landlock_version() and not any(map(interpreter().is_relative_to, (Path("/usr"), *shown))):
        shown.append(Path(os.path.realpath(sys.base_prefix)))
    over = {how: [path for kind, path in rules.over if kind == how] for how in ("--bind", "--ro-bind")}
    write = [*([] if rules.cwd_read_only else [rules.cwd]), *rules.write, *over["--bind"]]
    read_only = over["--ro-bind"]
    closed = [path for path in rules.hidden if any(map(path.is_relative_to, (*shown, rules.cwd, *write)))]
    write += directories_above((*shown, *read_only, *closed), write, (*read_only, *closed))
    mounts = [
        *((path, ("--size", _MEMORY_DISK, "--tmpfs")) for path in (Path("/tmp"), home)),
        *((path, ("--ro-bind", str(path))) for path in shown),
        *([(rules.cwd, ("--ro-bind", str(rules.cwd)))] if rules.cwd_read_only else []),
        *((path, ("--bind", str(path))) for path in write),
        *((target, ("--bind", str(path))) for target, path in rules.placed.items()),
        *((path, ("--ro-bind", str(path))) for path in read_only),
        *((target, ("--ro-bind", str(file))) for target, file in rules.shown_as.items()),
        *((path, ("--size", "4096", "--tmpfs")) for path in closed),
    ]
    arguments = [
        *_NAMESPACES,
        *([] if rules.network else ["--unshare-net"]),
        *_ENDINGS,
        *system_mounts(),
        *_in_order(mounts),
        *(word for path in closed for word in ("--remount-ro", str(path))),
        # a link only where nothing is mounted below it: a project may lie there
        *(
            ()
            if any(path.is_relative_to("/var/tmp") for path, _ in mounts)
            else ("--symlink", "/tmp", "/var/tmp")
        ),
    ]
    return Box(
        program=program,
        start_directory=rules.cwd,
        arguments=arguments,
        environment=box_environment(rules.environment, rules.own, home, network=rules.network),
        identities={
            str(path): _identity(path)
            for path in (rules.cwd, *write, *shown, *read_only)
            if path in write or path in read_only or any(map(path.is_relative_to, written))
        }
        | {str(target): _identity(path) for target, path in rules.placed.items()},
        writable=frozenset(map(str, (*write, *rules.placed))),
        memory=_OWN_MOUNTS | {str(home)},
        closed=frozenset(map(str, (*closed, *read_only, *rules.shown_as, "/proc/sys"))),
        network=rules.network,
        limits=rules.limits,
        group=rules.group,
        walled=landlock_version() > 0,
    )


def build_search_box(
    program: Path, searcher: Path, cwd: Path, directory: Path, hidden: Iterable[Path] = ()
) -> Box:
    """Return a box for a program that searches a `directory` in `cwd` and needs only libraries.

    Files of the directories above with what a search ignores are shown too.
    """
    closed = [path for path in hidden if path.is_relative_to(cwd)]
    arguments = [
        *_NAMESPACES,
        *("--unshare-net", *_ENDINGS, *program_mounts()),
        *("--ro-bind", str(searcher), str(searcher)),
        *_ignore_files(cwd),
        *("--ro-bind", str(cwd), str(cwd)),
        *(word for path in closed for word in ("--size", "4096", "--tmpfs", str(path))),
    ]
    return Box(
        program=program,
        start_directory=directory,
        arguments=arguments,
        environment={},
        identities={str(cwd): _identity(cwd)},
        writable=frozenset(),
        memory=frozenset(map(str, closed)),
        closed=frozenset(),
        network=False,
        limits=SandboxLimits(),
    )


def _ignore_files(cwd: Path) -> Iterator[str]:
    for above in cwd.parents:
        for name in (".gitignore", ".ignore", ".rgignore", ".git/info/exclude"):
            file = above / name
            if file.is_file() and not file.is_symlink():
                yield from ("--ro-bind", str(file), str(file))
        if (above / ".git").exists():
            yield from ("--dir", str(above / ".git"))


def _in_order(mounts: Iterable[tuple[Path, tuple[str, ...]]]) -> Iterator[str]:
    """Yield the arguments of mounts, each directory before those that lie over a part of it.

    A mount is its path, and the arguments before that. Of two at one path the later counts.
    """
    for path, arguments in sorted(dict(mounts).items(), key=lambda mount: len(mount[0].parts)):
        yield from (*arguments, str(path))


def _setting(environment: Mapping[str, str]) -> Iterator[str]:
    yield "--clearenv"
    for name, value in environment.items():
        yield from ("--setenv", name, value)


def _identity(path: Path) -> Identity:
    """Return the identity of a real path. Raises BoxRefused: it is gone, or a link has come into it.

    Both pass: boxes work here, so an agent that can do without one must not work without it for that.
    """
    try:
        with held_open(open_real(path.parent)) as directory:
            status = os.stat(path.name or ".", dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        passes = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        raise BoxRefused(f"{path} cannot be shown in it ({error.strerror})", passes=passes) from error
    if stat.S_ISLNK(status.st_mode):
        raise BoxRefused(f"{path} cannot be shown in it (a link has replaced it)", passes=True)
    return status.st_dev, status.st_ino
