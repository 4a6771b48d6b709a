"""What git of the host reads in a directory: its settings, and whether the directory is a repository."""

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.run import durable
from subagent_server.run.confined_path import printable
from subagent_server.run.files import Directory
from subagent_server.run.host_programs import NoHostProgram, steps_to, system_program
from subagent_server.run.secrets import is_secret_name, without_shapes
from subagent_server.sandbox.readable import BoxRefused, working_copies

COMMONDIR = "commondir"
OF_A_REPOSITORY = ("HEAD", "objects", "refs", COMMONDIR)
_LONGEST_POINTER = 8192
_GIT_SECONDS = 15.0
_SEEN_BY_GIT = ("HOME", "XDG_CONFIG_HOME", "LANG")
_READ_BY_GIT = ("config", "config.worktree", "hooks", "info/attributes")
_WORDS = re.compile(r"[\s'\"=;!]+")
_STARTED_BY_GIT = re.compile(
    r"(filter|diff|merge|hook|gpg|credential)\..+|sequence\.editor|"
    r"core\.(fsmonitor|sshcommand|askpass|editor|pager|gitproxy|alternaterefscommand)"
)
"""The settings whose programs git starts by itself, as at `git status`. An alias is started by a person."""
_ROLES = ("AUTHOR", "COMMITTER")
_IDENTITY = {"user.name": "NAME", "user.email": "EMAIL"}


