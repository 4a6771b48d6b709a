"""Take from a repository that came during a run what git would have executed, or read or written elsewhere.

    disarmed(cwd, ["libs/new/.git"], quarantine)

It loses its hooks, the configuration that has git start programs, and its links. git is never run on it, and
no link is followed. What is taken away goes to the quarantine of the run. Of the configuration only what a
repository needs to be used is kept: a list of sections and keys with the form that their values must have.
A line that is not understood is dropped.
"""

import os
import re
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run.confined_path import directory_below, names_below, open_real, printable, status_below
from subagent_server.run.files import held_open
from subagent_server.sandbox.git_files import plain_content
from subagent_server.sandbox.quarantine import MOST_DEPTH, MOST_NAMES, Kept, Quarantine, Taken

MOST_CONFIG_BYTES = 256 << 10
MOST_REPOSITORIES = 200
_DEPTH = 4
"""How deep repositories of submodules lie in each other."""
_LEFT_OUT = ("config.worktree", "rebase-merge", "objects/info/alternates")
"""`config.worktree` is a second configuration; in `rebase-merge` is a list of commands. What is borrowed by
`alternates` would be shown in the box of the next run that has a worktree of this repository."""
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._/@+ -]*"
_REF = r"\+?[A-Za-z0-9][A-Za-z0-9._/*-]*(:[A-Za-z0-9][A-Za-z0-9._/*-]*)?"
_URL = r"(?!.*(::|@-))((https?|ssh|git|file)://[^-].*|[\w.][\w.@-]*:(?!//)[^-].*|\.{0,2}/.*)"
"""No helper of a transport (`ext::`), and no host that is read as an option."""
_HARMLESS: dict[tuple[str, bool], dict[str, str]] = {
    ("core", False): {
        "repositoryformatversion": r"[01]",
        **dict.fromkeys(("filemode", "bare", "logallrefupdates", "ignorecase"), r"\w+"),
        **dict.fromkeys(("symlinks", "precomposeunicode"), r"\w+"),
    },
    ("extensions", False): {
        "objectformat": r"sha1|sha256",
        "refstorage": r"files|reftable",
        "partialclone": _PLAIN,
    },
    ("remote", True): {
        "url": _URL,
        "fetch": _REF,
        "tagopt": r"--(no-)?tags",
        "promisor": r"\w+",
        "partialclonefilter": r"[a-z]+:[a-z0-9=]+",
    },
    ("branch", True): {"remote": rf"\.|{_PLAIN}", "merge": _REF, "rebase": r"\w+"},
    ("user", False): {"name": r"[^\x00-\x1f]*", "email": r"[^\x00-\x1f]*", "signingkey": _PLAIN},
    ("init", False): {"defaultbranch": _PLAIN},
    ("submodule", False): {"active": r"[\w./*-]+"},
    ("submodule", True): {"url": _URL, "active": r"\w+"},
}
"""By section, and whether it has a name in quotes: the keys, in lower case, and the form of the values."""
_SECTION = re.compile(r'\[([A-Za-z0-9-]+)(?:[ \t]+"([^"\\\x00-\x1f]+)")?\][ \t]*')
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_ODD = re.compile(r"[\"\\;#\x00-\x1f]")
_NOTHING = re.compile(r"[ \t]*([#;].*)?")


def harmless(config: str) -> str | None:
    """Return the harmless part of a configuration of git; None if that is all of it."""
    kept: list[str] = []
    allowed: dict[str, str] = {}
    changed = False
    for line in config.split("\n"):
        if section := _SECTION.fullmatch(line):
            found = _HARMLESS.get((section[1].lower(), section[2] is not None))
            allowed, changed = found or {}, changed or found is None
            if found is not None:
                kept.append(line)
        elif (setting := _setting(line)) and _fits(allowed.get(setting[0].lower()), setting[1]):
            kept.append(f"\t{setting[0]} = {setting[1]}")
        else:
            changed = changed or _NOTHING.fullmatch(line) is None
    return "\n".join([*kept, ""]) if changed else None


def _setting(line: str) -> tuple[str, str] | None:
    """Return key and value. One pattern for both took the cube of the spaces in a hostile line: hours."""
    key, sign, value = (part.strip(" \t") for part in line.partition("="))
    return (key, value) if sign and _KEY.fullmatch(key) and not _ODD.search(value) else None


def _fits(form: str | None, value: str) -> bool:
    return form is not None and re.fullmatch(form, value) is not None


