"""The programs of this machine, each looked up once."""

import os
import shutil
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path


class Programs:
    """Looks programs up as the system does when it starts them; `path` is the variable PATH."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], bool] = {}
        self._names: dict[str, list[str]] = {}

    def is_missing(self, command: str, path: str | None, cwd: Path | None) -> bool:
        """Whether a program is surely not there. Without `cwd`, a relative path may lead anywhere."""
        if os.sep in command:
            is_known = Path(command).is_absolute() or cwd is not None
            return is_known and shutil.which((cwd or Path()) / command) is None
        searched = path if path is not None else os.defpath
        if (command, searched) not in self._found:
            self._found[command, searched] = shutil.which(command, path=searched) is not None
        return not self._found[command, searched] and all(
            place.startswith(os.sep) for place in searched.split(os.pathsep)
        )

    def nearest(self, command: str, path: str | None) -> str | None:
        """Return the program with the most similar name, among those that begin alike."""
        searched = path if path is not None else os.defpath
        if searched not in self._names:
            self._names[searched] = [
                name for place in searched.split(os.pathsep) for name in _names_in(place)
            ]
        names = [name for name in self._names[searched] if name[0] == command[0]]
        alike = [name for name in names if abs(len(name) - len(command)) <= 2]
        near = get_close_matches(command, alike, 1) if os.sep not in command else []
        return near[0] if near else None


def _names_in(directory: str) -> list[str]:
    with suppress(OSError, ValueError):
        return [path.name for path in Path(directory).iterdir()]
    return []
