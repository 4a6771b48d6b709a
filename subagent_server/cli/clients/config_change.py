"""A change of a client's configuration file: planned from its content, shown, then made atomically."""

import difflib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from subagent_server.cli.clients import json_config, toml_config
from subagent_server.cli.clients.client_configs import (
    SERVER,
    Client,
    Entry,
    Permissions,
    is_current,
    is_written_by_init,
)
from subagent_server.cli.clients.config_errors import NotEditable
from subagent_server.domain.errors import BadArgument, HostError, shorten
from subagent_server.host import directory
from subagent_server.host.atomic import commit, discard, prepare
from subagent_server.sandbox.own_writes import OwnWrites

__all__ = [
    "Change",
    "NotEditable",
    "plan",
    "plan_permissions",
    "plan_removal",
    "plan_withdrawal",
    "snippet",
    "write",
]

MAX_BYTES = 16 << 20
_BOM = "\ufeff"
_PRIVATE, _SHARED = 0o600, 0o644


class _Syntax(NamedTuple):
    read_entry: Callable[[str, str], Any]
    with_entry: Callable[[str, str, Entry], str]
    without_entry: Callable[[str, str], str]
    holds_nothing: Callable[[str], bool]
    snippet: Callable[[str, Entry], str]


_SYNTAXES = {
    "json": _Syntax(
        json_config.read_entry,
        json_config.with_entry,
        json_config.without_entry,
        json_config.holds_nothing,
        json_config.snippet,
    ),
    "toml": _Syntax(
        toml_config.read_entry,
        toml_config.with_entry,
        toml_config.without_entry,
        toml_config.holds_nothing,
        toml_config.snippet,
    ),
}


@dataclass(frozen=True)
class Change:
    """The content of a file before and after; None if there is no file.

    `replaces` says that another server has our name. A new file is readable by its owner alone if `private`,
    else by everybody, as a file of a project.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    replaces: bool
    private: bool

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    def diff(self, name: str) -> Iterator[str]:
        """Yield the lines of the change as a unified diff, without line ends."""
        old, new = ((text or b"").decode("utf-8").splitlines() for text in (self.before, self.after))
        old_name, new_name = (os.devnull if not text else name for text in (self.before, self.after))
        return difflib.unified_diff(old, new, old_name, new_name, lineterm="")


def snippet(client: Client, entry: Entry) -> str:
    """Return a file with this server alone, for a person to paste."""
    return _SYNTAXES[client.syntax].snippet(SERVER, entry)


def plan(client: Client, path: Path, entry: Entry, *, private: bool) -> Change:
    """Return the change that makes a client start the server as `entry` says.

    Raises:
        NotEditable: the file cannot be changed safely, so it stays as it is.
        BadArgument: a path in the entry cannot be written down.
        OSError: the file cannot be read.
    """
    syntax = _SYNTAXES[client.syntax]
    before, mark, bare = _read(path)
    present = syntax.read_entry(bare, SERVER)
    if is_current(present, entry):
        return Change(path, before, before or b"", replaces=False, private=private)
    changed = mark + syntax.with_entry(bare, SERVER, entry)
    return Change(path, before, _bytes(changed), replaces=present is not None, private=private)


def plan_permissions(path: Path, permissions: Permissions) -> Change:
    """Return the change that lets a client call the tools of the server without asking each time.

    Raises:
        NotEditable: the file cannot be changed safely, so it stays as it is.
        OSError: the file cannot be read.
    """
    before, mark, bare = _read(path)
    changed = bare
    for place, item in permissions.lists.items():
        changed = json_config.with_listed(changed, place, item)
    for place, value in permissions.texts.items():
        changed = json_config.with_text(changed, place, value)
    return Change(path, before, _bytes(mark + changed), replaces=False, private=True)


def plan_removal(client: Client, path: Path) -> Change:
    """Return the change that takes the server out of a client's file; a file that holds nothing else goes.

    `replaces` says that the server of our name is another one.

    Raises:
        NotEditable: the file cannot be changed safely, so it stays as it is.
        OSError: the file cannot be read.
    """
    syntax = _SYNTAXES[client.syntax]
    before, mark, bare = _read(path)
    present = syntax.read_entry(bare, SERVER)
    if present is None:
        return Change(path, before, before, replaces=False, private=True)
    rest = syntax.without_entry(bare, SERVER)
    after = _left(path, mark, rest, syntax.holds_nothing(rest))
    return Change(path, before, after, replaces=not is_written_by_init(present), private=True)


def plan_withdrawal(path: Path, permissions: Permissions) -> Change:
    """Return the change that takes back what `plan_permissions` allows. Raises as `plan_removal` does."""
    before, mark, bare = _read(path)
    rest = bare
    for place, item in permissions.lists.items():
        rest = json_config.without_listed(rest, place, item)
    for place, value in permissions.texts.items():
        rest = json_config.without_text(rest, place, value)
    if rest == bare:
        return Change(path, before, before, replaces=False, private=True)
    after = _left(path, mark, rest, json_config.holds_nothing(rest))
    return Change(path, before, after, replaces=False, private=True)


def _read(path: Path) -> tuple[bytes | None, str, str]:
    """Return the content of a file, its byte order mark, and its text behind that. Raises as `plan` does."""
    content = _content(path)
    text = _text(content or b"")
    bare = text.removeprefix(_BOM)
    return content, text[: len(text) - len(bare)], bare


def _left(path: Path, mark: str, rest: str, is_empty: bool) -> bytes | None:
    """Return what is left of a file: nothing if it held nothing else, but a link keeps its file."""
    return None if is_empty and not path.is_symlink() else _bytes(mark + rest)


def write(change: Change, own: OwnWrites) -> None:
    """Write a change atomically, as one of our `own`. The file keeps its mode, and a link stays a link.

    Raises:
        StorageFailed: the disk refused; the file is as it was.
        HostError: the file was changed since the change was planned.
        OSError: its folder cannot be made.
    """
    path = change.path.resolve()
    if change.after is None:
        _check_still(path, change.before)
        path.unlink()
        return
    with own.writing(path):
        _replace(path, change, change.after)


def _replace(path: Path, change: Change, after: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.before is not None:
        mode = stat.S_IMODE(path.stat().st_mode)
    else:
        mode = _PRIVATE if change.private else _SHARED
    temporary = prepare(directory.Entry.at(path), after)
    try:
        temporary.path.chmod(mode)
        _check_still(path, change.before)
    except BaseException:
        discard(temporary)
        raise
    commit(temporary, directory.Entry.at(path))


def _check_still(path: Path, before: bytes | None) -> None:
    """Refuse a file that is not any more as it was. Raises HostError."""
    if not _is_still(path, before):
        raise HostError(f"{path} was changed meanwhile and was left as it is: look at it, then try again.")


def _is_still(path: Path, before: bytes | None) -> bool:
    try:
        return _content(path) == before
    except NotEditable:
        return False


def _content(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is none. A project may have come with anything there.

    Raises:
        NotEditable: it is not a plain file, or a huge one.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotEditable("it is not a plain file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise NotEditable(f"it is larger than {MAX_BYTES >> 20} MiB")
    return content


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotEditable("it is not UTF-8 text") from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadArgument(
            f"{shorten(text[error.start - 20 : error.end + 20])} is not UTF-8: name directories that are."
        ) from error
