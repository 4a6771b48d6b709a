"""A key for the installed code: it changes with the code, so that a zygote of old code is never used.

A zygote serves only starters that come to the same key, so that an upgrade, or an edited checkout, never
meets an old one. Only names, sizes and times are read, which takes about two milliseconds.
Standard library only, and little of it: the front of a command imports this module.
"""

import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL = 3
"""Raised whenever starters and zygotes would no longer understand each other."""
ZYGOTE_MODULE = "subagent_server.warm.zygote"
"""The program of the zygote of this installation."""
_PACKAGE = os.path.realpath(f"{__file__}/../..")  # pathlib takes longer to import than all of this
_SITES = ("site-packages", "dist-packages")
_RECORDS = (".dist-info", ".pth", ".egg-link")


def installation_key() -> str:
    """Return the key of the interpreter that runs this, of this package, and of all that is installed.

    Raises:
        OSError: the package is not a directory of files.
    """
    interpreter = os.path.realpath(sys.executable)  # `python` and `python3` of one place are the same
    facts = [str(PROTOCOL), sys.prefix, sys.version, _fact(interpreter, os.stat(interpreter))]  # noqa: PTH116
    facts += [*_sources(_PACKAGE), *_installed()]
    data = "\0".join(facts).encode("utf-8", "surrogateescape")
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}{len(data):x}"


def _sources(folder: str) -> "Iterator[str]":
    """Yield a fact of each file of the package, caches left out."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _sources(entry.path)
        else:
            yield _fact(entry.path, entry.stat())


def _installed() -> "Iterator[str]":
    """Yield a fact of each installed package: the name of its record has its version."""
    for folder in sys.path:
        if folder.endswith(_SITES) and os.path.isdir(folder):  # noqa: PTH112
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if entry.name.endswith(_RECORDS):
                    yield _fact(entry.path, entry.stat())


def _fact(path: str, facts: os.stat_result) -> str:
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"
