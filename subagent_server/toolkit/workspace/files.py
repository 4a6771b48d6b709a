"""Reading and replacing one file of the workspace."""

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass

from subagent_server.domain.errors import BadArgument
from subagent_server.host.inside import PathInside
from subagent_server.toolkit.workspace.paths import kind

MOST_BYTES = 32 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextFile:
    """A text file as it was read: `text` without a byte order mark, `faithful` if that was all UTF-8."""

    text: str
    bom: bool
    faithful: bool

    def encoded(self, text: str) -> bytes:
        """Return `text` in the encoding of this file."""
        return (_BOM if self.bom else b"") + text.encode()


def read_file(place: PathInside) -> bytes:
    """Return the content of a regular file.

    Raises:
        BadArgument: it is missing, too large, or nothing that has a content.
        OSError: the system refused.
    """
    status = place.status()
    if status is None:
        raise BadArgument(f"There is no file {place.shown}: check the path.")
    _refuse_special(place, status)  # before it is opened: opening a device can do things
    descriptor = place.open(os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _refuse_special(place, status)
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadArgument(
            f"{place.shown} is larger than {MOST_BYTES >> 20} MiB ({status.st_size:,} bytes), "
            "too large for this tool: search it with grep, or use the shell."
        )
    return data


def as_text(place: PathInside, data: bytes) -> TextFile:
    """Return the text in `data`; bytes that are not UTF-8 become U+FFFD.

    Raises:
        BadArgument: it is binary (it holds a NUL).
    """
    if b"\0" in data:
        raise BadArgument(f"{place.shown} is a binary file, which this tool does not show or edit.")
    bom = data.startswith(_BOM)
    body = data[len(_BOM) :] if bom else data
    try:
        return TextFile(body.decode(), bom, faithful=True)
    except UnicodeDecodeError:
        return TextFile(body.decode("utf-8", "replace"), bom, faithful=False)


def write_file(place: PathInside, data: bytes) -> bool:
    """Give `place` the content `data` at once for every reader; an existing file keeps mode and owner.

    As with write(2), it is not setuid or setgid any more. Another name of an existing file (a hard link)
    keeps the old content, so nothing outside the working directory is changed through one.

    Return whether the file is new.

    Raises:
        BadArgument: something that is not a regular file is there.
        OSError: the system refused; the former content is whole.
    """
    before = place.status()
    if place.name == "." or (before is not None and not stat.S_ISREG(before.st_mode)):
        raise BadArgument(
            f"{place.shown} is {kind(before.st_mode) if before else 'a directory'}: give the path of a file."
        )
    name = f".{secrets.token_hex(8)}.tmp"
    temporary = PathInside(place.directory, name, (*place.parts[:-1], name))
    try:
        _write(temporary, data, before)
        os.rename(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=place.directory)
        raise
    return before is None


def _write(temporary: PathInside, data: bytes, like: os.stat_result | None) -> None:
    descriptor = temporary.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if like is None else 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            with suppress(PermissionError):  # only the superuser gives files away
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
        os.fsync(descriptor)


def _refuse_special(place: PathInside, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadArgument(f"{place.shown} is {kind(status.st_mode)}, not a regular file: use another path.")
