"""What tells one installation of this program from every other, and from itself before it was changed.

A warm process serves only those who come to the same key, so that an upgrade, or an edited checkout, never
meets an old one. Only names, sizes and times are looked at, which takes about a millisecond.
Standard library only.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PROTOCOL = 1
"""Raised whenever starters and warm processes would no longer understand each other."""

_PACKAGE = Path(__file__).resolve().parents[1]
_SITES = ("site-packages", "dist-packages")


def image_key() -> str:
    """Return the key of the interpreter that runs this, of this package, and of all that is installed.

    Raises:
        OSError: the package is not a directory of files.
    """
    digest = hashlib.sha256()
    for fact in (str(PROTOCOL), sys.executable, sys.version, str(_PACKAGE), *_sources(), *_installed()):
        digest.update(fact.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()[:32]


def _sources() -> Iterator[str]:
    folders = [str(_PACKAGE)]
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=lambda each: each.name):
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                folders.append(entry.path)
            else:
                facts = entry.stat()
                yield f"{entry.path} {facts.st_size} {facts.st_mtime_ns}"


def _installed() -> Iterator[str]:
    """The installed distributions with their versions: that is what the names of their records say."""
    interpreter = Path(sys.executable).stat()
    yield f"{interpreter.st_size} {interpreter.st_mtime_ns}"
    for folder in sys.path:
        if folder.endswith(_SITES) and Path(folder).is_dir():
            for entry in sorted(os.scandir(folder), key=lambda each: each.name):
                if entry.name.endswith((".dist-info", ".pth", ".egg-link")):
                    yield f"{entry.path} {entry.stat().st_mtime_ns}"