def disarmed(cwd: Path, paths: Sequence[str], quarantine: Quarantine) -> Taken:
    """Take from the git directories at `paths` below `cwd`, a real path, what they could have executed."""
    moved: list[Kept] = []
    stuck: list[str] = []
    for path in paths[:MOST_REPOSITORIES]:
        try:
            with held_open(open_real(cwd)) as top, directory_below(top, path) as directory:
                _Repository(quarantine, moved, stuck).disarm(directory, cwd / path, _DEPTH)
        except OSError as error:
            stuck.append(f"{printable(path)} ({error.strerror or error})")
    if len(paths) > MOST_REPOSITORIES:
        stuck.append(f"and {len(paths) - MOST_REPOSITORIES} more repositories")
    return Taken(moved, stuck)


@dataclass
class _Repository:
    quarantine: Quarantine
    moved: list[Kept]
    stuck: list[str]
    _left: int = MOST_REPOSITORIES

    def disarm(self, directory: int, path: Path, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(None, "it holds too many repositories")
        for name in _LEFT_OUT:
            self._take(directory, name, path)
        if self._has_hooks(directory):
            self._take(directory, "hooks", path)
        self._configuration(directory, path)
        if _content(directory, "commondir").strip() not in (b"", b"../.."):
            self._take(directory, "commondir", path)
        for within in ("modules", "worktrees"):
            status = status_below(directory, within)
            if status is not None and stat.S_ISLNK(status.st_mode):
                self._take(directory, within, path)
            self._within(directory, within, path / within, depth)
        self._take_links(directory, path)

    def _take_links(self, directory: int, path: Path) -> None:
        """Take links, through which git would write what a run has chosen, by `logs/HEAD` to `~/.profile`.

        A link in `objects` would have it read those of another repository.
        As `HEAD` a link makes no repository unless it names a branch.
        """
        waiting = [name for name in _names(directory, ".") if name != "HEAD"]
        for _ in range(MOST_NAMES):
            if not waiting:
                return
            name = waiting.pop()
            status = status_below(directory, name)
            if status is not None and stat.S_ISLNK(status.st_mode):
                self._take(directory, name, path)
            elif name == "objects" or name.partition("/")[0] in ("logs", "refs"):
                if name.count("/") > MOST_DEPTH:
                    break
                waiting += [f"{name}/{each}" for each in _names(directory, name)]
        raise OSError(None, "its logs or references are too many or too deep")

    def _within(self, directory: int, within: str, path: Path, depth: int) -> None:
        """Do the same to the repositories in a directory, also to those deeper in it."""
        if depth < 0:
            raise OSError(None, "repositories lie too deep in it")
        for name in _names(directory, within):
            with suppress(NotADirectoryError), directory_below(directory, f"{within}/{name}") as inner:
                if "HEAD" in _names(inner, "."):
                    self.disarm(inner, path / name, depth - 1)
                else:
                    self._within(directory, f"{within}/{name}", path / name, depth - 1)

    def _take(self, directory: int, name: str, path: Path) -> None:
        with suppress(OSError):
            kept = self.quarantine.take(directory, name, path / name, "the whole run")
            if kept is not None:
                self.moved.append(kept)
        if status_below(directory, name) is not None:  # too large to be moved, or a part of it is
            other = f"{name}.{secrets.token_hex(4)}"
            os.rename(name, other, src_dir_fd=directory, dst_dir_fd=directory)
            self.stuck.append(f"{printable(str(path / name))}, which is {printable(other)} now")

    def _has_hooks(self, directory: int) -> bool:
        status = status_below(directory, "hooks")
        if status is None or not stat.S_ISDIR(status.st_mode):
            return status is not None
        return any(not name.endswith(".sample") for name in _names(directory, "hooks"))

    def _configuration(self, directory: int, path: Path) -> None:
        new = harmless(_content(directory, "config").decode("utf-8", "replace"))
        if new is None:
            return
        self._take(directory, "config", path)
        descriptor = os.open("config", os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o644, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(new.encode())


def _content(directory: int, name: str) -> bytes:
    """Return the content of a file; `?`, which means nothing to git, if it is not a file or too large."""
    if status_below(directory, name) is None:
        return b""
    content = plain_content(name, MOST_CONFIG_BYTES + 1, directory)
    return b"?" if content is None or len(content) > MOST_CONFIG_BYTES else content


def _names(directory: int, name: str) -> list[str]:
    """Return the names in a directory, at most as many as can be looked at; none if it is not a directory."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return names_below(directory, name, MOST_CONFIG_BYTES)
    return []
