"""Deleting a directory with all its contents, but nothing behind its links."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from subagent_server.host.directory import Entry


def remove_tree(entry: Entry) -> None:
    """Delete a directory, even if read-only; an entry that refuses stays. A link itself is removed.

    Raises:
        OSError: the parent directory is missing. If changes there are forbidden, the reason is raised, too.
    """
    descriptor = entry.directory.writable()
    if not entry.exists():
        return
    if not os.path.isdir(place := f"/proc/self/fd/{descriptor}/{entry.name}") or os.path.islink(place):  # noqa: PTH112, PTH114
        entry.unlink()
        return
    shutil.rmtree(place, onerror=_make_writable)  # opens each directory without following links


def _make_writable(function: Callable[..., Any], name: str, error: object) -> None:
    """Repeat the failed step of `rmtree`, with the directory made writable."""
    with suppress(OSError):
        for place in (Path(name).parent, Path(name)):
            if not place.is_symlink() and place.is_dir():
                place.chmod(0o700)
        if function is os.unlink or function is os.rmdir:
            function(name)
        else:
            shutil.rmtree(name, ignore_errors=True)
