"""The key of an installation: another one has another key, and so has this one after a change.

A zygote serves only starters that come to the same key, so that an upgrade, or an edited checkout, never
meets an old one. Only names, sizes and times are read, which takes about two milliseconds; to see whether
all is still the same takes half of that.
Standard library only, and little of it: the front of a command imports this module.
"""

import os
import sys
import time
import zlib

PROTOCOL = 3
"""Raised whenever starters and zygotes would no longer understand each other."""
ZYGOTE_MODULE = "subagent_server.warm.zygote"
"""The program of the zygote of this installation."""

_TICK_NS = 2_000_000_000
"""Two changes of a folder may have one time; file systems whose times are coarse count in steps as long."""
_PACKAGE = os.path.realpath(f"{__file__}/../..")  # pathlib takes longer to import than all of this
_SITES = ("site-packages", "dist-packages")
_RECORDS = (".dist-info", ".pth", ".egg-link")


def installation_key() -> str:
    """Return the key of the interpreter that runs this, of this package, and of all that is installed.

    Raises:
        OSError: the package is not a directory of files.
    """
    return Installation().key


class Installation:
    """The interpreter, this package and all installed packages, as a plain start would find them now.

    `key` stands for them. Raises OSError: the package is not a directory of files.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[str, int, int]] = []
        self._folders: list[tuple[str, int]] = []
        began = time.time_ns()
        self._missing: list[str] = []
        self._interpreter = _interpreter()
        facts = [str(PROTOCOL), sys.prefix, sys.version]
        self._see_sources()
        self._see(self._interpreter, os.stat(self._interpreter))  # noqa: PTH116
        self._see_installed()
        facts += [f"{path} {size} {changed}" for path, size, changed in self._seen]
        data = "\0".join(facts).encode("utf-8", "surrogateescape")
        self.key = f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}{len(data):x}"
        self._was_at_rest = max(changed for _, changed in self._folders) < began - _TICK_NS

    def is_as_it_was(self) -> bool:
        """Whether none of these files has changed, and no file has come beside them."""
        if (
            not self._was_at_rest
            or _interpreter() != self._interpreter
            or any(map(_is_folder, self._missing))
        ):
            return False
        look = os.stat
        try:
            for path, size, changed in self._seen:
                now = look(path)
                if now.st_mtime_ns != changed or now.st_size != size:
                    return False
            return all(look(folder).st_mtime_ns == changed for folder, changed in self._folders)
        except OSError:
            return False

    def _see_sources(self) -> None:
        folders = [_PACKAGE]
        while folders:
            for entry in self._entries(folders.pop()):
                if entry.name == "__pycache__":
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    self._see(entry.path, entry.stat())

    def _see_installed(self) -> None:
        """See the installed packages and their versions: the names of the records say both."""
        for folder in sys.path:
            if not folder.endswith(_SITES):
                continue
            if not _is_folder(folder):
                self._missing.append(folder)
                continue
            for entry in self._entries(folder):
                if entry.name.endswith(_RECORDS):
                    self._see(entry.path, entry.stat())

    def _entries(self, folder: str) -> "list[os.DirEntry[str]]":
        self._folders.append((folder, os.stat(folder).st_mtime_ns))  # noqa: PTH116
        return sorted(os.scandir(folder), key=_name)

    def _see(self, path: str, facts: os.stat_result) -> None:
        self._seen.append((path, facts.st_size, facts.st_mtime_ns))


def _interpreter() -> str:
    """Return its one name: `python` and `python3` of one place are the same."""
    return os.path.realpath(sys.executable)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def _name(entry: "os.DirEntry[str]") -> str:
    return entry.name
