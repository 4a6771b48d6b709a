"""What a box shows for reading: an allow-list with which ordinary work needs no settings.

The system's programs and a few files of `/etc`, tool chains below the home directory, what is on PATH, and
the certificates that the environment names. Never a directory that keeps tokens next to its programs:
`~/.cargo` is there as `~/.cargo/bin` alone.
"""

import errno
import fcntl
import os
import platform
import pwd
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from glob import escape, glob
from pathlib import Path
from typing import TypeVar

from subagent_server.run.confined_path import printable
from subagent_server.run.errors import RunRefused
from subagent_server.run.host_programs import steps_to

# -- The environment of programs in a box: an allow-list, so that no key or token of the run is in it.


_KEPT = frozenset(
    (
        *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "EDITOR", "NO_COLOR", "FORCE_COLOR"),
        *("CI", "SOURCE_DATE_EPOCH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "NODE_ENV"),
        *("TRACEPARENT", "TRACESTATE"),
    )
)
_PROXIES = frozenset(("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"))
CERTIFICATES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "CARGO_HTTP_CAINFO",
)
"""Variables that name files of certificates, which a box shows too: a company's own authority is one."""
TOOL_CHAINS = ("JAVA_HOME", "GOROOT", "PYENV_ROOT", "NVM_DIR", "RUSTUP_HOME", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that name the directory of a tool chain, which a box shows too."""


def box_environment(
    environment: Mapping[str, str], own: Mapping[str, str], home: Path, *, network: bool
) -> dict[str, str]:
    """Return the variables in a box: those of `environment` on the list, and all of the agent's `own`.

    A proxy's address may hold a password, so it is there only if there is a network to use it for.
    """
    names = {*_KEPT, *CERTIFICATES, *TOOL_CHAINS}
    kept = {
        name: value
        for name, value in environment.items()
        if name in names or name.startswith("LC_") or (network and name.lower() in _PROXIES)
    }
    fixed = {"HOME": str(home), "TMPDIR": "/tmp", "TERM": "dumb"}
    return {"PATH": os.defpath, "LANG": "C.UTF-8"} | kept | fixed | dict(own)


_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = (
    *("alternatives", "group", "host.conf", "hosts", "ld.so.cache", "localtime", "mime.types"),
    *("nsswitch.conf", "passwd", "protocols", "resolv.conf", "services", "timezone"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust", "crypto-policies"),
    *("fonts", "java-*", "python3*", "perl", "terminfo"),
)
_HOME = (
    *(".pyenv", ".rbenv", ".nodenv", ".asdf", ".nvm", ".fnm", ".volta", ".rustup", ".ghcup", ".juliaup"),
    *(".cargo/bin", ".deno/bin", ".bun/bin", ".dotnet", ".sdkman/candidates", ".gem/ruby", ".opam"),
    *("go", "miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba"),
    *(".local/bin", ".local/lib", ".local/share/uv/python", ".local/share/pipx", ".local/share/mise"),
    *(".local/share/fnm", ".local/share/pnpm", ".local/share/virtualenvs"),
)
_UV_TOOLS = ".local/share/uv/tools"
"""Each tool on its own: `uvx` writes files of its own next to them, and fails if it cannot."""
_NEXT_TO_PROGRAMS = ("lib", "lib64", "libexec", "include", "pyvenv.cfg")
"""What the programs of a directory `bin` use, next to it. Not `share`: people keep data in it."""


_SYSTEM = ("/usr", *(f"/{name}" for name in _ROOT_NAMES))
_NEVER = ("/tmp", "/etc", "/proc", "/dev", "/run", "/sys")


@cache
def program_mounts() -> tuple[str, ...]:
    """Return the arguments that show the programs and libraries of the system."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in (Path("/", name) for name in _ROOT_NAMES):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return tuple(arguments)


@cache
def system_mounts() -> tuple[str, ...]:
    """Return the arguments that show the system, with a `/proc` and `/dev` of the box's own."""
    arguments = [*program_mounts()]
    for pattern in _ETC:
        for path in sorted(Path("/etc").glob(pattern)):
            arguments += ["--ro-bind-try", str(path), str(path)]
    arguments += ["--ro-bind-try", "/nix/store", "/nix/store"]
    arguments += ["--proc", "/proc"]
    for path in _settings_in_proc():
        arguments += ["--ro-bind-try", str(path), str(path)]
    arguments += ["--dev", "/dev", "--size", str(64 << 20), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return tuple(arguments)


def _settings_in_proc() -> Iterator[Path]:
    """Yield the settings of the kernel. Many know no namespaces: a write of root would be the host's.

    With `/proc/sys/kernel/core_pattern`, root in a box could have the host run a program.
    """
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name[0] in "0123456789" or entry.is_symlink():
                continue
            if entry.is_dir() or entry.stat().st_mode & 0o222:
                yield Path(entry.path)


def tool_chains(home: Path, cwd: Path, written: Sequence[Path], environment: Mapping[str, str]) -> list[Path]:
    """Return the directories and files for reading that belong to the user's own tools.

    A path in a variable that would show the home directory, the working directory or a part of the system
    is left out, and so is one that leads through a link in a `written` directory, which a run can have made.
    """
    wanted = [home / name for name in _HOME]
    wanted += map(Path, sorted(glob(f"{escape(str(home / _UV_TOOLS))}/*")))  # noqa: PTH207 - it never raises
    wanted += [Path(value) for name in TOOL_CHAINS if (value := environment.get(name))]
    for entry in map(Path, environment.get("PATH", "").split(os.pathsep)):
        wanted += [entry, *_next_to(entry, home)]
    for name in CERTIFICATES:
        wanted += [Path(value) for value in environment.get(name, "").split(os.pathsep) if value]
    known, found = [Path(each) for each in _SYSTEM], list[Path]()
    # `..` is taken out by the text: no link before it is followed, and the comparisons below are right
    plain = dict.fromkeys(Path(os.path.normpath(path)) for path in wanted)
    for path in filter(os.path.lexists, plain):
        real = Path(os.path.realpath(path))
        if not path.is_absolute() or any(map(path.is_relative_to, (*known, *found))):
            continue
        if _link_of_run(path, written) is not None:
            continue
        is_plain = os.path.isdir(real) or os.path.isfile(real)  # noqa: PTH112, PTH113 - they never raise
        if is_plain and not _is_closed(real, (home, cwd)):
            found.append(path)
    return found


def showing(
    programs: Sequence[Path], environment: Mapping[str, str], written: Sequence[Path]
) -> Mapping[str, str]:
    """Return the environment with the directories of programs in PATH, which a box shows.

    A link in a `written` directory may be that of a run, and is followed to directories of programs alone.
    """
    programs = [path for path in programs if path.is_absolute()]
    directories = [path.parent for path in programs]
    for path in programs:
        real = Path(os.path.realpath(path))
        if _link_of_run(path, written) is None or real.parent.name == "bin":
            directories.append(real.parent)
    if not directories:
        return environment
    return {
        **environment,
        "PATH": os.pathsep.join([environment.get("PATH", os.defpath), *map(str, directories)]),
    }


def shows_too_much(path: Path, homes: Sequence[Path]) -> bool:
    """Whether a directory, by its real path, is a home directory, a part of the system, or above one."""
    return any(Path(other).is_relative_to(path) for other in (*map(str, homes), *_SYSTEM, *_NEVER))


def homes(environment: Mapping[str, str]) -> list[Path]:
    """Return the home directory of the environment, and that of the user if it is another one."""
    named = environment.get("HOME", "")
    try:
        own = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        own = ""
    homes = [Path(os.path.realpath(home)) for home in (named, own) if home.startswith("/")]
    return [home for home in homes if home != Path("/")] or [Path("/tmp")]


def working_copies(directory: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return a directory and the working copies of git around it, where earlier runs may have written.

    A home directory that is a working copy is left out, because no box can write it.
    """
    around = (path for path in directory.parents if os.path.lexists(path / ".git"))
    own = homes(environment)
    return [path for path in (directory, *around) if not shows_too_much(path, own)]


def _link_of_run(path: Path, written: Sequence[Path]) -> Path | None:
    """Return the first link on the way of a path that lies where runs write, or None."""
    links = filter(os.path.islink, steps_to(path))
    return next((link for link in links if any(map(link.is_relative_to, written))), None)


def _next_to(entry: Path, home: Path) -> list[Path]:
    if entry.name not in ("bin", "sbin") or entry.parent in (home, Path("/")):
        return []
    return [entry.parent / name for name in _NEXT_TO_PROGRAMS]


def _is_closed(path: Path, own: Sequence[Path]) -> bool:
    return shows_too_much(path, own) or any(path.is_relative_to(never) for never in _NEVER if never != "/tmp")


# -- The errors of the sandbox: a box that cannot be built, and a directory in which no run works.


T = TypeVar("T")


class BoxRefused(Exception):
    """There can be no box, or a started one is not as asked; `reason` is a part of a sentence.

    If it `passes`, the same start may work a moment later: a path went while the box was built, bubblewrap
    was killed, or the machine had no room. So it is tried once more, and is no fault of the agent.
    """

    def __init__(self, reason: str, *, passes: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.passes = passes


class PathRefused(Exception):
    """A run must not work in a directory, with a box or without one; `hint` is what to do instead."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def too_much_to_write(path: Path) -> PathRefused:
    """Return the refusal of a path in `sandboxWrite`."""
    return PathRefused(
        f"sandboxWrite cannot be kept: {path} is the home directory, a part of the system, above one, or "
        "belongs to the runs",
        "Name a directory below it, such as ~/.cache/pip.",
    )


def named_paths(key: str, named: Iterable[str], written: Sequence[Path]) -> list[Path]:
    """Return the real paths of what an agent file names under a key, as far as it is there.

    Raises:
        PathRefused: a link on the way lies where runs write, so that a run decides where it leads.
    """
    found = []
    for name in named:
        # `os.path` answers where `Path` raises: for a name that is too long, and where there is no home.
        path = Path(os.path.expanduser(name))  # noqa: PTH111
        if not path.is_absolute():
            path = Path.cwd() / path
        if (link := _link_of_run(path, written)) is not None:
            raise PathRefused(
                f"{key} cannot be kept: {printable(name)} leads through the link {printable(str(link))}, "
                "which a run could have made",
                "Name the path that is meant.",
            )
        if os.path.exists(path):  # noqa: PTH110
            found.append(Path(os.path.realpath(path)))
    return found


def tried_twice(start: Callable[[], T]) -> T:
    """Return what `start` returns; it is called once more if it was refused for a reason that passes.

    Raises:
        BoxRefused.
    """
    try:
        return start()
    except BoxRefused as refusal:
        if not refusal.passes:
            raise
    return start()


def end_of_run(what: str, refusal: BoxRefused) -> RunRefused:
    """Return the end of a run that needs a box: `what` could not be started in it.

    A reason that passes is no fault of the agent, so it is `storage` and not `config`.
    """
    return RunRefused(
        "storage" if refusal.passes else "config",
        f"{what} could not be started in its sandbox: {refusal.reason}.",
        "Start the run again; `subagent doctor` tries the sandbox.",
    )


# -- The system calls that programs in a box do without: a filter of the kernel (seccomp), for bubblewrap.
#
# Mounts and namespaces do not close these ways out:
#
# - the user's keyring (`keyctl`), which a process inherits, with the tickets and keys in it;
# - sockets that belong to no network namespace: AF_VSOCK, which leads to the host of a virtual
#   machine, and in a box without network Unix sockets, which may lie in the working directory (`socketpair`
#   is another call);
# - setuid files in the working directory, by which other users of the host become this one;
# - extended attributes, by which a runs root is known to be ours (`run/paths.py`);
# - leases (`fcntl`), also on files that are only read: whoever opens one on the host waits 45 s, each time;
#   and delegations, which are leases of directories too;
# - snapshots of btrfs (`ioctl`): in one of the working directory are the runs that a box hides, with the
#   attribute and the inode by which their root is ours; before Linux 6.8 all of a subvolume such as /home;
# - `io_uring` and `openat2`, whose arguments no filter sees, and parts of the kernel that are often at fault.
#
# A program for another architecture (32-bit) is ended at its first call: its calls have other numbers.


_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "openat2": (437, 437),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    **{f"io_uring {number}": (number, number) for number in (425, 426, 427)},
    **{f"xattr {number}": (number + 183, number) for number in range(5, 17)},
    **{f"xattr {number}": (number, number) for number in range(463, 467)},
}
"""The number of each call on x86_64, and on the other machines (`asm/unistd.h`); None if it is not there."""
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
"""The number of the architecture (`linux/audit.h`), and which column of the calls it has."""
_OF_X32 = 0x40000000
"""From here on, the same calls have other numbers on x86_64."""

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_MODE_AND_FLAGS: Mapping[str, tuple[int, int | None]] = {
    "open": (2, 1),
    "openat": (3, 2),
    "creat": (1, None),
    "mknod": (1, None),
    "mknodat": (2, None),
    "chmod": (1, None),
    "fchmod": (1, None),
    "fchmodat": (2, None),
    "fchmodat2": (2, None),
}
"""Which argument is the mode of a file, and which one decides whether it counts."""
_REFUSED_REQUESTS: Mapping[str, Sequence[int]] = {
    "fcntl": (fcntl.F_SETLEASE, 1040),  # F_SETDELEG (linux/fcntl.h), from Linux 6.19 on
    "ioctl": (0x5000_9401, 0x5000_9417),  # BTRFS_IOC_SNAP_CREATE, and its V2 (linux/btrfs.h)
}
_MAKES_FILE = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where the kernel puts the parts of a call (`struct seccomp_data`)."""

_Step = tuple[int, int, int, int]
"""Code, steps to leave out if so, steps to leave out if not, value (`struct sock_filter`)."""


@cache
def filter_of_calls(*, network: bool) -> bytes:
    """Return the filter for this machine, of a box with or without network.

    Raises:
        BoxRefused: the calls of this architecture are not known here.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise BoxRefused(f"the system calls of this architecture ({machine}) are not known")
    return b"".join(struct.pack("=HBBI", *step) for step in _steps(*_MACHINES[machine], network=network))


def _steps(architecture: int, column: int, *, network: bool) -> Iterator[_Step]:
    yield _load(_ARCHITECTURE)
    yield from ((_IF_EQUAL, 1, 0, architecture), _end(_KILL))
    yield _load(_NUMBER)
    yield from ((_IF_AT_LEAST, 0, 1, _OF_X32), _refuse(errno.ENOSYS))
    for name, numbers in _CALLS.items():
        if (number := numbers[column]) is None:
            continue
        if name == "socket":
            decision = _socket(socket.AF_UNIX, *_FAMILIES) if network else _socket(*_FAMILIES)
        elif name in _REFUSED_REQUESTS:
            decision = _requests(_REFUSED_REQUESTS[name])
        elif name in _MODE_AND_FLAGS:
            decision = _mode(*_MODE_AND_FLAGS[name])
        else:
            decision = [_refuse(errno.ENOTSUP if "xattr" in name else errno.ENOSYS)]
        yield from ((_IF_EQUAL, 0, len(decision), number), *decision)
    yield _end(_ALLOW)


def _socket(*families: socket.AddressFamily) -> list[_Step]:
    known = [step for family in families for step in ((_IF_EQUAL, 0, 1, int(family)), _end(_ALLOW))]
    return [_argument(0), *known, _refuse(errno.EAFNOSUPPORT)]


def _requests(refused: Sequence[int]) -> list[_Step]:
    checks = [step for request in refused for step in ((_IF_EQUAL, 0, 1, request), _refuse(errno.EPERM))]
    return [_argument(1), *checks, _end(_ALLOW)]


def _mode(mode: int, flags: int | None) -> list[_Step]:
    """Refuse to make a file setuid."""
    check = [_argument(mode), (_IF_ANY_BIT, 0, 1, stat.S_ISUID), _refuse(errno.EPERM), _end(_ALLOW)]
    if flags is None:
        return check
    return [_argument(flags), (_IF_ANY_BIT, 1, 0, _MAKES_FILE), _end(_ALLOW), *check]


def _load(offset: int) -> _Step:
    return (_LOAD, 0, 0, offset)


def _argument(index: int) -> _Step:
    """Load the lower half of an argument, which comes first on all of these machines."""
    return _load(_ARGUMENTS + 8 * index)


def _refuse(error: int) -> _Step:
    return _end(_ERROR | error)


def _end(value: int) -> _Step:
    return (_RETURN, 0, 0, value)
