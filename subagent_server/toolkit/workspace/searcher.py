"""Starting the search program, and ending it when its time is over or nobody waits any more."""

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subagent_server.domain.errors import BadArgument
from subagent_server.host.inside import Place
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.paths import Workspace, kind

_PACKAGES = Path(__file__).parents[3]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from subagent_server.toolkit.workspace.searching.main import main; main()"
)


@dataclass
class Found:
    """What a search found: lines, and notes on what is missing from them."""

    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: str | None = None


async def search(workspace: Workspace, path: str, request: dict[str, Any], *, seconds: float) -> Found:
    """Search `path` of `workspace` for at most about `seconds`, beside the event loop.

    Raises:
        BadArgument: there is nothing to search at `path`.
        OSError: the system refused.
    """
    running = _Search({**request, "seconds": seconds, "root": os.path.realpath(workspace.root)})
    return await off_loop(lambda: running.run(workspace, path), interrupt=running.cancel)


@dataclass
class _Search:
    """One search. `cancel` may come from another thread, also before `run`."""

    request: dict[str, Any]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: subprocess.Popen[bytes] | None = None
    _cancelled: bool = False

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.kill()

    def run(self, workspace: Workspace, path: str) -> Found:
        with workspace.place(path) as place:
            status = place.status()
            if status is None:
                raise BadArgument(f"There is nothing at {place.shown}: check the path.")
            if stat.S_ISDIR(status.st_mode):
                directory = place.open_directory()
                try:
                    return self._ask(directory, "/".join(place.parts), None)
                finally:
                    os.close(directory)
            return self._search_file(place, status)

    def _search_file(self, place: Place, status: os.stat_result) -> Found:
        if not stat.S_ISREG(status.st_mode):
            raise BadArgument(
                f"{place.shown} is {kind(status.st_mode)}, not to be searched: use another path."
            )
        if self.request["tool"] != "grep":
            raise BadArgument(f"{place.shown} is a file: give the path of a directory.")
        return self._ask(place.directory, "/".join(place.parts[:-1]), place.name)

    def _ask(self, directory: int, base: str, file: str | None) -> Found:
        asked = {**self.request, "directory": directory, "base": base, "file": file}
        with self._lock:
            if self._cancelled:
                return Found()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-W", "ignore", "-X", "utf8", "-c", _PROGRAM, str(_PACKAGES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(directory,),
                env={},
                start_new_session=True,
            )
        return self._listen(self._process, json.dumps(asked).encode())

    def _listen(self, process: subprocess.Popen[bytes], asked: bytes) -> Found:
        seconds: float = self.request["seconds"]
        try:
            output, _ = process.communicate(asked, timeout=seconds + 1)  # it stops by itself, if it can
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            found = _read(output)
            found.notes.append(f"stopped after {seconds:g} s: use a simpler pattern or narrow the path")
            return found
        found = _read(output)
        if process.returncode != 0 and not self._cancelled:
            found.notes.append("the search broke off before its end: narrow it")
        return found


def _read(output: bytes) -> Found:
    found = Found()
    for line in output.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # it was cut by the kill
        message = json.loads(line)
        if "line" in message:
            found.lines.append(message["line"])
        found.notes += message.get("end", [])
        found.refused = message.get("refused", found.refused)
    return found
