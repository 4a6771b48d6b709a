"""What tells one installation of this program from every other, and from itself before it was changed.

A warm process serves only those who come to the same key, so that an upgrade, or an edited checkout, never
meets an old one. Only names, sizes and times are looked at, which takes about two milliseconds.
Standard library only, and little of it: the front of a server imports this module.
"""

import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL = 1
"""Raised whenever starters and warm processes would no longer understand each other."""

_PACKAGE = os.path.realpath(f"{__file__}/../..")  # pathlib takes longer to import than all of this
_SITES = ("site-packages", "dist-packages")
_RECORDS = (".dist-info", ".pth", ".egg-link")


def image_key() -> str:
    """Return the key of the interpreter that runs this, of this package, and of all that is installed.

    Raises:
        OSError: the package is not a directory of files.
    """
    interpreter = os.path.realpath(sys.executable)  # `python` and `python3` of one place are the same
    facts = [str(PROTOCOL), interpreter, sys.prefix, sys.version, *_sources(), *_installed()]
    data = "\0".join(facts).encode("utf-8", "surrogateescape")
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}{len(data):x}"


def _sources() -> "Iterator[str]":
    folders = [_PACKAGE]
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=_name):
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                folders.append(entry.path)
            else:
                facts = entry.stat()
                yield f"{entry.path} {facts.st_size} {facts.st_mtime_ns}"


def _installed() -> "Iterator[str]":
    """The installed distributions with their versions: that is what the names of their records say."""
    interpreter = os.stat(sys.executable)  # noqa: PTH116
    yield f"{interpreter.st_size} {interpreter.st_mtime_ns}"
    for folder in sys.path:
        if folder.endswith(_SITES) and os.path.isdir(folder):  # noqa: PTH112
            for entry in sorted(os.scandir(folder), key=_name):
                if entry.name.endswith(_RECORDS):
                    yield f"{entry.path} {entry.stat().st_mtime_ns}"


def _name(entry: "os.DirEntry[str]") -> str:
    return entry.name