@dataclass(frozen=True)
class GitSettings:
    """What the configuration means in a directory.

    `identity` are variables with the author, for git in a box, where no configuration of the user is shown.
    `executed` is what git reads and executes by it: files that it includes or that a setting names, the
    directory of its hooks if that is not the usual one, the links on the way to these, and where they and
    links of the repository lead. Some of it may be missing.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    executed: tuple[Path, ...] = ()


def is_repository(directory: Path) -> bool:
    """Whether git takes this directory itself for a repository (is_git_directory in its setup.c)."""
    return makes_repository({name for name in OF_A_REPOSITORY if os.path.lexists(directory / name)})


def makes_repository(names: Set[str]) -> bool:
    """Whether git takes a directory with these names in it for a repository."""
    return "HEAD" in names and (COMMONDIR in names or {"objects", "refs"} <= names)


def common_directory(cwd: Path) -> Path | None:
    """Return the repository of the linked worktree `cwd`, or None if `cwd` is not proved to be one of it.

    The file `.git` of the worktree is data: it may name any directory, also one that must not be shown. So
    the repository that it names has to name the worktree in turn, which only a writer of the repository can
    arrange.
    """
    own = pointer(cwd / ".git", "gitdir: ")
    if own is None:
        return None
    own = Path(os.path.realpath(cwd / own))
    common, back, named = own.parent.parent, pointer(own / "gitdir"), pointer(own / COMMONDIR)
    is_known = (
        own.parent.name == "worktrees"
        and is_repository(common)
        and (named is not None and os.path.realpath(own / named) == str(common))
        and (back is not None and os.path.realpath(back) == str(cwd / ".git"))
    )
    return common if is_known else None


def git_settings(environment: Mapping[str, str], cwd: Path) -> GitSettings:
    """Return what git of the host has in its configuration for `cwd`; nothing if there is no git. Blocking.

    The author's variables in `environment` come before the configuration.

    Raises:
        BoxRefused: git cannot read it, so what has to be read-only is not known. It passes.
    """
    names = [f"GIT_{role}_{what}" for role in _ROLES for what in _IDENTITY.values()]
    variables = {name: environment[name] for name in names if name in environment}
    try:
        program = system_program("git", environment.get("PATH"), working_copies(cwd, environment))
    except NoHostProgram:
        return GitSettings(variables)
    identity, executed, top = dict[str, str](), list[Path](), _top(cwd)
    repository = common_directory(cwd) or top / ".git"
    for origin, key, value in _settings(program, environment, cwd):
        if key in _IDENTITY and value:
            for role in _ROLES:
                identity[f"GIT_{role}_{_IDENTITY[key]}"] = value
        elif key == "core.hookspath" and value:
            executed.append(top / _expanded(value))
        elif key.startswith("include") and key.endswith(".path") and value:
            executed.append((cwd / origin).parent / _expanded(value))
        else:
            executed += _files_named(value, top, also_missing=_STARTED_BY_GIT.fullmatch(key) is not None)
    executed = [each for path in executed for each in (path, *_led_to(path, repository))]
    executed += [each for name in _READ_BY_GIT for each in _led_to(repository / name, repository)]
    hooks = repository / "hooks"
    with suppress(OSError):
        executed += [each for hook in hooks.iterdir() for each in _led_to(hook, repository)]
    found = dict.fromkeys(Path(os.path.normpath(path)) for path in executed)
    return GitSettings(identity | variables, tuple(found))


def _expanded(value: str) -> str:
    """Return the path of a setting. One of a user that is not here stays: git fails with it."""
    return os.path.expanduser(value)  # noqa: PTH111 - `Path.expanduser` raises for such a user


def _files_named(value: str, top: Path, *, also_missing: bool) -> Iterator[Path]:
    """Yield the files of a working copy that a setting names, as of a command (`sh tools/merge.sh %O %A`).

    A word without a slash or a dot is a branch, a program of `PATH` or a plain value. `also_missing`: a run
    could make what is not there yet, such as `.venv/bin/nbstripout`.
    """
    for word in _WORDS.split(value):
        if ("/" in word or "." in word) and "\0" not in word:
            with suppress(OSError):
                path = top / word
                # `Path.is_file` raises in a directory that a run has closed, where this is missing
                if os.path.isfile(path) or (also_missing and not os.path.lexists(path)):  # noqa: PTH113
                    yield path


def _led_to(path: Path, repository: Path) -> Iterator[Path]:
    """Yield the links outside of a repository by which a path in it is found, and where that is."""
    steps = list(steps_to(path))  # none for `/`
    links = [step for step in steps[:-1] if os.path.islink(step)]  # noqa: PTH114 - see `steps_to`
    yield from (step for step in (*links, *steps[-1:]) if not step.is_relative_to(repository))


def _top(cwd: Path) -> Path:
    """Return the top of the working copy, to which git takes the path of hooks relatively."""
    return next((path for path in (cwd, *cwd.parents) if os.path.lexists(path / ".git")), cwd)


def _settings(program: Path, environment: Mapping[str, str], cwd: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file, key and value of each setting that git has here; nothing if it finds no repository.

    Raises:
        BoxRefused: it cannot read them, as where a run has left a directory instead of a file that is
            included. The next run would write the hooks that another setting names.
    """
    try:
        done = subprocess.run(
            [program, "config", "--list", "--show-origin", "-z"],
            env={name: environment[name] for name in _SEEN_BY_GIT if name in environment},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        named = _top(cwd) / ".git"
        if not is_repository(_top(cwd) / (pointer(named, "gitdir: ") or named)):
            return
        complaint = os.fsdecode(getattr(error, "stderr", None) or b"").strip().rpartition("\n")[2]
        why = f"git cannot read its configuration in {cwd} ({printable(complaint or str(error))})"
        raise BoxRefused(f"{why}, so what it executes is not known", passes=True) from error
    words = iter(done.stdout.decode("utf-8", "surrogateescape").split("\0"))
    for origin, setting in zip(words, words, strict=False):
        key, _, value = setting.partition("\n")
        yield origin.removeprefix("file:"), key, value


def pointer(file: Path, prefix: str = "") -> Path | None:
    """Return the path in a small file of git, or None if it is not one."""
    content = os.fsdecode(plain_content(file, _LONGEST_POINTER) or b"").rstrip("\n")
    path = content.removeprefix(prefix)
    return Path(path) if path and "\0" not in path and content.startswith(prefix) else None


def plain_content(file: Path | str, most: int, directory: int | None = None) -> bytes | None:
    """Return up to `most` bytes of a plain file; None if it is a link or anything else, or not to be read."""
    with suppress(OSError, ValueError):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file, flags, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as opened:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return opened.read(most)
    return None


# -- A configuration of git as a box may show it: without the credentials that people and CI leave in it.


_LARGEST = 1 << 20
_SETTING = re.compile(r"(\s*(?:\[[^\]\n]*\]\s*)?)([A-Za-z][\w-]*)(\s*=\s*)(.*)", re.DOTALL)
_ALWAYS = frozenset({"extraheader", "smtppass", "sslkeypassword"})


def configurations(repository: Path) -> Iterator[Path]:
    """Yield the files of configuration of a repository, of its worktrees and of its submodules.

    No link is followed: by one, any file called `config` would come to a run, such as ~/.kube/config.
    """
    waiting = [] if repository.is_symlink() else [repository]
    while waiting:
        path = waiting.pop()
        yield from (path / "config", path / "config.worktree")
        is_one = os.path.lexists(path / "HEAD") or os.path.lexists(path / COMMONDIR)
        for above in (path / "modules", path / "worktrees") if is_one else (path,):  # `libs/one` is a name
            with suppress(OSError):
                inner = [] if above.is_symlink() else list(above.iterdir())
                waiting += [each for each in inner if each.is_dir() and not each.is_symlink()]


def configurations_as_shown(cwd: Path, copies: Directory) -> dict[Path, Path]:
    """Return the files of configuration of a repository that have secrets, and what a box shows of each.

    That is written into `copies`, which is made if it is needed. Raises OSError.
    """
    found = dict[Path, Path]()
    for config in configurations(common_directory(cwd) or cwd / ".git"):
        if (shown := config_without_credentials(config)) is not None:
            copies.make()
            copy = copies.entry(str(len(found)))
            durable.write_durably(copy, shown)
            found[config] = Path(os.path.realpath(copy.path))
    return found


def config_without_credentials(path: Path) -> bytes | None:
    """Return the file without its credentials, for a box; None if there is nothing to hide in it, or no file.

    Passwords in addresses become `***`; a header, and a setting whose name marks it as a secret, is left
    out. What is larger than 1 MiB is hidden whole.
    """
    content = plain_content(path, _LARGEST + 1)
    if content is None:
        return None
    if len(content) > _LARGEST:
        return b""
    text = content.decode("utf-8", "surrogateescape")
    shown = without_shapes("".join(map(_shown, _logical_lines(text))))
    return None if shown == text else shown.encode("utf-8", "surrogateescape")


def _logical_lines(text: str) -> list[str]:
    """Return the lines, each with those that a backslash at its end joins to it."""
    return re.findall(r"(?>(?:[^\n\\]|\\\n|\\[^\n])*)(?:\n|\\?\Z)", text)


def _shown(line: str) -> str:
    setting = _SETTING.fullmatch(line)
    if setting is None:
        return line
    name = setting[2]
    return setting[1].rstrip("\n") + "\n" if name.lower() in _ALWAYS or is_secret_name(name) else line
