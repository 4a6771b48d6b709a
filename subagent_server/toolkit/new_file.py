"""A new file in the directory of a run: for a long output, an image or an attachment."""

import os
from pathlib import Path
from typing import BinaryIO

from subagent_server.host.directory import Directory


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
