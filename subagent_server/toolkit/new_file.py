"""A new file in the directory of a run: for a long output, an image or an attachment."""

import mimetypes
import os
from pathlib import Path
from typing import BinaryIO

from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory

KEPT_BYTES = 64 << 20
"""No more of one output, image or attachment is kept."""


def new_file(directory: Directory, stem: str, suffix: str) -> tuple[Path, BinaryIO]:
    """Make `STEM-NNNN SUFFIX` with the next free number; return its path and the file, open for writing.

    The directory is made first if it is missing.

    Raises:
        OSError: the disk refuses.
    """
    directory.make()
    number = 1 + sum(name.startswith(f"{stem}-") for name in directory.names())
    while True:
        file = directory.entry(f"{stem}-{number:04d}{suffix}")
        try:
            descriptor = file.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            number += 1
            continue
        return file.path.absolute(), os.fdopen(descriptor, "wb", buffering=0)


def keep_bytes(directory: Directory | None, masker: Masker, data: bytes, media: str | None) -> str:
    """Store bytes, with secrets masked; return a few words with their path, or why they are not kept."""
    if directory is None:
        return "not shown here"
    if len(data) > KEPT_BYTES:
        return f"not kept: more than {KEPT_BYTES:,} bytes"
    suffix = mimetypes.guess_extension((media or "").partition(";")[0].strip()) or ".bin"
    try:
        path, file = new_file(directory, "file", suffix)
        with file:
            file.write(masker.stream(data, last=True)[0])
    except OSError as error:
        return f"not kept: {error.strerror or error}"
    return f"kept in {path}"
