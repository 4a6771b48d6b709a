"""Input files: checked and copied at the start, so that what a run reads is what it was given."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import BadArgument, StorageFailed, shorten
from subagent_server.domain.images import MOST_BYTES, check_image
from subagent_server.domain.images import media_type as image_type
from subagent_server.host.directory import Entry
from subagent_server.store.paths import RunPaths

MAX_TEXT_BYTES = 2_000_000
MAX_BINARY_BYTES = 24_000_000
MAX_TOTAL_BYTES = 32_000_000
"""Of all files of a run as they are sent, others than text in base64: the API takes a request of 32 MB."""
MAX_FILES = 50
_MAX_NAME_BYTES = 200


@dataclass(frozen=True)
class InputFile:
    """A file that a run may read: where it is, its media type, and how many bytes of a request it takes."""

    path: Path
    media_type: str
    sent_bytes: int


def check_inputs(paths: list[str], cwd: Path) -> list[InputFile]:
    """Return the files that `paths` name, relative to `cwd`, with their media types.

    Raises:
        BadArgument: one cannot be read, is neither text, PDF nor image, or is too big, alone or with those
            before it; its path is named.
    """
    if len(paths) > MAX_FILES:
        raise BadArgument(
            f"{len(paths)} input files are more than the {MAX_FILES} that a run takes: name fewer."
        )
    files: list[InputFile] = []
    for name in paths:
        files.append(_checked(name, cwd))
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
    try:
        inputs = run.inputs
        inputs.make_new()
        for number, file in enumerate(files, start=1):
            copy = inputs.open(f"{number:02d}-{_copy_name(file.path)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(copy, "wb") as target, file.path.open("rb") as source:
                shutil.copyfileobj(source, target)
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
    """Return the media type of a file by its first bytes; None where it is nothing that a model reads."""
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


def _checked(name: str, cwd: Path) -> InputFile:
    if "\0" in name or not name:
        raise BadArgument("An input path is empty or holds a NUL byte: name a file.")
    path, shown = cwd / name, shorten(name, 200)
    try:
        if path.is_dir():
            raise BadArgument(f"Input {shown} is a directory: name its files one by one.")
        if not path.is_file():
            raise BadArgument(f"Input {shown} is no file in {cwd}: paths are relative to cwd; check it.")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8192)
    except OSError as error:
        raise BadArgument(f"Input {shown} cannot be read ({error.strerror}): check the path.") from error
    kind = media_type(head)
    if kind is None or (kind == "text/plain" and not _is_utf8(path, size)):
        raise BadArgument(f"Input {shown} is neither UTF-8 text, PDF nor image: give one of these.")
    if kind.startswith("image/"):
        check_image(f"Input {shown}", path.read_bytes() if size <= MOST_BYTES else head, size)
    limit = MAX_TEXT_BYTES if kind == "text/plain" else MAX_BINARY_BYTES
    if size > limit:
        raise BadArgument(
            f"Input {shown} has {size:,} bytes, more than the {limit:,} allowed: give a part of it."
        )
    return InputFile(path, kind, size if kind == "text/plain" else (size + 2) // 3 * 4)


def _is_utf8(path: Path, size: int) -> bool:
    if size > MAX_TEXT_BYTES:
        return True  # refused for its size, which is the better reason
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
