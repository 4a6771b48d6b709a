"""The zygote of a test session: in a directory of its own, started by the first run, ended with it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from subagent_server.process.zygote_client import WarmStart
from subagent_server.run import locks, processes
from subagent_server.run.files import Entry
from tests.helpers.wait import wait_for

PLACE = "SUBAGENT_RUNTIME_DIR"
_SWITCH = "SUBAGENT_WARM"
_IDLE_SECONDS = 600
_PATIENCE = {"SUBAGENT_WARM_IDLE": str(_IDLE_SECONDS)}
"""It leaves by itself if a session is killed."""
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""A run with other certificates than its zygote reads its own: a third of what a short run costs."""
_BOUND = 120.0


def begin() -> Path:
    """Make the directory, and let all that is started from here on know it."""
    directory = Path(tempfile.mkdtemp(prefix="subagent-tests-"))
    os.environ.update({PLACE: str(directory), **_PATIENCE})
    return directory


def spawn(directory: Path) -> None:
    """Have the zygote of a directory started, as a starter does that has found none."""
    starting = WarmStart(directory, _IDLE_SECONDS).spawn()
    assert starting is not None
    assert starting.wait(_BOUND) == 0


def await_zygote() -> None:
    """Have the zygote of this process's directory started if there is none, and wait until it listens."""
    directory = Path(os.environ[PLACE])
    if not list(zygotes(directory)):
        spawn(directory)
    wait_for(lambda: list(directory.glob("*.sock")), _BOUND, "the zygote")


def settings() -> dict[str, str]:
    """Return the variables that lead to the zygote or away, for environments that are made from nothing."""
    names = (PLACE, _SWITCH, *_PATIENCE, *_CERTIFICATES)
    return {name: os.environ[name] for name in names if name in os.environ}


def end(directory: Path) -> None:
    """Kill the zygotes of a directory, and remove it."""
    for zygote in zygotes(directory):
        processes.send_signal(zygote, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def zygotes(directory: Path) -> Iterator[processes.Identity]:
    """Yield the zygotes that hold their place in a directory."""
    for lock in directory.glob("*.lock"):
        pid = lock.read_text(encoding="ascii").strip() if locks.is_held(Entry.at(lock)) else ""
        identity = processes.identify(int(pid)) if pid else None
        if identity is not None:
            yield identity
