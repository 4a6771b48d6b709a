"""Input files: checked and copied at the start, so that a run reads the files as they were then."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from subagent_server.domain.errors import BadArgument, StorageFailed, shorten
from subagent_server.domain.images import check_image
from subagent_server.domain.images import media_type as image_type
from subagent_server.host.directory import Entry
from subagent_server.host.inside import LeadsOutside, inside, is_text
from subagent_server.service.places import ParentPlaces
from subagent_server.store.paths import RunPaths

MAX_TEXT_BYTES = 2_000_000
MAX_BINARY_BYTES = 24_000_000
MAX_TOTAL_BYTES = 32_000_000
"""Of all files of a run as they are sent, others than text in base64: the API takes a request of 32 MB."""
MAX_FILES = 50
_MAX_NAME_BYTES = 200


@dataclass(frozen=True)
class InputFile:
    """A file that a run may read, as read by the check: its path, media type and content."""

    path: Path
    media_type: str
    data: bytes

    @property
    def sent_bytes(self) -> int:
        """How many bytes of a request it takes."""
        size = len(self.data)
        return size if self.media_type == "text/plain" else (size + 2) // 3 * 4


def check_inputs(paths: list[str], cwd: Path, places: ParentPlaces | None = None) -> list[InputFile]:
    """Return the files that `paths` name, relative to `cwd`, with their media types and contents.

    Each file is opened once, so the checked bytes are the copied bytes. For a run, the files have to lie in
    `places`; for a user links are followed.

    Raises:
        BadArgument: a file cannot be read, is neither text, PDF nor image, or is too big, alone or with the
            files before; the message names its path.
    """
    if len(paths) > MAX_FILES:
        raise BadArgument(
            f"{len(paths)} input files are more than the {MAX_FILES} that a run takes: name fewer."
        )
    files: list[InputFile] = []
    for name in paths:
        files.append(_checked(name, cwd, places))
        total = sum(file.sent_bytes for file in files)
        if total > MAX_TOTAL_BYTES:
            raise BadArgument(
                f"With input {shorten(name, 200)} all inputs take {total:,} bytes of a request, more than "
                f"the {MAX_TOTAL_BYTES:,} that a model takes: give fewer or smaller files."
            )
    return files


def copy_inputs(files: list[InputFile], run: RunPaths) -> None:
    """Copy the files into the run's directory, numbered in their order.

    Raises:
        StorageFailed: the copy failed.
    """
    if not files:
        return
    copies = {f"{n:02d}-{_copy_name(file.path)}": file.data for n, file in enumerate(files, start=1)}
    try:
        inputs = run.inputs
        inputs.make_new()
        for name, data in copies.items():
            with os.fdopen(inputs.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy:
                copy.write(data)
    except OSError as error:
        raise StorageFailed(run.inputs.path, error.strerror or str(error)) from error


def copied_inputs(run: RunPaths) -> tuple[tuple[Entry, str], ...]:
    """Return the input files as they were copied for a run, in their order, each with its media type."""
    inputs = run.inputs
    if not inputs.exists():
        return ()
    copies = [inputs.entry(name) for name in sorted(inputs.names())[:MAX_FILES]]
    return tuple((copy, _kind(copy)) for copy in copies)


def media_type(head: bytes) -> str | None:
    """Return the media type of a file by its first bytes, or None if a model cannot read it."""
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    image = image_type(head)
    if image is not None:
        return image
    return None if b"\0" in head else "text/plain"


def _copy_name(path: Path) -> str:
    """Return the name of a copy, which has a number before it and no more bytes than a name may have."""
    suffix = path.suffix if len(os.fsencode(path.suffix)) < _MAX_NAME_BYTES // 2 else ""
    room = _MAX_NAME_BYTES - len(os.fsencode(suffix))
    stem = os.fsencode(path.name.removesuffix(suffix))
    return path.name if len(stem) <= room else stem[:room].decode("utf-8", "ignore") + suffix


def _kind(copy: Entry) -> str:
    with copy.reader() as file:
        return media_type(file.read(8192)) or "text/plain"


def _checked(name: str, cwd: Path, places: ParentPlaces | None) -> InputFile:
    if "\0" in name or not name:
        raise BadArgument("An input path is empty or holds a NUL byte: name a file.")
    path, shown = cwd / name, shorten(name, 200)
    if not is_text(name):
        raise BadArgument(f"Input {shown} has a name that is not UTF-8: rename it.")
    try:
        with os.fdopen(_opened(path, shown, places), "rb") as file:
            kind, data = _read(file, shown)
    except OSError as error:
        raise BadArgument(f"Input {shown} cannot be read ({error.strerror}): check the path.") from error
    if kind == "text/plain" and not _is_utf8(data):
        raise _unreadable(shown)
    return InputFile(path, kind, data)


def _read(file: BinaryIO, shown: str) -> tuple[str, bytes]:
    """Return media type and content, with never more than the limit of its kind in memory."""
    size = os.fstat(file.fileno()).st_size
    data = file.read(8192)
    kind = media_type(data)
    if kind is None:
        raise _unreadable(shown)
    limit = MAX_TEXT_BYTES if kind == "text/plain" else MAX_BINARY_BYTES
    if kind.startswith("image/"):
        check_image(f"Input {shown}", data, size)
    if size <= limit:
        data += file.read(limit + 1 - len(data))
        size = len(data)  # files such as those of /proc do not say how much they hold
    if size > limit:
        raise BadArgument(
            f"Input {shown} has {size:,} bytes, more than the {limit:,} allowed: give a part of it."
        )
    if kind.startswith("image/"):
        check_image(f"Input {shown}", data)
    return kind, data


def _opened(path: Path, shown: str, places: ParentPlaces | None) -> int:
    """Open a regular file once, never waiting for the other end of a FIFO. Raises OSError, BadArgument."""
    if places is None:
        _check_regular(_status(path), path, shown)  # before it is opened: opening a device can do things
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    else:
        descriptor = _opened_inside(path, shown, places)
    try:
        _check_regular(os.fstat(descriptor), path, shown)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _opened_inside(path: Path, shown: str, places: ParentPlaces) -> int:
    for root in (places.cwd, *places.kept):
        with suppress(LeadsOutside, FileNotFoundError), inside(root, str(path)) as place:
            _check_regular(place.status(), path, shown)
            return place.open(os.O_RDONLY)
    raise BadArgument(
        f"Input {shown} leads outside {shorten(str(places.cwd), 200)}, where run {places.run_id} works, and "
        "is not in its inputs/ or outputs/ either: give a file of these."
    )


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_regular(status: os.stat_result | None, path: Path, shown: str) -> None:
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise BadArgument(f"Input {shown} is a directory: name its files one by one.")
    if status is None or not stat.S_ISREG(status.st_mode):
        raise BadArgument(f"Input {shown} is no file in {path.parent}: paths are relative to cwd; check it.")


def _unreadable(shown: str) -> BadArgument:
    return BadArgument(f"Input {shown} is neither UTF-8 text, PDF nor image: give one of these.")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
