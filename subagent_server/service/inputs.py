"""Input files: checked and copied at the start, so that what a run reads is what it was given."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import BadArgument, StorageFailed, shorten
from subagent_server.store.paths import RunPaths

MAX_TEXT_BYTES = 2_000_000
MAX_BINARY_BYTES = 24_000_000
MAX_FILES = 50

IMAGE_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True)
class InputFile:
    """A file that a run may read: where it is, and its media type."""

    path: Path
    media_type: str


def check_inputs(paths: list[str], cwd: Path) -> list[InputFile]:
    """Return the files that `paths` name, relative to `cwd`, with their media types.

    Raises:
        BadArgument: one cannot be read or is neither text, PDF nor image; its path is named.
    """
    if len(paths) > MAX_FILES:
        raise BadArgument(
            f"{len(paths)} input files are more than the {MAX_FILES} that a run takes: name fewer."
        )
    return [_checked(name, cwd) for name in paths]


def copy_inputs(files: list[InputFile], run: RunPaths) -> None:
    """Copy the files into the run's directory, numbered in their order.

    Raises:
        StorageFailed: the copy failed.
    """
    if not files:
        return
    try:
        run.inputs.mkdir()
        for number, file in enumerate(files, start=1):
            shutil.copyfile(file.path, run.inputs / f"{number:02d}-{file.path.name}")
    except OSError as error:
        raise StorageFailed(run.inputs, error.strerror or str(error)) from error


def copied_inputs(run: RunPaths) -> tuple[tuple[Path, str], ...]:
    """Return the input files as they were copied for a run, in their order, each with its media type."""
    if not run.inputs.is_dir():
        return ()
    return tuple((path, _kind(path)) for path in sorted(run.inputs.iterdir()))


def media_type(head: bytes) -> str | None:
    """Return the media type of a file by its first bytes; None where it is nothing that a model reads."""
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    for magic, kind in IMAGE_TYPES.items():
        if head.startswith(magic):
            return kind
    return None if b"\0" in head else "text/plain"


def _kind(path: Path) -> str:
    with path.open("rb") as file:
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
    limit = MAX_TEXT_BYTES if kind == "text/plain" else MAX_BINARY_BYTES
    if size > limit:
        raise BadArgument(
            f"Input {shown} has {size:,} bytes, more than the {limit:,} allowed: give a part of it."
        )
    return InputFile(path, kind)


def _is_utf8(path: Path, size: int) -> bool:
    if size > MAX_TEXT_BYTES:
        return True  # refused for its size, which is the better reason
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
