"""What a box shows for reading: an allow-list that lets ordinary work go on without settings.

The system's programs and a few files of `/etc`, tool chains below the home directory, what is on PATH, and
the certificates that the environment names. Never a directory that keeps tokens beside its programs:
`~/.cargo` is there as `~/.cargo/bin` alone.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from subagent_server.sandbox.environment import CERTIFICATES, TOOL_CHAINS

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
    *(".local/bin", ".local/lib", ".local/share/uv", ".local/share/pipx", ".local/share/mise"),
    *(".local/share/fnm", ".local/share/pnpm", ".local/share/virtualenvs"),
)
_BESIDE_PROGRAMS = ("lib", "lib64", "libexec", "include", "pyvenv.cfg")
"""What the programs of a directory `bin` use, beside it. Not `share`: people keep data in it."""


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


def tool_chains(home: Path, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the directories and files for reading that belong to the user's own tools.

    A path in a variable that would show the home directory, the working directory or a part of the system
    is left out.
    """
    wanted = [home / name for name in _HOME]
    wanted += [Path(value) for name in TOOL_CHAINS if (value := environment.get(name))]
    for entry in map(Path, environment.get("PATH", "").split(os.pathsep)):
        wanted += [entry, *_beside(entry, home)]
    for name in CERTIFICATES:
        wanted += [Path(value) for value in environment.get(name, "").split(os.pathsep) if value]
    known, found = [Path(place) for place in _SYSTEM], list[Path]()
    for path in dict.fromkeys(path for path in wanted if os.path.lexists(path)):
        real = Path(os.path.realpath(path))
        if not path.is_absolute() or any(map(path.is_relative_to, (*known, *found))):
            continue
        if _exists(real) and not _is_closed(real, (home, cwd)):
            found.append(path)
    return found


def shows_too_much(path: Path, homes: Sequence[Path]) -> bool:
    """Whether a directory, by its real path, is a home directory, a part of the system, or above one."""
    return any(Path(other).is_relative_to(path) for other in (*map(str, homes), *_SYSTEM, *_NEVER))


def _beside(entry: Path, home: Path) -> list[Path]:
    if entry.name not in ("bin", "sbin") or entry.parent in (home, Path("/")):
        return []
    return [entry.parent / name for name in _BESIDE_PROGRAMS]


def _exists(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode)


def _is_closed(path: Path, own: Sequence[Path]) -> bool:
    return shows_too_much(path, own) or any(path.is_relative_to(never) for never in _NEVER if never != "/tmp")
