"""The file `trust.json` of the user: the trusted directories, with the pins at the time of trust.

The file is this user's alone (0600 in a directory of 0700), is opened without following links or waiting, and
is read with a bound. If the file is not as it should be, nothing is trusted, and a sentence says why.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from subagent_server.catalog.pins import Pins, kept
from subagent_server.catalog.problems import shown, why
from subagent_server.domain.errors import HostError, StorageFailed
from subagent_server.domain.records import Moment, Record
from subagent_server.host import atomic, locks
from subagent_server.host.directory import Entry
from subagent_server.host.private_directory import beneath, open_private

MAX_BYTES = 8 << 20
_LOCK = "trust.lock"


class TrustNotKept(HostError):
    """The file of trusted directories cannot be changed."""

    code = "trust_not_kept"


class Project(Record):
    """A trusted directory: the moment, and the pins of its agents and servers by their names."""

    trusted_at: Moment
    pins: dict[str, Pins] = Field(default_factory=dict)


class TrustFile(Record):
    """The trusted directories by their real paths; `trouble` says why the file could not be used."""

    version: Literal[1] = 1
    projects: dict[str, Project] = Field(default_factory=dict)
    trouble: str | None = Field(default=None, exclude=True)


_OPEN_TO_OTHERS = "its directory is another user's, or others may enter it, which `chmod 700` mends"


class _Odd(Exception):
    """The file of trusted directories cannot be used, for this reason."""


def real_path(directory: Path) -> Path:
    """Return the path that trust in a directory belongs to."""
    return Path(os.path.realpath(directory))


def read_trust_file(path: Path | None) -> TrustFile:
    """Return the user's trust; with an unusable file nothing is trusted, and `trouble` has the reason."""
    if path is None:
        return TrustFile(trouble="Nothing is trusted, because HOME names no directory: set it.")
    try:
        directory = open_private(str(path.parent), make=False)
        try:
            return _parsed(_content(directory, path.name))
        finally:
            os.close(directory)
    except FileNotFoundError:
        return TrustFile()
    except OSError as error:
        reason = _reason(error)
    except _Odd as error:
        reason = str(error)
    return TrustFile(trouble=f"{shown(path)} cannot be used ({reason}): mend or remove it, then trust again.")


def trust_project(path: Path | None, project: Path, pins: Mapping[str, Pins], moment: datetime) -> None:
    """Trust a directory, with these pins; pins of agents that are not there now are kept.

    Raises:
        TrustNotKept.
    """
    with _changing(path) as projects:
        before = projects.get(str(project))
        known = before.pins if before else {}
        stored = {**known, **{what: kept(each) for what, each in pins.items() if each}}
        projects[str(project)] = Project(trusted_at=moment, pins=stored)


def forget_project(path: Path | None, project: Path) -> bool:
    """Trust a directory no more; False if it was not trusted.

    Raises:
        TrustNotKept.
    """
    with _changing(path) as projects:
        return projects.pop(str(project), None) is not None


@contextmanager
def _changing(path: Path | None) -> Iterator[dict[str, Project]]:
    """Give the projects to change, and write them afterwards, in one hold of a lock."""
    if path is None:
        raise TrustNotKept("Trust cannot be kept, because HOME names no directory: set it.")
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = open_private(str(path.parent))
    except OSError as error:
        raise _not_kept(path, error) from error
    try:
        lock = locks.open_lock(Entry.at(Path(beneath(directory, _LOCK))))
        try:
            locks.lock(lock)
            trusted = read_trust_file(path)
            if trusted.trouble is not None:
                raise TrustNotKept(trusted.trouble)
            projects = dict(trusted.projects)
            yield projects
            _write(Entry.at(Path(beneath(directory, path.name))), projects, path)
        finally:
            os.close(lock)
    except OSError as error:
        raise _not_kept(path, error) from error
    finally:
        os.close(directory)


def _write(file: Entry, projects: dict[str, Project], path: Path) -> None:
    data = TrustFile(projects=projects).to_json()
    if len(data) > MAX_BYTES:
        raise TrustNotKept(
            f"{shown(path)} would be larger than {MAX_BYTES >> 20} MiB: trust smaller directories."
        )
    try:
        atomic.write_durably(file, data)
    except StorageFailed as error:
        cause = error.__cause__
        raise (_not_kept(path, cause) if isinstance(cause, OSError) else error) from error


def _not_kept(path: Path, error: OSError) -> TrustNotKept:
    return TrustNotKept(f"{shown(path)} cannot be written ({_reason(error)}): mend that, then try again.")


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a link"
    return why(error) if error.errno else _OPEN_TO_OTHERS


def _content(directory: int, name: str) -> bytes:
    """Return the bytes of the file, without following a link or waiting for a writer."""
    # A FIFO in its place would wait for a writer for ever, and a second name may lie where others write.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(name, flags, dir_fd=directory)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _Odd("it is not a regular file")
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_nlink != 1:
            raise _Odd("it is not this user's alone: another user owns it or has rights, or it has two names")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _Odd(f"it is larger than {MAX_BYTES >> 20} MiB")
    return data


def _parsed(data: bytes) -> TrustFile:
    try:
        return TrustFile.model_validate(json.loads(data) | {"trouble": None})
    except (ValueError, TypeError, RecursionError, ValidationError) as error:
        raise _Odd("its content has another form than this version writes") from error
